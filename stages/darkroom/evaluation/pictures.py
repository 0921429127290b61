"""Pictures of what a model takes for what, the same bytes for the same numbers."""

from __future__ import annotations

import io
import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from darkroom.evaluation.predictions import Predictions
from darkroom.sheets import contact_sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_TEXT = 20
"""Up to this many classes a cell of the confusion matrix says its count; beyond, figures would touch."""
ALL_NAMES = 50
"""Up to this many classes each row and column is named; beyond, every so many."""
SMALLEST_PICTURE = 96
"""pixels a side that a mistake is drawn at, so that its caption can be read"""


def confusion_picture(confusion: NDArray[np.int64], classes: list[str]) -> bytes:
    """A PNG of `confusion` (K×K, row actual, column predicted): colour by share of the row, text by count."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    num_classes = len(classes)
    side = min(12.0, 3.2 + 0.42 * num_classes)
    figure = Figure(figsize=(side + 0.9, side), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    # A square root: two pictures in a hundred stay visible beside the diagonal.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1))
    figure.colorbar(image, ax=axes, label="share of the actual class", shrink=0.8, ticks=[0, 0.05, 0.2, 0.5, 1])
    _name_axes(axes, classes, room=0.75 * side)
    if num_classes <= CELL_TEXT:
        _write_counts(axes, confusion, shares)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that matplotlib's font lacks shows as boxes; the tables beside spell it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _name_axes(axes: Axes, classes: list[str], *, room: float) -> None:
    """`room`: inches for all names side by side."""
    step = math.ceil(len(classes) / ALL_NAMES)
    places = range(0, len(classes), step)
    names = [_short(classes[i]) for i in places]
    size = 9 if len(names) <= CELL_TEXT else 7
    upright = len(names) * max(map(len, names)) * 0.09 < room  # inches a letter
    axes.set_xticks(places, names, rotation=0 if upright else 90, fontsize=size)
    axes.set_yticks(places, names, fontsize=size)
    axes.set_xlabel("predicted")
    axes.set_ylabel("actual")
    axes.set_title(f"Confusion, {len(classes)} classes, test pictures")


def _short(name: str) -> str:
    # A $ would start a formula.
    short = name if len(name) <= 18 else name[:17] + "…"
    return short.replace("$", r"\$")


def _write_counts(axes: Axes, confusion: NDArray[np.int64], shares: NDArray[np.float64]) -> None:
    for (row, column), count in np.ndenumerate(confusion):
        if count:
            colour = "white" if shares[row, column] > 0.35 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)


def mistakes_picture(predictions: Predictions, images: NDArray[np.uint8], num_drawn: int) -> bytes:
    """A PNG of the `num_drawn` most confident mistakes among `images` (N×H×W×C), or of the sentence that there is none."""
    none = f"No mistake among {len(predictions.labels)} test pictures."
    return _sheet(predictions, images, predictions.mistakes, num_drawn, none)


def unsure_picture(predictions: Predictions, images: NDArray[np.uint8], num_drawn: int) -> bytes:
    """A PNG of the `num_drawn` least confident hits among `images` (N×H×W×C), or of the sentence that there is none."""
    none = f"None of {len(predictions.labels)} test pictures was recognised."
    return _sheet(predictions, images, predictions.unsure, num_drawn, none)


def attention_picture(predictions: Predictions, images: NDArray[np.uint8], heat: NDArray[np.float64] | None) -> bytes:
    """A PNG of the most confident mistakes among `images` with `heat` (M×H×W, 0..1, of the first M) over them."""
    if heat is None or not len(heat):
        return _png(_sentence("Nothing to draw: no mistake, no convolutions, or evaluate.attention is off."))
    from matplotlib import colormaps

    places = predictions.mistakes[: len(heat)]
    grey = images[places].mean(axis=3, keepdims=True)
    shaded = (0.45 * grey + 0.55 * 255 * colormaps["inferno"](heat)[..., :3]).round().astype(np.uint8)
    return _png(grid(shaded, [_caption(predictions, i) for i in places]))


def _sheet(
    predictions: Predictions, images: NDArray[np.uint8], places: NDArray[np.int64], num_drawn: int, none: str
) -> bytes:
    if not len(places):
        return _png(_sentence(none))
    if not num_drawn:
        return _png(_sentence(f"evaluate.mistakes is 0: none of {len(places)} pictures is drawn."))
    places = places[:num_drawn]
    return _png(grid(images[places], [_caption(predictions, i) for i in places]))


def grid(images: NDArray[np.uint8], captions: list[str]) -> Image.Image:
    """`images` (N×H×W×C) in a square, each large enough for its caption."""
    scale = math.ceil(SMALLEST_PICTURE / images.shape[2])
    return contact_sheet(images, captions, columns=math.ceil(math.sqrt(len(images))), scale=scale)


def _caption(predictions: Predictions, i: int) -> str:
    label, predicted = predictions.classes[predictions.labels[i]], predictions.classes[predictions.predicted[i]]
    said = [] if label == predicted else [f"said {predicted}"]
    return "\n".join([f"is {label}", *said, f"{predictions.confidence[i]:.1%}"])


def _png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, format="PNG")
    return content.getvalue()


def _sentence(text: str) -> Image.Image:
    font = ImageFont.load_default(16)
    sheet = Image.new("RGB", (int(font.getlength(text)) + 40, 60), (255, 255, 255))
    ImageDraw.Draw(sheet).text((20, 20), text, fill=(32, 32, 32), font=font)
    return sheet

"""Contact sheets: many small pictures on one, with a caption under each."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

GAP = 4
FONT_SIZE = 11
LINE_HEIGHT = 14
SMALLEST_CELL = 64
"""pixels a side that a picture is enlarged to, so that an 8×8 digit can be seen"""
PAPER = (255, 255, 255)
INK = (32, 32, 32)


def contact_sheet(
    images: NDArray[np.uint8], captions: Sequence[str], *, columns: int, scale: int | None = None
) -> Image.Image:
    """A grid of `images` (N×H×W×C, C 1 or 3), row by row, each over its caption.

    `scale`: whole pixels a pixel; None for the least that makes a picture 64 pixels wide. A caption may have several
    lines; what is too long for its picture ends in an ellipsis. No captions ("") take no room.
    """
    assert len(images) == len(captions) > 0, f"{len(images)} pictures, {len(captions)} captions"
    height, width = images.shape[1:3]
    scale = scale or -(-SMALLEST_CELL // width)
    num_lines = max(len(caption.splitlines()) for caption in captions)
    cell_width = width * scale + GAP
    cell_height = height * scale + num_lines * LINE_HEIGHT + GAP
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * cell_width + GAP, rows * cell_height + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, (pixels, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = GAP + i % columns * cell_width, GAP + i // columns * cell_height
        sheet.paste(picture(pixels, scale), (left, top))
        for j, line in enumerate(caption.splitlines()):
            text = shorten(line, width * scale)
            draw.text((left, top + height * scale + j * LINE_HEIGHT), text, fill=INK, font=_font())
    return sheet


def picture(pixels: NDArray[np.uint8], scale: int = 1) -> Image.Image:
    """H×W×C (C 1 or 3) as an RGB picture, each pixel `scale` pixels wide."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def shorten(text: str, width: int) -> str:
    """`text`, or as much of its start as fits into `width` pixels, with an ellipsis."""
    if _font().getlength(text) <= width:
        return text
    while text and _font().getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """DejaVu, which matplotlib brings along and which knows most letters; Pillow's own knows ASCII."""
    found = importlib.util.find_spec("matplotlib")  # without importing it
    path = Path(str(found.origin)).parent / "mpl-data/fonts/ttf/DejaVuSans.ttf" if found else Path()
    return ImageFont.truetype(path, FONT_SIZE) if path.is_file() else ImageFont.load_default(FONT_SIZE)

"""Says what is on pictures, with an exported model and without torch.

Run by hand: python stages/predict.py PATH… [--model FILE | models:/NAME@champion] [--top K] [--format table|json|csv]

Reads   export/model.onnx or the model named, and the pictures at PATH… (files, or folders with all below them)
Writes  the answers, to standard output
Keys    tracking, for a model from the store
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from darkroom.door import REPOSITORY, enter, root
from darkroom.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from darkroom.pictures import BadPictureError
    from darkroom.serving.answers import Answer
    from darkroom.serving.predictor import Predictor

MODEL = Path("export/model.onnx")
BATCH = 64
"""Pictures at a time."""


def main() -> None:
    options = _options()
    from darkroom.serving.finding import find_pictures
    from darkroom.serving.predictor import Predictor

    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that lacks a letter shows a ?
    files = find_pictures(options.paths)
    predictor = Predictor(_model_file(options.model))
    bad: list[Path] = []

    def tell(path: Path, error: BadPictureError) -> None:
        bad.append(path)
        print(error, file=sys.stderr, flush=True)

    answers = predict(files, predictor, top=options.top, on_bad=tell)
    for text in _formatted(answers, options.format, files, predictor.classes, options.top):
        sys.stdout.write(text)
        sys.stdout.flush()  # here, so that a reader that has gone is noticed before the end of Python
    if bad:
        raise UserError(
            f"{len(bad)} of {len(files)} files are no whole picture (named above); the others are predicted"
        )


def predict(
    files: Sequence[Path], predictor: Predictor, *, top: int, on_bad: Callable[[Path, BadPictureError], None]
) -> Iterator[Answer]:
    """An answer for each picture among `files`, in their order, with the `top` likeliest classes.

    Reads and predicts 64 at a time. A file that is no whole picture is given to `on_bad` and left out.
    """
    import numpy as np

    from darkroom.exporting.session import usable_cpus
    from darkroom.serving.answers import answer

    with ThreadPoolExecutor(usable_cpus()) as pool:
        for start in range(0, len(files), BATCH):
            batch = files[start : start + BATCH]
            read = list(_readable(batch, pool.map(lambda path: _read(path, predictor), batch), on_bad))
            if read:
                probabilities = predictor.probabilities(np.stack([picture for _, picture in read]))
                for (path, _), row in zip(read, probabilities, strict=True):
                    yield answer(str(path), row, predictor.classes, top)


def _read(path: Path, predictor: Predictor) -> NDArray[np.uint8] | BadPictureError:
    from darkroom.pictures import BadPictureError

    try:
        return predictor.read(path)
    except BadPictureError as error:
        return error


def _readable(
    files: Sequence[Path],
    pictures: Iterable[NDArray[np.uint8] | BadPictureError],
    on_bad: Callable[[Path, BadPictureError], None],
) -> Iterator[tuple[Path, NDArray[np.uint8]]]:
    for path, picture in zip(files, pictures, strict=True):
        if isinstance(picture, Exception):
            on_bad(path, picture)
        else:
            yield path, picture


def _formatted(
    answers: Iterable[Answer], form: str, files: Sequence[Path], classes: Sequence[str], top: int
) -> Iterator[str]:
    from darkroom.serving.answers import as_csv, as_json, as_table

    if form == "json":
        return as_json(answers)
    if form == "csv":
        return as_csv(answers, min(top, len(classes)))
    return as_table(answers, path_width=max(len(str(path)) for path in files), name_width=max(map(len, classes)))


def _model_file(named: str | None) -> Path:
    """The ONNX file of `--model`; without one the workspace's, also where this script is called from elsewhere."""
    if named is None:
        return MODEL if MODEL.exists() or not (REPOSITORY / MODEL).exists() else REPOSITORY / MODEL
    if not named.startswith(("models:/", "runs:/")):
        return Path(named)
    with redirect_stdout(sys.stderr):  # standard output is for answers
        return _fetched(named)


def _fetched(uri: str) -> Path:
    from darkroom.params import read_params

    params = read_params()
    from darkroom.tracking import open_store
    from darkroom.tracking.fetching import fetch_model

    found = fetch_model(open_store(params.tracking, root()), uri, "onnx")
    print(f"model: {found.description}")
    return found.path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Says what is on pictures, with an exported model.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a picture, or a folder with pictures")
    parser.add_argument(
        "--model",
        help="an exported ONNX file, models:/NAME@champion, models:/NAME/VERSION or runs:/ID (export/model.onnx)",
    )
    parser.add_argument("--top", type=_count, default=1, metavar="K", help="classes named for each picture (1)")
    parser.add_argument("--format", choices=["table", "json", "csv"], default="table", help="how to write them (table)")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of classes (1, 2, …)")
    return int(text)


if __name__ == "__main__":
    enter(main)

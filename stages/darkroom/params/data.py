"""Section `data`: which pictures, and how they are split and packed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Fault, Fraction, Section, key

DataName = Literal["digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn", "image_folder"]


class Data(Section):
    """Pictures: download takes name, source and folder; prepare takes the rest."""

    name: DataName = key("which set of pictures", also=("dataset",))
    source: str = key("URL of a mirror that holds the published files; empty: the set's own address", also=("url",))
    folder: Annotated[str, Field(min_length=1)] = key(
        "folder with your own pictures (image_folder) or with the published files", also=("root", "path", "dir")
    )
    image_size: Literal["auto"] | Annotated[int, Field(ge=4, le=4096)] = key(
        "pixels a side; auto: the set's own size, 64 for image_folder", also=("img_size", "imgsz", "size", "resolution")
    )
    resize: Literal["crop", "pad", "stretch"] = key("how a picture of another shape becomes square")
    channels: Literal["auto", 1, 3] = key("1 (grey) or 3 (RGB); auto: the set's own, 3 for image_folder")
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = key(
        "share of the training pictures held out for validation", also=("val_split",)
    )
    test_fraction: Fraction = key("share held out for test where the set brings no test split", also=("test_split",))
    seed: Annotated[int, Field(ge=0)] = key("seed of the splits")
    on_bad_image: Literal["error", "skip"] = key("what to do with a file that is no whole picture")
    on_duplicate: Literal["error", "allow"] = key(
        "what to do when the same picture is in two splits (image_folder; published sets keep theirs)"
    )

    def faults(self) -> Iterator[Fault]:
        if self.test_fraction == 0 and self.name == "digits":
            yield "data.test_fraction", "0 leaves digits without a test split (above 0, below 1)"
        if self.source and not self.source.startswith(("http://", "https://")):
            yield (
                "data.source",
                f"{self.source!r} is no http:// or https:// address (a local folder goes into data.folder)",
            )
        if self.source and self.name in ("digits", "image_folder"):
            yield "data.source", f"means nothing for {self.name}, which is not downloaded (leave it empty)"

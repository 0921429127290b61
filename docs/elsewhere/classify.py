"""Says what is on pictures, with export/model.onnx, onnxruntime, numpy and Pillow: nothing of this project is needed.

    python classify.py model.onnx picture.jpg…

A picture is read as in training (stages/darkroom/pictures.py): upright by EXIF, 16 bits scaled to 8, transparency on white,
grey or RGB, square by the rule in the file. All else, from the mean to the softmax, is in the file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: str, size: int, mode: str, resize: str) -> Any:
    """The picture as uint8 C×H×W."""
    image: Image.Image = Image.open(path)
    image.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded smaller
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
        deep = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((deep + 128) // 257).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert(mode)
    if image.size != (size, size):
        image = square(image, size, resize)
    return np.asarray(image).reshape(size, size, -1).transpose(2, 0, 1)


def square(image: Image.Image, size: int, resize: str) -> Image.Image:
    """crop: the middle; pad: black at two sides; stretch: other proportions."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    if resize == "crop":
        return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    if resize == "stretch":
        return image.resize((size, size), Image.Resampling.BILINEAR)
    scale = size / max(width, height)
    inner = max(1, round(width * scale)), max(1, round(height * scale))
    padded = Image.new(image.mode, (size, size))
    padded.paste(image.resize(inner, Image.Resampling.BILINEAR), ((size - inner[0]) // 2, (size - inner[1]) // 2))
    return padded


def main() -> None:
    model, *paths = sys.argv[1:]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    classes = json.loads(about["classes"])
    mode = {"1": "L", "3": "RGB"}[about["channels"]]
    for path in paths:
        image = read(path, int(about["image_size"]), mode, about["resize"])
        (probabilities,) = session.run(["probabilities"], {"images": image[None]})[0]
        place = int(probabilities.argmax())
        print(path, classes[place], f"{probabilities[place]:.6f}", sep="\t")


if __name__ == "__main__":
    main()

"""From a picture file to the pixels that the network sees: one way, for training, export checks and serving alike.

Upright by EXIF, 8 bits, grey or RGB, square. Needs Pillow and numpy alone.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from darkroom.errors import UserError

Resize = Literal["crop", "pad", "stretch"]


FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")
"""Pillow's names of what is read. The rest stays out: EPS starts Ghostscript, and others have no signature to know by."""

DEEP_GREY = ("I", "I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's modes for grey of 16 bits and more, which it would clip at 255."""

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns a picture upright, by the value of EXIF's Orientation (CIPA DC-008, 4.6.5.1)."""

# A camera's odd EXIF entry, or a picture larger than most, is no news where the picture is read whole.
# Set once, here: warnings.catch_warnings is not safe in the threads that decode.
warnings.filterwarnings("ignore", module=r"PIL\.")


class BadPictureError(UserError):
    """A file that is no whole picture."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.reason = reason
        """why, without the name"""


def read_picture(source: Path | bytes | BinaryIO, *, image_size: int, channels: int, resize: str) -> NDArray[np.uint8]:
    """The picture as H×W×C with H = W = `image_size`. The first frame of several; transparency on white.

    Raises BadPictureError where `source` is no whole picture, or is too large (178 megapixels, Pillow's limit).
    """
    name = str(source) if isinstance(source, Path) else "the picture"
    content = source if isinstance(source, bytes) else _read(source, name)
    if not content:
        raise BadPictureError(name, "is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            # JPEG alone: decodes at 1/2, 1/4 or 1/8 where at least twice the wanted pixels are left.
            image.draft(None, (2 * image_size, 2 * image_size))
            return fit(_upright(image), image_size=image_size, channels=channels, resize=resize)
    except BadPictureError as error:
        raise BadPictureError(name, error.reason) from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on a damaged file
        raise BadPictureError(name, _reason(error, content)) from error


def shorter_side(path: Path) -> int:
    """Pixels, of a picture that `read_picture` reads; its header alone is looked at."""
    with Image.open(path, formats=FORMATS) as image:
        return min(image.size)


def fit(image: Image.Image, *, image_size: int, channels: int, resize: str) -> NDArray[np.uint8]:
    """An upright picture as H×W×C with H = W = `image_size`, antialiased.

    `resize`: crop keeps the middle square, pad adds black at two sides, stretch changes the proportions.
    A picture that has the size already keeps its pixels. Raises BadPictureError for pixels without an agreed range.
    """
    assert resize in get_args(Resize), resize
    image = _colours(image, channels)
    if image.size != (image_size, image_size):
        image = _square(image, image_size, resize)
    return np.asarray(image, dtype=np.uint8).reshape(image_size, image_size, channels)


def _read(source: Path | BinaryIO, name: str) -> bytes:
    try:
        return source.read_bytes() if isinstance(source, Path) else source.read()
    except OSError as error:
        raise BadPictureError(name, f"cannot be read ({error.strerror or error})") from error


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # decodes here, so that a truncated file is known as one before anything else is asked of it
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # a damaged EXIF block beside whole pixels: the picture as it lies
        return image
    turn = UPRIGHT.get(orientation)
    return image if turn is None else image.transpose(turn)


def _colours(image: Image.Image, channels: int) -> Image.Image:
    """Mode L for one channel (ITU-R 601-2 luma), RGB for three."""
    mode = {1: "L", 3: "RGB"}[channels]
    if image.mode == mode and not image.has_transparency_data:
        return image
    if image.mode == "F":
        raise BadPictureError(
            "the picture", "has floating-point pixels, which have no agreed range: save it as 8 or 16 bits"
        )
    if image.mode in DEEP_GREY:
        image = _eight_bits(image)
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """0..65535 as 0..255, rounded."""
    deep = np.asarray(image).astype(np.int64)
    if deep.min() < 0 or deep.max() > 65535:
        raise BadPictureError(
            "the picture", "has more than 16 bits a pixel, without an agreed range: save it as 8 or 16 bits"
        )
    return Image.fromarray(((deep + 128) // 257).astype(np.uint8))


def _square(image: Image.Image, size: int, resize: str) -> Image.Image:
    width, height = image.size
    if resize == "crop":
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    if resize == "stretch":
        return image.resize((size, size), Image.Resampling.BILINEAR)
    scale = size / max(width, height)
    inner = max(1, round(width * scale)), max(1, round(height * scale))
    square = Image.new(image.mode, (size, size))
    square.paste(image.resize(inner, Image.Resampling.BILINEAR), ((size - inner[0]) // 2, (size - inner[1]) // 2))
    return square


def _reason(error: Exception, content: bytes) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return "has too many pixels (at most 178 megapixels are read): make it smaller"
    if not isinstance(error, UnidentifiedImageError):
        return f"is damaged ({error})"
    start = content[:512].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml", b"<svg")):
        return (
            "is no picture but a web page or XML"
            if b"<svg" not in start
            else "is a vector drawing (SVG): save it as PNG"
        )
    known = ", ".join(FORMATS)
    return f"is no picture that can be read ({known})"

"""darkroom.pictures: one picture in many files gives the same pixels, and what is no picture says so."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import ExifTags, Image

from darkroom.filenames import PICTURE_SUFFIXES
from darkroom.pictures import FORMATS, BadPictureError, fit, read_picture


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(content: bytes, image_size: int = 32, channels: int = 3, resize: str = "crop") -> NDArray[np.uint8]:
    return read_picture(content, image_size=image_size, channels=channels, resize=resize)


@pytest.fixture
def photo() -> Image.Image:
    """48×32: smooth, so that JPEG keeps it; another colour in each corner, so that a turn is seen."""
    corners = np.array([[[250, 20, 20], [20, 250, 20]], [[20, 20, 250], [240, 240, 30]]], np.uint8)
    return Image.fromarray(corners).resize((48, 32), Image.Resampling.BICUBIC)


@pytest.fixture
def grey(photo: Image.Image) -> Image.Image:
    return photo.convert("L")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("PPM", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_lossless_files_of_one_picture_give_its_pixels(photo: Image.Image, kind: str, options: dict[str, Any]) -> None:
    expected = np.asarray(photo.crop((8, 0, 40, 32)))
    assert np.array_equal(read(encoded(photo, kind, **options)), expected)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF", "JPEG2000"])
def test_lossy_files_of_one_picture_come_close(photo: Image.Image, kind: str) -> None:
    expected = read(encoded(photo)).astype(int)
    assert np.abs(read(encoded(photo, kind, quality=95)) - expected).mean() < 6


@pytest.mark.parametrize("mode", ["RGBA", "CMYK", "YCbCr", "RGBX"])
def test_other_colour_modes_become_rgb(photo: Image.Image, mode: str) -> None:
    found = fit(photo.convert(mode), image_size=32, channels=3, resize="crop")
    assert np.abs(found.astype(int) - read(encoded(photo))).max() <= 4  # rounding of the conversion


def test_cmyk_jpeg_has_its_colours_the_right_way_round(photo: Image.Image) -> None:
    found = read(encoded(photo.convert("CMYK"), "JPEG", quality=95)).astype(int)
    assert np.abs(found - read(encoded(photo))).mean() < 6


def test_palette_becomes_rgb(photo: Image.Image) -> None:
    palette = photo.quantize(256)
    assert np.array_equal(read(encoded(palette, "GIF")), read(encoded(palette.convert("RGB"))))


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_grey_pictures_are_the_same_in_one_channel_and_three(grey: Image.Image, mode: str) -> None:
    image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else grey.convert(mode)
    expected = np.asarray(grey.crop((8, 0, 40, 32)))[:, :, None]
    assert np.array_equal(read(encoded(image), channels=1), expected)
    assert np.array_equal(read(encoded(image), channels=3), np.repeat(expected, 3, axis=2))


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = Image.fromarray(np.array([[0, 128, 129, 255], [256, 32768, 65406, 65535]] * 2, np.uint16))
    found = read(encoded(deep, "TIFF"), image_size=4, channels=1)
    assert found[:2, :, 0].tolist() == [[0, 0, 1, 1], [1, 128, 254, 255]]


def test_black_and_white_bitmap() -> None:
    bitmap = Image.fromarray(np.eye(4, dtype=bool))
    assert read(encoded(bitmap), image_size=4, channels=1)[:, :, 0].tolist() == (np.eye(4) * 255).tolist()


def test_transparency_lies_on_white() -> None:
    image = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    image.putpixel((0, 0), (10, 20, 30, 255))
    found = read(encoded(image), image_size=4)
    assert found[0, 0].tolist() == [10, 20, 30]
    assert found[3, 3].tolist() == [255, 255, 255]


def test_transparent_palette_lies_on_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([9, 9, 9, 200, 0, 0])
    image.putpixel((0, 0), 0)
    found = read(encoded(image, "PNG", transparency=1), image_size=4)
    assert found[0, 0].tolist() == [9, 9, 9]
    assert found[3, 3].tolist() == [255, 255, 255]


AS_STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How a camera lays the pixels of an upright picture down, by the Orientation that it writes."""


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_turns_a_picture_upright(photo: Image.Image, orientation: int, kind: str) -> None:
    stored = photo if orientation == 1 else photo.transpose(AS_STORED[orientation])
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    options = {"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    found = read(encoded(stored, kind, exif=exif, **options)).astype(int)
    assert np.abs(found - read(encoded(photo))).mean() < 3


# darkroom.pictures silences this warning; pytest brings it back
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_exif_block_leaves_the_picture_as_it_lies(photo: Image.Image) -> None:
    content = encoded(photo, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken", quality=95)
    assert np.array_equal(read(content), read(encoded(photo, "JPEG", quality=95)))


def test_a_crop_keeps_the_middle() -> None:
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 4:12] = 200
    assert read(encoded(Image.fromarray(wide)), image_size=8).min() == 200


def test_padding_keeps_everything_and_adds_black_at_two_sides() -> None:
    wide = Image.new("RGB", (16, 8), (200, 100, 50))
    found = read(encoded(wide), image_size=16, resize="pad")
    assert found[4:12].reshape(-1, 3).min(axis=0).tolist() == [200, 100, 50]
    assert found[:4].max() == found[12:].max() == 0


def test_stretching_uses_the_whole_picture() -> None:
    halves = np.zeros((8, 32, 1), np.uint8)
    halves[:, 16:] = 255
    found = read(encoded(Image.fromarray(halves[:, :, 0])), image_size=8, channels=1, resize="stretch")
    assert found[:, 0].max() == 0
    assert found[:, -1].min() == 255


def test_shrinking_is_antialiased() -> None:
    checks = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    found = read(encoded(Image.fromarray(checks)), image_size=8, channels=1)
    assert np.abs(found.astype(int) - 127).max() <= 2


def test_a_large_jpeg_is_the_same_picture_as_its_png() -> None:
    large = Image.fromarray(np.tile(np.arange(1024, dtype=np.uint16)[None] // 4, (1024, 1)).astype(np.uint8))
    jpeg = read(encoded(large, "JPEG", quality=95), image_size=16, channels=1).astype(int)
    assert np.abs(jpeg - read(encoded(large), image_size=16, channels=1)).max() <= 3


@given(
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    size=st.integers(4, 24),
    channels=st.sampled_from([1, 3]),
    resize=st.sampled_from(["crop", "pad", "stretch"]),
)
def test_any_shape_becomes_the_square_that_was_asked_for(
    width: int, height: int, size: int, channels: int, resize: str
) -> None:
    found = fit(Image.new("RGB", (width, height), "white"), image_size=size, channels=channels, resize=resize)
    assert found.shape == (size, size, channels)
    assert found.dtype == np.uint8
    assert found.max() == 255
    if resize != "pad":
        assert found.min() == 255


def test_paths_bytes_and_files_are_read_alike(photo: Image.Image, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(encoded(photo))
    from_path = read_picture(path, image_size=8, channels=3, resize="crop")
    with path.open("rb") as file:
        assert np.array_equal(read_picture(file, image_size=8, channels=3, resize="crop"), from_path)
    assert np.array_equal(read(path.read_bytes(), image_size=8), from_path)


def test_the_first_frame_of_several(photo: Image.Image) -> None:
    moving = encoded(photo.quantize(64), "GIF", save_all=True, append_images=[Image.new("P", photo.size)])
    assert np.array_equal(read(moving), read(encoded(photo.quantize(64), "GIF")))


BAD = {
    "empty": (b"", "is empty (0 bytes)"),
    "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "is no picture but a web page or XML"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is a vector drawing (SVG): save it as PNG"),
    "text": (b"not a picture", "is no picture that can be read"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "is no picture that can be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_picture_says_what_it_is(case: str, tmp_path: Path) -> None:
    content, reason = BAD[case]
    path = tmp_path / f"{case}.jpg"
    path.write_bytes(content)
    with pytest.raises(BadPictureError) as fault:
        read_picture(path, image_size=8, channels=3, resize="crop")
    assert str(fault.value).startswith(f"{path}: {reason}")
    assert fault.value.reason.startswith(reason)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "JPEG2000", "PPM", "AVIF"])
def test_a_file_cut_short_is_damaged(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    content = encoded(noise, kind)
    with pytest.raises(BadPictureError, match="is damaged" if kind != "AVIF" else "is no picture"):
        read(content[: len(content) * 2 // 3])


def test_floating_point_pixels_have_no_agreed_range() -> None:
    with pytest.raises(BadPictureError, match="floating-point"):
        read(encoded(Image.new("F", (8, 8)), "TIFF"))
    with pytest.raises(BadPictureError, match="more than 16 bits"):
        read(encoded(Image.new("I", (8, 8), 70000), "TIFF"))


def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(BadPictureError, match="too many pixels"):
        read(encoded(Image.new("RGB", (20, 20))))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPictureError, match=r"gone\.png: cannot be read \(No such file"):
        read_picture(tmp_path / "gone.png", image_size=8, channels=3, resize="crop")


def test_every_suffix_belongs_to_a_format_that_is_read() -> None:
    Image.init()
    assert {Image.EXTENSION[suffix] for suffix in PICTURE_SUFFIXES} <= set(FORMATS)

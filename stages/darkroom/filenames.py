"""What a file's name says: whether it is a picture, or what a computer left lying among pictures."""

from __future__ import annotations

from pathlib import PurePath

PICTURE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".jp2", ".ppm", ".pgm",
    ".pbm", ".pnm",
})  # fmt: skip
"""In lower case; what darkroom.pictures reads."""

LITTER = frozenset(
    {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "__pycache__", "@eadir", "$recycle.bin"}
)
"""What Windows, macOS, Python and network drives leave, beside hidden names (`._x.jpg`, `.DS_Store`)."""


def is_picture(path: PurePath) -> bool:
    return path.suffix.lower() in PICTURE_SUFFIXES


def is_litter(name: str) -> bool:
    """Whether a file or folder of this name is nobody's data."""
    return name.startswith(".") or name.lower() in LITTER

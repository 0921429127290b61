"""The training pictures on their way to the device: held there where they fit, else gathered from the memory map."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HELD_SHARE = 0.25
"""of a GPU's free memory that the pictures may take: then no step waits for a copy"""
CACHED_SHARE = 0.5
"""of the machine's memory: a larger set does not stay in the page cache, and is read ahead"""


class Shelf:
    """uint8 pictures N×H×W×C, taken by their places."""

    def __init__(self, images: NDArray[np.uint8], device: torch.device) -> None:
        self.images = images
        self.device = device
        self._held = torch.from_numpy(np.array(images)).to(device) if _fits(images, device) else None
        self._file = _open(images) if self._held is None and images.nbytes > CACHED_SHARE * _memory() else None

    def take(self, places: NDArray[np.int64]) -> Tensor:
        """The pictures at `places`, on the device."""
        if self._held is not None:
            return self._held.index_select(0, self.send(places))
        return self.send(np.take(self.images, places, axis=0))

    def read_ahead(self, places: NDArray[np.int64]) -> None:
        """Has the kernel read these pictures from the disk meanwhile, where the set is larger than memory. Waits for nothing."""
        if self._file is None or not isinstance(self.images, np.memmap):
            return
        size = self.images[0].nbytes
        for place in np.sort(places).tolist():
            os.posix_fadvise(self._file, self.images.offset + place * size, size, os.POSIX_FADV_WILLNEED)

    def send(self, values: NDArray[np.generic]) -> Tensor:
        """A copy on the device, that nothing else writes to; to a GPU it travels from pinned memory while other lines run."""
        tensor = torch.from_numpy(values)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def _fits(images: NDArray[np.uint8], device: torch.device) -> bool:
    return device.type == "cuda" and images.nbytes < HELD_SHARE * torch.cuda.mem_get_info(device)[0]


def _open(images: NDArray[np.uint8]) -> int | None:
    """The file behind the memory map, for as long as the process lives; None where there is none, or no such call."""
    if not isinstance(images, np.memmap) or images.filename is None or not hasattr(os, "posix_fadvise"):
        return None
    return os.open(images.filename, os.O_RDONLY)


def _memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

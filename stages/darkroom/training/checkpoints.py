"""Checkpoints that are whole, verified and never trusted blindly."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from darkroom.files import sha256_file, write_text, written_whole

FINISHED = "finished.pt"


class Checkpoints:
    """One training's checkpoints in a folder of their own: `step-<n>.pt`, then `finished.pt`, each with its sha256 beside.

    Nothing is locked here: hold `files.lock` over the folder for as long as the training lives.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = print, *, keep: int = 2) -> None:
        """`say` is told of each damaged file; `keep` states are kept."""
        self.folder = folder
        self.say = say
        self.keep = keep

    def save(self, state: dict[str, Any], step: int) -> Path:
        """Writes the state whole and keeps the last `keep`. Raises UserError on a full disk, which leaves the earlier ones."""
        path = self.folder / f"step-{step:09d}.pt"
        self._write(path, state)
        for old in self._steps()[self.keep :]:
            _remove(old)
        return path

    def latest(self) -> dict[str, Any] | None:
        """The newest state that is whole, tensors on the CPU; None where there is none."""
        self._clear_leftovers()
        return next((state for path in self._steps() if (state := self._read(path)) is not None), None)

    def finish(self, result: dict[str, Any]) -> None:
        """Keeps a finished training's result and lets its steps go."""
        self._write(self.folder / FINISHED, result)
        for path in self._steps():
            _remove(path)

    def finished(self) -> dict[str, Any] | None:
        """What `finish` kept, tensors on the CPU; None where there is none, or it is damaged."""
        path = self.folder / FINISHED
        return self._read(path) if path.exists() else None

    def clear(self) -> None:
        """Forgets everything, the finished result too."""
        for path in [*self._steps(), self.folder / FINISHED]:
            _remove(path)

    def _steps(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("step-*.pt"), reverse=True)

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        with written_whole(path) as temporary:
            torch.save(content, temporary)
            # before the rename: a checkpoint that is there has its hash
            write_text(_hash_file(path), sha256_file(temporary) + "\n")

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The content, or None with a word where it is damaged: torch.load alone does not notice a flipped bit."""
        fault = "its content does not match its sha256"
        try:
            if _hash_file(path).read_text().strip() == sha256_file(path):
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
                return state
        except FileNotFoundError:
            fault = "its sha256 is missing"
        except pickle.UnpicklingError:  # torch's own text is a page on how to load it all the same
            fault = "it holds more than tensors and plain values"
        except Exception as error:  # torch raises half a dozen kinds: RuntimeError, EOFError, KeyError ...
            fault = (str(error) or type(error).__name__).splitlines()[0]
        self.say(f"{path} is damaged and passed over ({fault})")
        return None

    def _clear_leftovers(self) -> None:
        """Removes what a process killed while saving left behind."""
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        for hash_file in self.folder.glob("step-*.pt.sha256"):
            if not hash_file.with_suffix("").exists():
                hash_file.unlink(missing_ok=True)


def _hash_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _hash_file(path).unlink(missing_ok=True)

"""Whether the file in 8 bits leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from darkroom.exporting.formats import FORMATS

REFERENCE = "onnx"
ROUNDING = 1e-9


def leave_out(folder: Path, numbers: dict[str, Any], absent: Mapping[str, str], max_drop: float) -> None:
    """Removes from `folder` what lost more than `max_drop` of the fp32 file's test accuracy, and notes in `numbers` what stays.

    `absent` are the formats that could not be written, with the reason. Of each format that may be left out, `numbers` gets
    `kept`, and `left_out`, the reason, where it is not.
    """
    for name, form in FORMATS.items():
        if name in absent:
            numbers[name] = {"kept": False, "left_out": absent[name]}
        elif name in numbers and not form.exact:
            lost = numbers[REFERENCE]["accuracy"] - numbers[name]["accuracy"]
            kept = lost <= max_drop + ROUNDING
            numbers[name] |= {"accuracy_drop": round(lost, 9), "kept": kept}
            if not kept:
                (folder / form.file).unlink()
                numbers[name]["left_out"] = (
                    f"{numbers[name]['accuracy']:.2%} of the test pictures right, {REFERENCE} {numbers[REFERENCE]['accuracy']:.2%}: "
                    f"export.int8_max_drop: {max_drop:g} allows less"
                )

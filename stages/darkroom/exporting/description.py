"""What an exported file says of itself: all that a program needs to use it rightly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from darkroom.errors import UserError

FORMAT = 1
EXTRA_FILE = "darkroom.json"
"""the name of the JSON inside a TorchScript or torch.export file"""


@dataclass(frozen=True)
class Description:
    """Stands in the file's metadata: ONNX's metadata_props, the others' extra file `darkroom.json`."""

    classes: list[str]
    """their place is the label"""
    image_size: int
    """pixels a side"""
    channels: int
    """1 (grey) or 3 (RGB)"""
    resize: str
    """crop, pad or stretch: how a picture of another shape becomes square"""
    mean: list[float]
    """a channel, pixels scaled to 0..1; already in the graph, here to be read"""
    std: list[float]
    """a channel, pixels scaled to 0..1; already in the graph, here to be read"""
    temperature: float
    """probabilities are softmax(logits / temperature)"""
    data_sha256: str
    model_sha256: str
    run_id: str
    """MLflow's id of the run that trained it"""
    versions: dict[str, str]
    """of the packages that wrote the file"""

    def texts(self) -> dict[str, str]:
        """Each field as text, as ONNX takes it: text as it is, all else as JSON."""
        values = {"darkroom_format": FORMAT, **asdict(self)}
        return {key: value if isinstance(value, str) else _json(value) for key, value in values.items()}

    def json(self) -> str:
        """All fields as one JSON object."""
        return _json({"darkroom_format": FORMAT, **asdict(self)})

    @classmethod
    def of_texts(cls, texts: Mapping[str, str], file: str) -> Description:
        """What `texts` wrote. Raises UserError, naming `file`, for the metadata of another program or version."""
        if "darkroom_format" not in texts:
            raise UserError(
                f"{file} was not exported by this project: it does not say its classes, picture size and resize rule "
                "(export/model.onnx does; dvc repro export writes it)"
            )
        if texts["darkroom_format"] != str(FORMAT):
            raise UserError(f"{file} was exported by another version of this project: run dvc repro export")
        try:
            return cls(**{name: _value(kind, texts[name]) for name, kind in cls.__annotations__.items()})
        except (KeyError, ValueError) as error:
            raise UserError(f"{file} has damaged metadata ({error}): run dvc repro export") from None


def _value(kind: str, text: str) -> Any:
    return text if kind == "str" else json.loads(text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)

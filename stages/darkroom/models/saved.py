"""models/model.pt: a trained network with all that is needed to use it."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from darkroom.errors import UserError
from darkroom.files import missing, write_bytes
from darkroom.models.layers import load_plain
from darkroom.models.networks import build_network, network_outline
from darkroom.models.spec import NetworkSpec

FORMAT = 1


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the network's input."""

    image_size: int
    """pixels a side"""
    channels: int
    """1 (grey) or 3 (RGB)"""
    resize: str
    """crop, pad or stretch: how a picture of another shape becomes square"""
    mean: list[float]
    """a channel, pixels scaled to 0..1"""
    std: list[float]
    """a channel, pixels scaled to 0..1"""


class Normalize(nn.Module):
    """uint8 (or float 0..255) N×C×H×W to float32 of about zero mean and unit deviation."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        # no part of the weights: they stand in the preprocessing
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.std


class Classifier(nn.Module):
    """uint8 N×C×H×W, as decoded and resized, to logits N×num_classes."""

    def __init__(self, normalize: Normalize, network: nn.Module) -> None:
        super().__init__()
        self.normalize = normalize
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(self.normalize(images))
        return logits


@dataclass(frozen=True)
class SavedModel:
    """A trained network, its classes, its preprocessing, and where it comes from."""

    network: NetworkSpec
    weights: dict[str, Tensor]
    """state dict with plain keys: CPU, contiguous, float32 (counters int64)"""
    classes: list[str]
    """their place is the label"""
    preprocessing: Preprocessing
    temperature: float
    """softmax(logits / temperature) are calibrated probabilities"""
    run_id: str
    """MLflow's id of the run that trained it"""
    data_sha256: str
    made_with: dict[str, str | int]
    """what bit equality depends on: torch version, CPU capability, threads, precision, device"""
    model_sha256: str
    """of all that shapes a prediction: weights, network, classes, preprocessing, temperature"""

    @classmethod
    def of(
        cls,
        *,
        network: NetworkSpec,
        weights: Mapping[str, Tensor],
        classes: list[str],
        preprocessing: Preprocessing,
        temperature: float,
        run_id: str,
        data_sha256: str,
        made_with: dict[str, str | int],
    ) -> SavedModel:
        """The saved model of these values: weights brought to the CPU, plain and contiguous, and hashed."""
        plain = {key: _plain(tensor) for key, tensor in sorted(weights.items())}
        digest = _sha256(network, plain, classes, preprocessing, temperature)
        # str(): torch.__version__ is a class of torch's own, which weights_only refuses
        made = {key: value if isinstance(value, int) else str(value) for key, value in made_with.items()}
        return cls(network, plain, list(classes), preprocessing, temperature, run_id, data_sha256, made, digest)

    def build(self) -> Classifier:
        """The classifier in eval mode: uint8 N×C×H×W to logits float32 N×num_classes; normalises by itself."""
        network = build_network(self.network)
        load_plain(network, self.weights)
        return Classifier(Normalize(self.preprocessing.mean, self.preprocessing.std), network).eval()

    def num_parameters(self) -> int:
        """Trainable weights; buffers such as batch norm's statistics are not counted."""
        return sum(parameter.numel() for parameter in network_outline(self.network).parameters())


def _plain(tensor: Tensor) -> Tensor:
    plain = tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype)
    # a clone lets go of the storage that a view would drag into the file
    return plain.clone(memory_format=torch.contiguous_format)


def _sha256(
    network: NetworkSpec,
    weights: dict[str, Tensor],
    classes: list[str],
    preprocessing: Preprocessing,
    temperature: float,
) -> str:
    described = [network.plain(), classes, asdict(preprocessing), temperature]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for key, tensor in sorted(weights.items()):
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}\0".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def save_model(path: Path, saved: SavedModel) -> None:
    """Writes the file whole. The same content gives the same bytes: no path, no time."""
    plain = _plain_fields(saved)
    # into memory: torch.save names the archive inside after a file that it opens by itself
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **plain, "weights": saved.weights, "sha256": _sha256_plain(plain)}, buffer)
    write_bytes(path, buffer.getvalue())


def _plain_fields(saved: SavedModel) -> dict[str, Any]:
    """All but the weights, as JSON knows it."""
    fields = {name: value for name, value in vars(saved).items() if name != "weights"}
    return {**fields, "network": saved.network.plain(), "preprocessing": asdict(saved.preprocessing)}


def _sha256_plain(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def load_model(path: Path, made_by: str = "dvc repro train") -> SavedModel:
    """The model in `path`. Raises UserError where it is missing, damaged or something else."""
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise missing(path, made_by) from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, no model: name the file in it") from None
    except pickle.UnpicklingError:  # torch's own text is a page on how to load it all the same
        raise UserError(f"{path} is damaged or no model of this project (no plain tensors): run {made_by}") from None
    except Exception as error:  # torch raises half a dozen kinds: RuntimeError, EOFError, KeyError, BadZipFile ...
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is damaged or no model of this project ({first}): run {made_by}") from None
    return _checked(values, path, made_by)


def _checked(values: Any, path: Path, made_by: str) -> SavedModel:
    if not isinstance(values, dict) or "format" not in values:
        raise UserError(f"{path} is no model of this project: run {made_by}, or name a models/model.pt")
    if values.pop("format") != FORMAT:
        raise UserError(f"{path} was written by another version of this project: run {made_by}")
    try:
        stored = values.pop("sha256")
        network, preprocessing = NetworkSpec.of(values["network"]), Preprocessing(**values["preprocessing"])
        saved = SavedModel(**{**values, "network": network, "preprocessing": preprocessing})
        weights_match = saved.model_sha256 == _sha256(
            network, saved.weights, saved.classes, preprocessing, saved.temperature
        )
        whole = weights_match and stored == _sha256_plain(_plain_fields(saved))
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}): run {made_by}") from None
    if not whole:  # torch.load does not notice a flipped bit
        raise UserError(f"{path} is damaged (its content does not match its sha256): run {made_by}")
    return saved

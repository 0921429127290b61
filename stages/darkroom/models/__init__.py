"""Networks by name, and the file that a trained one lives in."""

from darkroom.models.networks import build_network, check_image_size, head_name
from darkroom.models.saved import Classifier, Preprocessing, SavedModel, load_model, save_model
from darkroom.models.spec import NetworkSpec, network_spec

__all__ = [
    "Classifier", "NetworkSpec", "Preprocessing", "SavedModel", "build_network", "check_image_size", "head_name", "load_model",
    "network_spec", "save_model",
]  # fmt: skip

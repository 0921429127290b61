"""Training: plain arguments and frozen dataclasses in, records and weights out. Needs torch and numpy alone."""

from darkroom.training.batches import Pictures
from darkroom.training.checkpoints import Checkpoints
from darkroom.training.devices import choose_device, choose_precision, set_threads
from darkroom.training.recipe import Augmentation, Recipe
from darkroom.training.records import Diverged, EpochRecord, Outcome, PartRecord, StepRecord
from darkroom.training.session import Session
from darkroom.training.starting import Start, start_network
from darkroom.training.world import ALONE, World, join, launched

__all__ = [
    "ALONE", "Augmentation", "Checkpoints", "Diverged", "EpochRecord", "Outcome", "PartRecord", "Pictures", "Recipe", "Session",
    "Start", "StepRecord", "World", "choose_device", "choose_precision", "join", "launched", "set_threads", "start_network",
]  # fmt: skip

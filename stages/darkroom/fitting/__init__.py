"""A training as the train stage runs it: recorded, kept, shown, and turned into a model."""

from darkroom.fitting.loop import Fitting
from darkroom.fitting.trained import Trained

__all__ = ["Fitting", "Trained"]

"""A training as the train stage runs it: recorded, kept, shown, and turned into a model."""

from darkroom.fitting.building import Plan
from darkroom.fitting.debugging import Debugging
from darkroom.fitting.kept import Kept, find_kept, make_room
from darkroom.fitting.loop import Fitting, follow
from darkroom.fitting.parts import Parts
from darkroom.fitting.trained import Trained

__all__ = ["Debugging", "Fitting", "Kept", "Parts", "Plan", "Trained", "find_kept", "follow", "make_room"]

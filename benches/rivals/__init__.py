"""Rivals: what others published to draft with, as engines of the same replay.

The package needs none of them: an engine that is not installed is reported as absent, and one whose
answers are wrong is refused before it is timed.
"""

from rivals.answers import RivalAbsentError, RivalAnswerError, RivalError
from rivals.inputs import RivalInputs
from rivals.names import RIVALS, Rival, entrants

__all__ = [
    "RIVALS",
    "Rival",
    "RivalAbsentError",
    "RivalAnswerError",
    "RivalError",
    "RivalInputs",
    "entrants",
]

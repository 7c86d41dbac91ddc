"""Rivals: what others published to draft with, as engines of the same replay.

The package needs none of them: an engine that is not installed is reported as absent, and one whose
answers are wrong is refused before it is timed.
"""

from specds.bench.rivals.answers import RivalAbsentError, RivalAnswerError, RivalError
from specds.bench.rivals.names import RIVALS, Rival, RivalInputs

__all__ = ["RIVALS", "Rival", "RivalAbsentError", "RivalAnswerError", "RivalError", "RivalInputs"]

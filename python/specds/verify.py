"""Checks of models of transformers for verification, and release of what a model has recorded."""

from specds._lazy import advising
from specds.generation.runner import UnsupportedModelError

with advising():
    from specds.transformers.verify.recordings import release
    from specds.transformers.verify.support import Support, check_model

__all__ = ["Support", "UnsupportedModelError", "check_model", "release"]

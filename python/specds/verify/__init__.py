"""What does the target say of a draft: one forward pass over a token tree, and its KV cache.

Read in this order: `cache`, `inputs`, `generic` (the forward pass over a tree, as any model can do
it), `attention` and `lean_forward` (how a model attends otherwise, and passes with less between its
layers), `static` (rows of a batch in passes of few shapes), `recordings` (these as CUDA graphs),
and `support` (for which models all of this is right). Imports `specds.accept`, since on a device
acceptance is part of the pass.
"""

from specds.verify.cache import TreeCache
from specds.verify.generic import Runner
from specds.verify.inputs import MaskBuilder
from specds.verify.packed import RUNNERS, PackedRunner
from specds.verify.recordings import release
from specds.verify.support import Support, UnsupportedModelError, check_model

__all__ = [
    "RUNNERS",
    "MaskBuilder",
    "PackedRunner",
    "Runner",
    "Support",
    "TreeCache",
    "UnsupportedModelError",
    "check_model",
    "release",
]

"""What does the target say of a draft: one forward pass over a token tree, and its KV cache.

Read in this order: `cache`, `masks`, `runner` (the forward pass over a tree, as any model can do
it), `attention` and `packed_model` (how a model attends otherwise), `packed_runner` (the same for
many sequences, faster), `graphs` (its passes as CUDA graphs), `batched` (a tree as a batch of
rows), and `support` (for which models all of this is right). Imports `specds.accept`, since on a
device acceptance is part of the pass.
"""

from specds.verify.batched import BatchedRunner
from specds.verify.cache import TreeCache
from specds.verify.masks import MaskBuilder
from specds.verify.packed_runner import PackedRunner
from specds.verify.runner import Runner
from specds.verify.runners import RUNNERS
from specds.verify.support import Support, UnsupportedModelError, check_model

__all__ = [
    "RUNNERS",
    "BatchedRunner",
    "MaskBuilder",
    "PackedRunner",
    "Runner",
    "Support",
    "TreeCache",
    "UnsupportedModelError",
    "check_model",
]

"""Verification: one target forward over a token tree, its KV cache, and what is accepted.

Read in this order: `cache`, `masks`, `runner` (the forward pass over a tree), `attention` and
`batched` (the same as a batch of rows), `accept` (what is emitted), and `support` (for which
models all of this is right).
"""

from specds.verify.accept import Emitter, Sampler, accept_greedy, walk
from specds.verify.batched import RUNNERS, BatchedRunner
from specds.verify.cache import TreeCache
from specds.verify.masks import MaskBuilder
from specds.verify.runner import Runner
from specds.verify.support import Support, UnsupportedModelError, check_model

__all__ = [
    "RUNNERS",
    "BatchedRunner",
    "Emitter",
    "MaskBuilder",
    "Runner",
    "Sampler",
    "Support",
    "TreeCache",
    "UnsupportedModelError",
    "accept_greedy",
    "check_model",
    "walk",
]

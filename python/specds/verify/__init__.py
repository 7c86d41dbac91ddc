"""Verification: one target forward over a token tree, its KV cache, and what is accepted.

Read in this order: `cache`, `masks`, `runner` (the forward pass over a tree, as any model can do
it), `attention` and `twin` (how a model attends otherwise), `fast` (the same for many sequences,
faster), `batched` (a tree as a batch of rows), `accept` (what is emitted), and `support` (for
which models all of this is right).
"""

from specds.verify.accept import Emitter, Sampler, accept_drawn, accept_greedy, walk
from specds.verify.batched import BatchedRunner
from specds.verify.cache import TreeCache
from specds.verify.fast import FastRunner
from specds.verify.masks import MaskBuilder
from specds.verify.runner import Runner
from specds.verify.runners import RUNNERS
from specds.verify.support import Support, UnsupportedModelError, check_model

__all__ = [
    "RUNNERS",
    "BatchedRunner",
    "Emitter",
    "FastRunner",
    "MaskBuilder",
    "Runner",
    "Sampler",
    "Support",
    "TreeCache",
    "UnsupportedModelError",
    "accept_drawn",
    "accept_greedy",
    "check_model",
    "walk",
]

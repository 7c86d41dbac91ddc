"""Verification of a draft by the target: one forward pass over a token tree, and its KV cache.

Read in this order: `runner` (what the decoding loop calls, without torch), `cache`, `inputs`,
`generic` (a pass over a tree by any model), `attention` and `fused_forward` (our own attention, and
a forward with less Python between the layers), `packed` (all rows as one sequence, in passes of few
shapes), `native` (the core on a CPU, without torch), `in_place` (the same for models of
transformers), `recordings` (passes as CUDA graphs), `states`, `few_tokens` and `chain` (models with
recurrent layers), and `support` (the models that can be verified). Imports `specds.accept`, since
on a device acceptance is part of the pass.
"""

from typing import TYPE_CHECKING

from specds._lazy import lazy

if TYPE_CHECKING:
    from specds.verify.cache import TreeCache
    from specds.verify.generic import Runner
    from specds.verify.inputs import MaskBuilder
    from specds.verify.packed import RUNNERS, PackedRunner
    from specds.verify.recordings import release
    from specds.verify.runner import UnsupportedModelError, Verifier
    from specds.verify.support import Support, check_model

__all__ = [
    "RUNNERS",
    "MaskBuilder",
    "PackedRunner",
    "Runner",
    "Support",
    "TreeCache",
    "UnsupportedModelError",
    "Verifier",
    "check_model",
    "release",
]

__getattr__ = lazy(
    __name__, "runner", "cache", "generic", "inputs", "packed", "recordings", "support"
)

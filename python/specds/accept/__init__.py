"""Acceptance of drafted tokens: the target's own choices, as far as the tree contains them.

`path` follows them through a tree. `on_host` chooses tokens by the processors of transformers,
`on_device` where the logits are, and `on_arrays` without torch. The first two sample by `draws`.
Imports `specds.drafters.session`; knows no model and no cache.
"""

from typing import TYPE_CHECKING

from specds._lazy import lazy
from specds.accept.path import walk

if TYPE_CHECKING:
    from specds.accept.on_host import Emitter, Sampler

__all__ = ["Emitter", "Sampler", "walk"]

__getattr__ = lazy(__name__, "on_host")

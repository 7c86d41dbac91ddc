"""Acceptance of drafted tokens: the target's own choices, as far as the tree contains them.

`on_host` accepts on the host, `on_device` where the logits are. Both sample by `draws`. Imports
`specds.drafters.session`; knows no model and no cache.
"""

from specds.accept.on_host import Emitter, Sampler, walk

__all__ = ["Emitter", "Sampler", "walk"]

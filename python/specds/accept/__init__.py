"""Which tokens are emitted: the target's own, for as long as the tree has drafted them.

`on_host` accepts on the host, `on_device` where the logits are, both by `draws`. Imports
`specds.drafters.session`; knows no model and no cache.
"""

from specds.accept.on_host import Emitter, Sampler, walk

__all__ = ["Emitter", "Sampler", "walk"]

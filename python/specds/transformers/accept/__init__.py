"""Acceptance of drafted tokens: the target's own choices, as far as the tree contains them.

`on_host` chooses tokens by the processors of transformers, `on_device` where the logits are; both
sample by `draws`. Knows no model and no cache.
"""

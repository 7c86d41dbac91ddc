"""Datastores shared over the Hugging Face hub: pulled once, checked before they are used.

A name such as ``org/name`` stands wherever a folder does; a folder of that name goes first.
"""

from specds.hub.download import locate, pull
from specds.hub.names import named_datastore
from specds.hub.upload import push

__all__ = ["locate", "named_datastore", "pull", "push"]

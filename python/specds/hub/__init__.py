"""Datastores on the Hugging Face hub: downloads, checks and uploads.

A name such as ``org/name`` can replace the path of a folder; a local folder of that name takes
precedence.
"""

from specds.hub.download import locate, pull
from specds.hub.names import named_datastore
from specds.hub.upload import push

__all__ = ["locate", "named_datastore", "pull", "push"]

"""Hierarchies: small models draft for larger ones, a datastore for the smallest (HSDDW and beyond).

Read in this order: `text` (tokens on trial), `cached_model` (a model that takes tokens back),
`draft` (what is handed up), `levels` (drafting is verifying the level beneath), `session` (the
chain of one request), `choice` (which levels earn their time), `drafter`. The rule by which a
sampled token is accepted is `specds.verify.rejection`.
"""

from specds.hierarchy.config import ABLATIONS, HierarchyConfig
from specds.hierarchy.drafter import HierarchyDrafter
from specds.hierarchy.session import HierarchySession

__all__ = ["ABLATIONS", "HierarchyConfig", "HierarchyDrafter", "HierarchySession"]

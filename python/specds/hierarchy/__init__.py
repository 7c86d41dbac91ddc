"""Hierarchies: small models draft for larger ones, a datastore for the smallest (HSDDW and beyond).

Read in this order: `config`, `text` (tokens on trial), `draft` (what is handed up), `levels`
(drafting is verifying the level beneath), `drafter` (the chain of one request). The rule by which a
sampled token is accepted is `specds.accept.draws`. Names alone need no torch. Imports
`specds.accept` and what lies below it, as `specds.generation` does, and not that.
"""

from typing import TYPE_CHECKING

from specds._lazy import lazy
from specds.hierarchy.config import ABLATIONS, HierarchyConfig, HierarchyName

if TYPE_CHECKING:
    from specds.hierarchy.drafter import HierarchyDrafter, HierarchySession

__all__ = ["ABLATIONS", "HierarchyConfig", "HierarchyDrafter", "HierarchyName", "HierarchySession"]

__getattr__ = lazy(__name__, "drafter")

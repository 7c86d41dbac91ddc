"""The options of a request, for `generate`, `accelerate`, `Chat` and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from specds._core import Datastore, Session
from specds.drafters.fused import FusedDrafter
from specds.drafters.registry import KINDS
from specds.drafters.session import Drafter, own_max_nodes
from specds.drafters.step import Step
from specds.generation.budget import require_max_nodes
from specds.generation.runner import Verification, require_verification

DrafterLike: TypeAlias = Drafter | Datastore | str | PathLike[str] | None
"""A drafter, or a datastore, its path or None for a `FusedDrafter`."""


class UnsupportedRequestError(ValueError):
    """A request has an argument that drafts cannot serve; the message names it."""


class DraftOptions(TypedDict, total=False):
    """The options that `specds.generate`, which documents them, and `accelerate` have."""

    max_nodes: int | Literal["auto"]
    verification: Verification
    check_model: bool
    synchronize_timings: bool
    stream_interval: int | None
    shape_invariant: bool
    on_step: Callable[[Step], object] | None
    grammar: Any


@dataclass(frozen=True)
class Options:
    """The options of a request, with their defaults."""

    drafter: Drafter
    max_nodes: int | Literal["auto"] = "auto"
    verification: Verification = "auto"
    check_model: bool = True
    synchronize_timings: bool = False
    stream_interval: int | None = None
    shape_invariant: bool = False
    on_unsupported: str = "refuse"
    on_step: Callable[[Step], object] | None = None
    on_prefill: Callable[[int, int], object] | None = None
    session: Session | None = None
    grammar: Any = None

    @classmethod
    def of(cls, drafter: DrafterLike, **options: Any) -> Options:
        """Return the options with a drafter, a `FusedDrafter` for a datastore or None."""
        if isinstance(drafter, str) and drafter in KINDS and not Path(drafter).exists():
            raise ValueError(
                f"drafter must be a drafter or a datastore, and `{drafter}` is a name of the "
                "command line: make a drafter, such as `specds.FusedDrafter()`"
            )
        if drafter is None or isinstance(drafter, (str, PathLike, Datastore)):
            drafter = FusedDrafter(drafter)
        if not hasattr(drafter, "session"):
            kind = type(drafter).__name__
            raise TypeError(f"expected a drafter, a datastore or the path of one, got {kind}")
        return cls(drafter, **options)

    @property
    def num_nodes(self) -> int | Literal["auto"]:
        """Maximum nodes of a draft: the drafter's own number where the option is `auto`."""
        return own_max_nodes(self.drafter, self.max_nodes)

    def __post_init__(self) -> None:
        require_max_nodes(self.max_nodes)
        require_verification(self.verification)
        if self.on_unsupported not in ("refuse", "baseline"):
            got = repr(self.on_unsupported)
            raise ValueError(f"on_unsupported must be 'refuse' or 'baseline', got {got}")
        if self.shape_invariant and self.num_nodes == "auto":
            raise ValueError("shape_invariant=True requires an integer max_nodes")
        if self.stream_interval is None:
            return
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval must be at least 1, got {self.stream_interval}")
        if self.num_nodes == "auto":
            raise ValueError(
                "stream_interval requires an integer max_nodes: 'auto' reveals how much of a text "
                "is drafted"
            )

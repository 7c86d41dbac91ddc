"""Interface of verification backends, without torch: what the decoding loop calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specds._core import TokenTree, likeliest


class UnsupportedModelError(ValueError):
    """Drafts cannot be verified on this model; the message says why."""


class Verifier:
    """One request's forward passes: call `prefill_rows` once, then verify and commit alternately.

    Attributes:
        name: The backend's name; a class without one is known by its own.
        node_steps: Numbers of nodes that passes can have, up to 63; empty for any number.
        accepts: Whether the backend also accepts, by `launch` (see `PackedRunner`).
        least_nodes: Rows are padded to this number of nodes, so that the time of a pass does not
            depend on a tree.
        takes_trees: Whether drafts may have branches; otherwise they are chains.
        num_seen: Slots that each pass sees; 0 for as many as it needs.
        reason: Why passes were slower than they could be; set when the runner is closed.
        setting: Key of the times of a pass, apart from model and shape.
        token_cost: Cost of a further token over a pass of one, from which automatic draft sizes
            begin; None if it differs too much between devices.
        on_prefill: Called with the tokens of the prompts that are read and with all of them: first
            with 0, then after each part. An exception ends the request.
    """

    name = ""
    node_steps: tuple[int, ...] = ()
    accepts = False
    takes_trees = True
    least_nodes = 0
    num_seen = 0
    reason = ""
    setting: tuple[Any, ...] = ()
    token_cost: float | None = None
    on_prefill: Callable[[int, int], object] | None = None

    def __init__(
        self, model: Any, *, prompt_length: int, max_length: int, max_nodes: int, num_rows: int = 1
    ) -> None:
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        cls.name = vars(cls).get("name", cls.__name__)

    @classmethod
    def is_shape_invariant(cls, model: Any) -> bool:
        """Return whether `fix_shape` makes rounding independent of drafts, for a single row."""
        return False

    def fix_shape(self, num_nodes: int, num_slots: int) -> None:
        """Give all passes over trees one shape; do nothing if rounding does not depend on it."""

    def prefill_rows(self, prompts: Sequence[Any], chunk_size: int | None = None) -> Any:
        """Run the prompts through the model, equal prompts once.

        Args:
            prompts: int64 `(1, prompt_length)` for each row, with at least one token more than the
                cache holds of the row. Tokens in the cache are not computed again.
            chunk_size: Tokens of a row in each pass; None for the backend's own number.

        Returns:
            The logits after the last token of each row, `(num_rows, vocab_size)`.
        """
        raise NotImplementedError

    def report_prefill(self, num_read: int, num_tokens: int) -> None:
        """Report how much of the prompts is read."""
        if self.on_prefill is not None:
            self.on_prefill(num_read, num_tokens)

    def verify_rows(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> list[Any]:
        """Run the last emitted token of each row and its tree through the model, in one pass.

        The states of all tokens before the last ones are in the cache.

        Returns:
            For each row, logits `(1 + num_nodes, vocab_size)`: row 0 after the last token, row
            ``1 + i`` after node `i` of the tree.
        """
        raise NotImplementedError

    def commit_rows(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, in each row, the states of the last token and of the nodes of a path."""
        raise NotImplementedError

    def likeliest(
        self, logits: Sequence[Any], num_predictions: int, known_tokens: int
    ) -> NDArray[np.int64]:
        """Return the likeliest known tokens at all places of all rows, `(num_places, number)`."""
        # One call for all rows: six together take as long as one alone.
        joined = np.concatenate(logits) if len(logits) > 1 else logits[0]
        return likeliest(joined[:, :known_tokens], num_predictions)

    def pass_times(self) -> Sequence[tuple[int, float]]:
        """Return the tokens and the seconds of passes that were measured before the request."""
        return ()

    @property
    def lengths(self) -> list[int]:
        """The committed tokens of each row."""
        raise NotImplementedError

    @property
    def waiting(self) -> list[int]:
        """The tokens of each row that the next pass feeds again."""
        return [0] * len(self.lengths)

    def room(self, row: int) -> int:
        """The most depth of a row's next draft."""
        return sys.maxsize

    def load(self, past: Any) -> None:
        """Give the only row of a new runner the states of a cache of the caller, mostly a copy."""
        raise NotImplementedError

    def extend(self, past: Any) -> Any:
        """Append to the cache of `load` the states that only the runner has, and return it."""
        raise NotImplementedError

    def committed(self) -> Any:
        """Return the states of the only row in a cache of the model."""
        raise NotImplementedError

    def rehearse(self, token_ids: Sequence[int], trees: Sequence[TokenTree]) -> list[Any]:
        """Run `verify_rows`, to measure it, and leave the cache as it was."""
        return self.verify_rows(token_ids, trees)

    def leave(self, row: int) -> None:
        """End a row; the last one gets its number."""
        raise NotImplementedError

    def close(self) -> None:
        """End the request, and leave reusable resources to the next one."""


Verification: TypeAlias = "str | type[Verifier]"
"""Verification backend: one of `NAMES`, or a class like these."""

NAMES = ("packed", "model", "chain", "native")
"""The names of the backends."""


def require_verification(
    verification: Verification, names: Collection[str] = ("auto", *NAMES)
) -> None:
    """Raise a ValueError if `verification` is not a backend."""
    if isinstance(verification, str) and verification not in names:
        known = " or ".join(map(repr, names))
        raise ValueError(f"verification must be {known}, got {verification!r}")

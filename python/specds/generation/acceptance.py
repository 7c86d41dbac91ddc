"""Acceptance along a path of the tree, for all samplers; without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from specds._core import TokenTree
from specds.drafters.session import Proposal

if TYPE_CHECKING:
    from torch import Tensor


class Emits(Protocol):
    """Appends, tests and streams each emitted token of a row.

    Attributes:
        emitted: The emitted tokens.
        finished: Whether the sequence has ended.
    """

    emitted: list[int]
    finished: bool

    @property
    def token_ids(self) -> Any:
        """All tokens, int64 `(1, length)`."""
        ...

    @property
    def length(self) -> int:
        """Number of tokens, prompt included."""
        ...

    def emit(self, token: int) -> int: ...


class Chooses(Protocol):
    """Chooses the next token of a row.

    Attributes:
        is_argmax: Whether a call only computes the argmax of the logits.
        logits_only: Whether choices depend only on logits and noise, so that a device can make
            them.
    """

    is_argmax: bool
    logits_only: bool

    def __call__(self, emitter: Any, logits: Any, proposal: Proposal | None = None) -> int:
        """Return the token after those of the emitter, given `logits`, `(vocab_size,)`."""
        ...


class PassRequest(NamedTuple):
    """Output of a forward pass: the sampler's choices, and the likeliest tokens at each place.

    Attributes:
        sampler: Chooses the tokens.
        num_predictions: Likeliest tokens to return at each place.
        known_tokens: The drafter's vocabulary; predictions contain no other tokens.
        noise: See `Sampler.sample_all`.
    """

    sampler: Any
    num_predictions: int = 0
    known_tokens: int = 0
    noise: Tensor | None = None


def walk(
    logits: Any,
    tree: TokenTree,
    emitter: Any,
    choose: Callable[..., int],
    proposals: Mapping[int, Proposal] | None = None,
) -> list[int]:
    """Emit the target's own choices along a path of the tree, until the tree lacks one.

    The chosen token that no child has is itself the bonus token: a second draw would prefer tokens
    that the tree lacks. `choose` is hence called exactly as often and with the same prefixes as by
    the baseline.

    Args:
        logits: `(1 + num_nodes, vocab_size)`, after the context and after each node.
        tree: The draft.
        emitter: An `Emitter`, or an object with its `emit` and `finished`.
        choose: Returns the next token; its arguments are those of a `Sampler`.
        proposals: Those of the draft, by the node that they follow (-1: the context).

    Returns:
        The accepted nodes, root to leaf. If a stop falls on one, no bonus token is emitted.
    """
    known, path, node = proposals or {}, list[int](), -1
    while True:
        token = emitter.emit(choose(emitter, logits[node + 1], known.get(node)))
        child = tree.child(node, token)
        if child is None:
            return path
        path.append(node := child)
        if emitter.finished:
            return path

"""What a drafter is: it opens a session for a request, and the session drafts token trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import LogitsProcessorList, PreTrainedModel

    from specds._core import DraftSession, TokenTree
    from specds.verify.rejection import Proposal


@runtime_checkable
class Session(Protocol):
    """One request as a drafter sees it: draft, observe what was accepted, again until finish."""

    def draft(self, max_nodes: int) -> TokenTree:
        """Drafts at most `max_nodes` nodes that continue the context, best nodes first.

        Node parents of -1 continue the last token of the context. An empty tree is a valid draft.
        """
        ...

    def observe(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Appends the tokens that the target model emitted (accepted ones and the bonus token)."""
        ...

    def finish(self) -> None:
        """Ends the request. Called once, also when generation fails."""
        ...


@runtime_checkable
class RecyclingSession(Session, Protocol):
    """A session that also wants to know what the target predicts at every node of a draft."""

    @property
    def num_predictions(self) -> int:
        """How many of the target's likeliest tokens it wants to know; 0 where none."""
        ...

    def recycle(self, tree: TokenTree, predictions: np.ndarray) -> None:
        """Takes what the target predicts, before `observe` tells what it emitted.

        Args:
            tree: The draft that was verified.
            predictions: int64 `(1 + num_nodes, num_predictions)`, likeliest first: row 0 after the
                context, row ``1 + i`` after node `i`, whether it was accepted or not.
        """
        ...


@dataclass(frozen=True)
class RequestRules:
    """How the target chooses its tokens in one request.

    Attributes:
        model: The target.
        logits_processor: The processors that transformers made for the request.
        do_sample: Whether tokens are sampled; the likeliest are taken otherwise.
        max_length: The most tokens of the request, prompt included.
        eos_token_ids: The tokens that end it.
    """

    model: PreTrainedModel
    logits_processor: LogitsProcessorList
    do_sample: bool
    max_length: int
    eos_token_ids: frozenset[int]


@runtime_checkable
class ProposingSession(Session, Protocol):
    """A session that samples tokens of distributions of its own, as models that draft do.

    It may also have an attribute `level_stats`, which goes into `GenerationStats.levels`.
    """

    def join(self, rules: RequestRules) -> None:
        """Takes the rules of the request, once, before anything else.

        Raises:
            ValueError: This session cannot draft for that target.
        """
        ...

    @property
    def proposals(self) -> Mapping[int, Proposal]:
        """The sampled tokens of the last draft, by the node that they follow (-1: the context)."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Shared by requests, one session each.

    A drafter may have an attribute `max_nodes`: the node budget of its drafts unless the caller
    names one (see `node_budget`).
    """

    @property
    def vocab_size(self) -> int | None:
        """One more than the largest token id it can draft; None where that is not known."""
        ...

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        """Starts a request with its prompt, a non-empty sequence of token ids."""
        ...


def begin(session: DraftSession, prompt_ids: Sequence[int] | np.ndarray) -> DraftSession:
    """Gives a session of the core its prompt.

    Raises:
        ValueError: The prompt is empty or holds an id outside the vocabulary.
    """
    if len(prompt_ids) == 0:
        raise ValueError("the prompt is empty: give at least one token")
    session.observe(prompt_ids)
    return session


def node_budget(drafter: Drafter, max_nodes: int | None, otherwise: int = 64) -> int:
    """The most nodes of a draft: what the caller says, else the drafter, else `otherwise`."""
    if max_nodes is not None:
        return max_nodes
    own: int | None = getattr(drafter, "max_nodes", None)
    return otherwise if own is None else own


def within(tree: TokenTree, max_nodes: int, max_depth: int) -> TokenTree:
    """The tree up to its first node that is beyond the budget or deeper than `max_depth`."""
    num_nodes = min(len(tree), max_nodes)
    if num_nodes > max_depth:
        too_deep = np.flatnonzero(tree.depths()[:num_nodes] > max_depth)
        num_nodes = int(too_deep[0]) if len(too_deep) else num_nodes
    return tree if num_nodes == len(tree) else tree.prefix(num_nodes)

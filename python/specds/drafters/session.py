"""What a drafter is: it opens a session for a request, and the session drafts token trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import torch
    from transformers import LogitsProcessorList, PreTrainedModel

    from specds._core import DraftSession, TokenTree


@runtime_checkable
class Session(Protocol):
    """One request as a drafter sees it: draft, observe what was accepted, again until finish."""

    def draft(self, max_nodes: int) -> TokenTree:
        """Drafts at most `max_nodes` nodes that continue the context, best nodes first.

        Node parents of -1 continue the last token of the context. An empty tree is a valid draft.
        """
        ...

    def observe(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Appends what the target model emitted since the last call: accepted and bonus tokens.

        Called before the next draft, or the end: where none is made for some steps, once for all.
        """
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

        Not called where there is no draft in the next step, as in pauses of an automatic budget.

        Args:
            tree: The draft that was verified.
            predictions: int64 `(1 + num_nodes, num_predictions)`, likeliest first: row 0 after the
                context, row ``1 + i`` after node `i`, whether it was accepted or not.
        """
        ...


@runtime_checkable
class TrialSession(Session, Protocol):
    """A session that also drafts after tokens which nobody has verified, as hierarchies want it."""

    def draft_after(self, token_ids: Sequence[int] | np.ndarray, max_nodes: int) -> TokenTree:
        """Drafts as `draft` would if these tokens had been observed, and stays as it is."""
        ...


@dataclass(frozen=True)
class Proposal:
    """A drafted token and the distribution that it was sampled from.

    Attributes:
        token_id: The token.
        probs: float `(vocab_size,)`, the distribution, as really sampled from.
    """

    token_id: int
    probs: torch.Tensor


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

    A drafter may have an attribute `max_nodes`: what it takes the budget `auto` to be, such as the
    size of a draft that its paper states (see `node_budget`).
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


def node_budget(drafter: Drafter, budget: int | Literal["auto"]) -> int | Literal["auto"]:
    """The nodes of a draft: `auto` is the drafter's own number where it names one."""
    own: int | None = getattr(drafter, "max_nodes", None)
    return own if budget == "auto" and own is not None else budget


def within(tree: TokenTree, max_nodes: int, max_depth: int) -> TokenTree:
    """The first `max_nodes` nodes of those of a tree that are not deeper than `max_depth`."""
    if len(tree) > max_depth and tree.depths().max() > max_depth:
        tree = tree.up_to_depth(max_depth)
    return tree if len(tree) <= max_nodes else tree.prefix(max_nodes)

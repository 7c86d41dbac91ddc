"""What a drafter is: it opens a session for a request, which drafts token trees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from specds._core import Datastore, DraftSession, TokenTree
from specds.stats import LevelStats

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessorList, PreTrainedModel


@dataclass(frozen=True)
class Proposal:
    """A drafted token, and the distribution `(vocab_size,)` that it was sampled from."""

    token_id: int
    probs: torch.Tensor


@dataclass(frozen=True)
class RequestRules:
    """How the target chooses its tokens in one request.

    Attributes:
        logits_processor: The processors that transformers made for the request.
        max_length: The most tokens of the request, prompt included.
    """

    model: PreTrainedModel
    logits_processor: LogitsProcessorList
    do_sample: bool
    max_length: int
    eos_token_ids: frozenset[int]


class Session(ABC):
    """One request of a drafter: draft, observe what was emitted, again until finish.

    A session implements `draft` and `observe`; all other methods do nothing by default.
    """

    @property
    def proposes(self) -> bool:
        """Whether it samples its tokens, as draft models do, and so has `proposals`."""
        return False

    @property
    def proposals(self) -> Mapping[int, Proposal]:
        """The sampled tokens of the last draft, by the node that they follow (-1: the context)."""
        return {}

    @property
    def num_predictions(self) -> int:
        """How many of the target's likeliest tokens `observe_predictions` uses."""
        return 0

    @property
    def level_stats(self) -> Mapping[str, LevelStats]:
        """The entries of `GenerationStats.levels`."""
        return {}

    @property
    def match_length(self) -> int | None:
        """How many tokens of the context the last draft matched; None if unknown."""
        return None

    @abstractmethod
    def draft(
        self, max_nodes: int, max_depth: int | None = None, min_gain: float = 0.0
    ) -> TokenTree:
        """Drafts at most `max_nodes` nodes that continue the context, best first.

        A parent of -1 is the last token of the context. The tree may be empty.

        Args:
            max_depth: The caller drops deeper nodes; children of the context have depth 1.
            min_gain: Nodes of a lower probability do not pay.
        """

    @abstractmethod
    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        """Appends what the target emitted since the last call: accepted and bonus tokens.

        Called after every step of the target, with or without a draft.

        Args:
            num_verified: How many nodes of the last draft, the first ones, were verified; None:
                all.
        """

    def draft_after(self, token_ids: Sequence[int] | np.ndarray, max_nodes: int) -> TokenTree:
        """Drafts as if these tokens had been observed, and stays as it is; empty if it cannot."""
        return EMPTY_TREE

    def suggest(
        self,
        token_ids: Sequence[int] | np.ndarray,
        parents: Sequence[int] | np.ndarray | None = None,
        probs: Sequence[float] | np.ndarray | None = None,
    ) -> bool:
        """Takes a suggestion from outside for what follows the context.

        Args:
            token_ids: A tree, or a chain without `parents`.
            parents: As those of a `TokenTree`.
            probs: The probability of each token after its parent; 1 by default.

        Returns:
            Whether the session uses suggestions.
        """
        return False

    def set_step_time(self, step_seconds: float) -> None:
        """Takes the time of a plain step of the target."""

    def observe_predictions(self, tree: TokenTree, predictions: np.ndarray) -> None:
        """Takes what the target predicts, before `observe`; not in steps before a pause.

        Args:
            predictions: int64 `(1 + num_nodes, num_predictions)`, likeliest first: row 0 after the
                context, row ``1 + i`` after node `i`, accepted or not.
        """

    def join(self, rules: RequestRules) -> None:
        """Takes the rules of the request, once, before anything else.

        Raises:
            ValueError: This session cannot draft for that target.
        """

    def finish(self) -> None:
        """Ends the request; called once, also when generation fails."""


EMPTY_TREE = TokenTree([], [])
"""The draft of no nodes."""


class Silence(Session):
    """Drafts nothing: while the last token of the context is outside the vocabulary."""

    def draft(self, *_: Any, **__: Any) -> TokenTree:
        return EMPTY_TREE

    def observe(self, *_: Any) -> None:
        """As `Session.observe`."""


# Sessions of the core are sessions: what they lack is that of the base class.
Session.register(DraftSession)
for _name in ("proposes", "proposals", "level_stats", "join"):
    setattr(DraftSession, _name, getattr(Session, _name))


@runtime_checkable
class Drafter(Protocol):
    """Opens a session for each request; shared by all of them.

    An attribute `max_nodes`, if there is one, is the number of nodes for the budget `auto`, such as
    the size of a draft in a paper.
    """

    @property
    def vocab_size(self) -> int | None:
        """One more than the largest token id it can draft; None if unknown."""
        ...

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        """Starts a request with its prompt, a non-empty sequence of token ids."""
        ...


class DrafterOf:
    """Base class of drafters that wrap another drafter."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    @property
    def vocab_size(self) -> int | None:
        return self.drafter.vocab_size

    @property
    def max_nodes(self) -> int | None:
        return getattr(self.drafter, "max_nodes", None)


def opened(datastore: Datastore | str | PathLike[str]) -> Datastore:
    return datastore if isinstance(datastore, Datastore) else Datastore.open(datastore)


def begin(session: DraftSession, prompt_ids: Sequence[int] | np.ndarray) -> DraftSession:
    """Gives a new session of the core its prompt."""
    if len(prompt_ids) == 0:
        raise ValueError("the prompt is empty: give at least one token")
    session.observe(prompt_ids)
    return session


class CoreDrafter:
    """A drafter whose sessions are the core's. Safe to share by threads.

    Args:
        start: Makes a session without its prompt. It is called here once, so that a configuration
            that no request could use is refused at once.
        vocab_size: As that of any drafter.
        max_nodes: The size of a draft by its configuration, if there is one.
    """

    def __init__(
        self, start: Callable[[], DraftSession], vocab_size: int | None, max_nodes: int | None
    ) -> None:
        self._start, self.vocab_size, self.max_nodes = start, vocab_size, max_nodes
        start()

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> DraftSession:
        """Starts a request.

        Raises:
            ValueError: The prompt is empty or holds an id outside the vocabulary.
        """
        return begin(self._start(), prompt_ids)


def node_budget(drafter: Drafter, budget: int | Literal["auto"]) -> int | Literal["auto"]:
    """The budget; `auto` becomes the drafter's `max_nodes` if it has one."""
    own: int | None = getattr(drafter, "max_nodes", None)
    return own if budget == "auto" and own is not None else budget


def within(tree: TokenTree, max_nodes: int, max_depth: int) -> TokenTree:
    """The first `max_nodes` nodes of those of a tree that are not deeper than `max_depth`."""
    if len(tree) > max_depth and tree.depths().max() > max_depth:
        tree = tree.up_to_depth(max_depth)
    return tree if len(tree) <= max_nodes else tree.prefix(max_nodes)

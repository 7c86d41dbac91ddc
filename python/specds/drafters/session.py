"""What is a drafter? It opens a `Session` for each request, which drafts token trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from specds._core import Datastore, DraftSession, Session, TokenTree

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


EMPTY_TREE = TokenTree([], [])
"""The draft of no nodes."""


@runtime_checkable
class Drafter(Protocol):
    """Opens a session for each request; shared by all of them.

    An attribute `max_nodes`, if there is one, is what `auto` stands for: a paper's size of a draft.
    """

    @property
    def vocab_size(self) -> int | None:
        """One more than the largest token id it can draft; None if unknown."""
        ...

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        """Starts a request with its prompt, a non-empty sequence of token ids."""
        ...


def opened(datastore: Datastore | str | PathLike[str]) -> Datastore:
    return datastore if isinstance(datastore, Datastore) else Datastore(datastore)


def with_prompt(session: DraftSession, prompt_ids: Sequence[int] | np.ndarray) -> DraftSession:
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
        return with_prompt(self._start(), prompt_ids)


def own_max_nodes(drafter: Drafter, max_nodes: int | Literal["auto"]) -> int | Literal["auto"]:
    """The number of nodes; `auto` becomes the drafter's `max_nodes` if it has one."""
    own: int | None = getattr(drafter, "max_nodes", None)
    return own if max_nodes == "auto" and own is not None else max_nodes

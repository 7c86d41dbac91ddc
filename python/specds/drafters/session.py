"""Interface of drafters: a drafter opens a `Session` for each request, which drafts trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from specds._core import Datastore, DraftSession, ModelTables, Session, TokenTree
from specds._lazy import advising

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessorList, PreTrainedModel


@dataclass(frozen=True)
class Proposal:
    """Drafted token, and the distribution `(vocab_size,)` that it was sampled from."""

    token_id: int
    probs: torch.Tensor


@dataclass(frozen=True)
class RequestRules:
    """Rules by which the target chooses its tokens in one request.

    Attributes:
        logits_processor: Processors that transformers made for the request.
        max_length: Maximum tokens of the request, prompt included.
    """

    model: PreTrainedModel
    logits_processor: LogitsProcessorList
    do_sample: bool
    max_length: int
    eos_token_ids: frozenset[int]


EMPTY_TREE = TokenTree([], [])
"""Draft without nodes."""


@runtime_checkable
class Drafter(Protocol):
    """Drafter that opens a session for each request.

    An optional attribute `max_nodes` is the draft size of requests with `auto`.
    """

    @property
    def vocab_size(self) -> int | None:
        """Return the largest token id it can draft, plus one; None if unknown."""
        ...

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        """Start a request with its prompt, a non-empty sequence of token ids."""
        ...


def opened(datastore: Datastore | str | PathLike[str]) -> Datastore:
    return datastore if isinstance(datastore, Datastore) else Datastore(datastore)


def with_prompt(session: DraftSession, prompt_ids: Sequence[int] | np.ndarray) -> DraftSession:
    """Pass the prompt to a new session of the core."""
    if len(prompt_ids) == 0:
        raise ValueError("the prompt is empty: pass at least one token")
    session.observe(prompt_ids)
    return session


class CoreDrafter:
    """Drafter whose sessions are the core's; threads can share it.

    Args:
        start: Makes a session without its prompt. The constructor calls it once, so that an invalid
            configuration fails early.
        vocab_size: Vocabulary size, or None.
        max_nodes: Configured draft size, if any.
    """

    def __init__(
        self, start: Callable[[], DraftSession], vocab_size: int | None, max_nodes: int | None
    ) -> None:
        self._start, self.vocab_size, self.max_nodes = start, vocab_size, max_nodes
        start()

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> DraftSession:
        """Start a request.

        Raises:
            ValueError: The prompt is empty or holds an id outside the vocabulary.
        """
        return with_prompt(self._start(), prompt_ids)


def own_max_nodes(drafter: Drafter, max_nodes: int | Literal["auto"]) -> int | Literal["auto"]:
    """Return the number of nodes; `auto` becomes the drafter's `max_nodes` if it has one."""
    own: int | None = getattr(drafter, "max_nodes", None)
    return own if max_nodes == "auto" and own is not None else max_nodes


def tables_of(
    model: PreTrainedModel | ModelTables,
    k: int = 25,
    progress: Callable[[str, int, int], Any] | None = None,
) -> ModelTables:
    """Return the tables of a model, with `k` next tokens of each; see `load_tables`."""
    if isinstance(model, ModelTables):
        return model
    with advising():
        from specds.transformers.model_tables import load_tables
    return load_tables(model, k, progress=progress)

"""The fused drafter: one tree of all sources, mixed by what each has been worth so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from specds._core import (
    DEFAULTS,
    SOURCES,
    Datastore,
    DraftSession,
    FusedState,
    Memory,
    ModelTables,
    Session,
)
from specds.drafters.session import Drafter, opened, with_prompt
from specds.models.tokenization import Tokenizer, check_tokenizer, fingerprint, vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Effort: TypeAlias = Literal["auto", "low", "normal"]


@dataclass(frozen=True)
class FusedConfig:
    """Which sources a drafter uses, how large its drafts are, and whether it learns.

    Attributes:
        context: The request's own text.
        memory: Earlier requests; without it, the drafter keeps no texts.
        recycled: What the model predicted at other nodes, rejected ones included: its 8 likeliest
            tokens at every node.
        max_nodes: Nodes of a draft where a request asks for `auto`; by default `generate` chooses.
        learns: Whether weights change with what is accepted.
        effort: How much a draft reads. Normal accepts 2 to 4 % more than low and takes some tens of
            microseconds longer. Auto is low where a step takes less than 8 ms.
    """

    datastore: bool = True
    context: bool = DEFAULTS["fused"]["context"]
    memory: bool = True
    recycled: bool = DEFAULTS["fused"]["recycled"]
    model_tables: bool = True
    max_nodes: int | None = None
    learns: bool = DEFAULTS["fused"]["learns"]
    effort: Effort = DEFAULTS["fused"]["effort"]

    def __post_init__(self) -> None:
        if self.max_nodes is not None and self.max_nodes < 0:
            raise ValueError(f"max_nodes must not be negative, got {self.max_nodes}")


class FusedDrafter:
    """Drafts from all sources at once: a datastore, the request's own text, earlier requests.

    At each node, every source predicts the next token. The predictions are mixed by weights that
    are learned from what the model accepts, and the tree grows best-first. Probabilities are
    calibrated: 1 plus their sum over a tree is its expected acceptance length. Sessions of a tenant
    share what they learn; no other tenant's drafts depend on it. Safe to share by threads.

    Args:
        datastore: An open one or its path; None drafts without.
        config: Which sources it uses.
        memory: Earlier requests; every session adds its text when it finishes. By default a new one
            if there is a datastore, else none.
        model_tables: The target model, or its tables: what it predicts after a single token.

    Raises:
        FileNotFoundError: There is nothing at a path.
        FormatError: What is there cannot be read.
        ValueError: A source is for another vocabulary.
    """

    def __init__(
        self,
        datastore: Datastore | str | PathLike[str] | None = None,
        config: FusedConfig | None = None,
        memory: Memory | None = None,
        *,
        model_tables: PreTrainedModel | ModelTables | None = None,
    ) -> None:
        self.config = config = config or FusedConfig()
        datastore = None if datastore is None else opened(datastore)
        if memory is None and datastore is not None:
            memory = Memory(datastore.vocab_size)
        self.datastore = datastore if config.datastore else None
        self.memory = memory if config.memory else None
        self.model_tables = _tables(model_tables) if config.model_tables else None
        sources = [source for source in (self.datastore, self.memory) if source is not None]
        self.vocab_size = sources[0].vocab_size if sources else None
        self.max_nodes = config.max_nodes
        self._state = FusedState(
            self.datastore,
            self.memory,
            model_tables=self.model_tables,
            context=config.context,
            recycled=config.recycled,
            learns=config.learns,
            effort=config.effort,
        )

    @classmethod
    def resume(
        cls,
        path: str | PathLike[str],
        datastore: Datastore | str | PathLike[str] | None = None,
        config: FusedConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        **sources: Any,
    ) -> FusedDrafter:
        """A drafter with the memory that `save` wrote, or with a new one if there is no file.

        Args:
            tokenizer: That of the model; needed without a datastore, and checked against one.

        Raises:
            FormatError: What is at the path is no snapshot, or is damaged.
            ValueError: It or the datastore is of another vocabulary, or there is neither datastore
                nor tokenizer.
        """
        if datastore is not None:
            datastore = opened(datastore)
            size, name = datastore.vocab_size, datastore.tokenizer_fingerprint
            if tokenizer is not None:
                check_tokenizer(datastore, tokenizer)
        elif tokenizer is not None:
            size, name = vocab_size(tokenizer), fingerprint(tokenizer)
        else:
            raise ValueError("a memory is of one tokenizer: give it, or a datastore")
        if Path(path).exists():
            memory = Memory.open(path, size, tokenizer=name)
        else:
            memory = Memory(size, tokenizer=name)
        return cls(datastore, config, memory, **sources)

    def __repr__(self) -> str:
        parts = {
            "datastore": self.datastore and str(self.datastore.path),
            "memory": self.memory,
            "model_tables": self.model_tables,
        }
        given = [f"{name}={value!r}" for name, value in parts.items() if value is not None]
        return f"FusedDrafter({', '.join([*given, repr(self.config)])})"

    def session(
        self,
        prompt_ids: Sequence[int] | np.ndarray,
        tenant: str = "",
        predicted_output: Sequence[int] | np.ndarray | None = None,
        group: str | None = None,
    ) -> DraftSession:
        """Starts a request.

        Args:
            tenant: Whose memory and weights it uses and adds to; by default those of the tenant
                with the empty name.
            predicted_output: What the model is expected to write, such as a text to be edited.
            group: A name, at most 1024 bytes of UTF-8, for requests of the tenant that repeat each
                other: samples of one prompt, turns of one task. By default the group of the
                shortest earlier prompt of at least 16 tokens with which this prompt begins.

        Raises:
            TypeError: A name is no string.
            ValueError: The prompt is empty or holds an id outside the vocabulary, or a name is too
                long.
        """
        return with_prompt(self._state.session(tenant, predicted_output, group), prompt_ids)

    def for_request(
        self,
        tenant: str = "",
        predicted_output: Sequence[int] | np.ndarray | None = None,
        group: str | None = None,
    ) -> Drafter:
        """This drafter, for sessions with these arguments: pass it to `generate`."""
        return _ForRequest(self, tenant=tenant, predicted_output=predicted_output, group=group)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the memory to a file for `resume`, and keeps what other processes saved there.

        Raises:
            FormatError: What is at `path` is no snapshot, or is damaged.
            OSError: The file cannot be written; what was at `path` is still there.
            ValueError: The drafter has no memory, or what is at `path` is of another tokenizer.
        """
        if self.memory is None:
            raise ValueError("this drafter has no memory to save: give it one")
        self.memory.save(path, merge=True)

    def stats(self) -> dict[str, int]:
        """How many accepted tokens each source drafted, where it drafted any."""
        accepted = zip(SOURCES, self._state.accepted(), strict=True)
        return {source: number for source, number in accepted if number}


class _ForRequest:
    def __init__(self, drafter: FusedDrafter, **arguments: Any) -> None:
        self._drafter, self._arguments = drafter, arguments
        self.datastore = drafter.datastore
        self.vocab_size, self.max_nodes = drafter.vocab_size, drafter.max_nodes

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        return self._drafter.session(prompt_ids, **self._arguments)


def _tables(source: PreTrainedModel | ModelTables | None) -> ModelTables | None:
    if source is None or isinstance(source, ModelTables):
        return source
    from specds.drafters.model_tables import load_tables

    return load_tables(source)

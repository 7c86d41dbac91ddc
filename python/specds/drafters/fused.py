"""Fused drafter: one tree of all sources, mixed by weights that learn from acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
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
from specds.drafters.session import Drafter, opened, tables_of, with_prompt
from specds.models.tokenization import Tokenizer, check_tokenizer, fingerprint, vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Effort: TypeAlias = Literal["auto", "low", "normal"]


@dataclass(frozen=True)
class FusedConfig:
    """Sources of a drafter that are not arguments, its draft size and search effort.

    Attributes:
        context: Whether to draft from the request's own text.
        recycled: Whether to draft from the model's top 8 tokens at each verified node, rejected
            ones included (token recycling).
        max_nodes: Nodes of a draft for requests with `auto`; by default `generate` chooses.
        learns: Whether weights adapt to accepted tokens.
        effort: Search effort. Normal accepts 2 to 4 % more than low and takes tens of microseconds
            longer. Auto is low if a step takes less than 8 ms.
    """

    context: bool = DEFAULTS["fused"]["context"]
    recycled: bool = DEFAULTS["fused"]["recycled"]
    max_nodes: int | None = None
    learns: bool = DEFAULTS["fused"]["learns"]
    effort: Effort = DEFAULTS["fused"]["effort"]

    def __post_init__(self) -> None:
        if self.max_nodes is not None and self.max_nodes < 0:
            raise ValueError(f"max_nodes must not be negative, got {self.max_nodes}")


class FusedDrafter:
    """Drafter that mixes all sources: a datastore, the request's own text, earlier requests.

    At each node, every source predicts the next token. Weights that learn from accepted tokens mix
    the predictions, and the tree grows best-first. Probabilities are calibrated: 1 plus their sum
    over a tree is its expected acceptance length. Sessions of a tenant share their adaptation; no
    other tenant's drafts depend on it. Threads can share a drafter. Another process gets one by its
    configuration: with the same datastore, and an empty memory.

    Args:
        datastore: An open datastore, its path, or None.
        config: Further sources, draft size and search effort.
        memory: Earlier requests, to which every finished session adds its text; False for none. By
            default a new memory for the vocabulary of the datastore, or else for `vocab_size`.
        vocab_size: The size of the model's vocabulary, if it is known.
        model_tables: The target model, or its tables of tokens that follow a single token.

    Raises:
        FileNotFoundError: A path does not exist.
        FormatError: A file cannot be read.
        ValueError: A source has another vocabulary.
    """

    def __init__(
        self,
        datastore: Datastore | str | PathLike[str] | None = None,
        config: FusedConfig | None = None,
        memory: Memory | Literal[False] | None = None,
        *,
        vocab_size: int | None = None,
        model_tables: PreTrainedModel | ModelTables | None = None,
    ) -> None:
        self.config = config = config or FusedConfig()
        self.datastore = None if datastore is None else opened(datastore)
        size = vocab_size if self.datastore is None else self.datastore.vocab_size
        if memory is None and size is not None:
            memory = Memory(size)
        self.memory = None if memory is False else memory
        self.model_tables = None if model_tables is None else tables_of(model_tables)
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
        path: str | PathLike[str] | None,
        datastore: Datastore | str | PathLike[str] | None = None,
        config: FusedConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        **sources: Any,
    ) -> FusedDrafter:
        """Make a drafter with the memory that `save` wrote, or a new one if there is none.

        Args:
            tokenizer: Tokenizer of the model, which is required without a datastore.

        Raises:
            FormatError: The folder is damaged, or no request cache.
            ValueError: It or the datastore has another vocabulary, or there is neither datastore
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
            raise ValueError("pass `tokenizer=` or a datastore: a memory belongs to one tokenizer")
        memory = Memory(size, tokenizer=name)
        if path is not None:
            with suppress(FileNotFoundError):
                memory = Memory.open(path, size, tokenizer=name)
        return cls(datastore, config, memory, **sources)

    def __reduce__(self) -> tuple[Any, ...]:
        memory = self.memory and (self.memory.vocab_size, self.memory.max_bytes)
        return _copy, (self.datastore, self.config, memory, self.model_tables)

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
        tenant: str | None = "",
        predicted_output: Sequence[int] | np.ndarray | None = None,
        group: str | None = None,
    ) -> DraftSession:
        """Start a request.

        Args:
            tenant: Tenant whose memory and weights the request uses and updates. None isolates the
                request: its weights start from the prior and end with it, and no memory gets it.
            predicted_output: Predicted output, such as a text to be edited.
            group: Request group of the tenant, such as samples of one prompt or turns of one task;
                at most 1024 bytes of UTF-8. By default the group of the shortest earlier prompt
                (16 tokens or more) that is a prefix of this prompt.

        Raises:
            TypeError: A name is not a string.
            ValueError: The prompt is empty or holds an id outside the vocabulary, or a name is too
                long.
        """
        return with_prompt(self._state.session(tenant, predicted_output, group), prompt_ids)

    def for_request(
        self,
        tenant: str | None = "",
        predicted_output: Sequence[int] | np.ndarray | None = None,
        group: str | None = None,
    ) -> Drafter:
        """Bind arguments of `session`: pass the result to `generate`."""
        return _ForRequest(self, tenant=tenant, predicted_output=predicted_output, group=group)

    def save(self, path: str | PathLike[str]) -> None:
        """Save the memory for `resume` in a folder, merged with what other processes saved there.

        Raises:
            FormatError: The folder is damaged.
            OSError: The folder cannot be written, or has other files.
            ValueError: The drafter has no memory, or the folder is of another tokenizer.
        """
        if self.memory is None:
            raise ValueError("this drafter has no memory to save: pass `memory=`")
        self.memory.save(path)

    def stats(self) -> dict[str, int]:
        """Return the accepted tokens by source, without sources that have none."""
        accepted = zip(SOURCES, self._state.accepted(), strict=True)
        return {source: number for source, number in accepted if number}


class _ForRequest:
    def __init__(self, drafter: FusedDrafter, **arguments: Any) -> None:
        self._drafter, self._arguments = drafter, arguments
        self.datastore = drafter.datastore
        self.vocab_size, self.max_nodes = drafter.vocab_size, drafter.max_nodes

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        return self._drafter.session(prompt_ids, **self._arguments)


def _copy(
    datastore: Datastore | None,
    config: FusedConfig,
    memory: tuple[int, int] | None,
    tables: ModelTables | None,
) -> FusedDrafter:
    """Make a drafter that was pickled."""
    empty: Any = Memory(memory[0], max_bytes=memory[1]) if memory else False
    return FusedDrafter(datastore, config, empty, model_tables=tables)

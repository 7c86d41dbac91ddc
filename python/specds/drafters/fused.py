"""The fused drafter: one tree of all sources, weighted by what each was worth so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from specds._core import (
    SOURCES,
    Datastore,
    DraftSession,
    FusedState,
    Memory,
    ModelTables,
    fit_weights,
)
from specds.drafters.session import Drafter, DrafterOf, Session, begin, opened

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Effort: TypeAlias = Literal["auto", "low", "normal"]


@dataclass(frozen=True)
class FusedConfig:
    """Which of its sources a drafter uses, how large its drafts are, and whether it learns.

    Attributes:
        context: The request's own text.
        memory: What earlier requests said; a drafter without it keeps nothing of its own either.
        recycled: What the model itself predicted at other nodes, rejected ones included. It takes
            the model's 8 likeliest tokens at every node.
        max_nodes: Nodes of a draft for the budget `auto`; by default `generate` chooses.
        learns: Whether the weights of the sources change with what is accepted.
        effort: How much of its sources a draft reads. Normal accepts 1.5 % more than low and takes
            some tens of microseconds longer. Auto is what pays by the measured time of a step: low
            below 8 ms; normal otherwise, and where no step is measured.
    """

    datastore: bool = True
    context: bool = True
    memory: bool = True
    recycled: bool = True
    model_tables: bool = True
    max_nodes: int | None = None
    learns: bool = True
    effort: Effort = "auto"

    def __post_init__(self) -> None:
        if self.max_nodes is not None and self.max_nodes < 0:
            raise ValueError(f"max_nodes must not be negative, got {self.max_nodes}")
        if self.effort not in get_args(Effort):
            names = ", ".join(get_args(Effort))
            raise ValueError(f"effort `{self.effort}` is none of {names}")


class FusedDrafter:
    """Drafts from all sources at once: a datastore, the request's own text, earlier requests.

    What each source says at each node of the tree is mixed by what that kind of evidence has been
    worth, which is learned from what the model accepts, and the tree grows best-first by the
    probability of its paths. A node's probability is calibrated: 1 plus the sum over a tree is the
    acceptance length to be expected of it. Sessions of a tenant share what they learn, and nobody
    else's drafts depend on it. Safe to share by threads.

    Args:
        memory: What earlier requests said; every session adds its text when it finishes. By default
            an empty one where there is a datastore, and none where there is not.
        weights: What all tenants start from, as `weights` or `specds.fit_weights` returned it; by
            default the datastore's prior, and without one nothing is learned yet.
        model_tables: The target model, or its tables: what it predicts after a single token.

    Raises:
        FileNotFoundError: There is nothing at a path.
        FormatError: What is there cannot be read.
        ValueError: A source is for another vocabulary, or `weights` are not weights.
    """

    def __init__(
        self,
        datastore: Datastore | str | PathLike[str] | None = None,
        config: FusedConfig | None = None,
        memory: Memory | None = None,
        weights: bytes | None = None,
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
            weights=weights,
        )

    @classmethod
    def resume(
        cls,
        path: str | PathLike[str],
        datastore: Datastore | str | PathLike[str] | None = None,
        config: FusedConfig | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        weights: bytes | None = None,
        **sources: Any,
    ) -> FusedDrafter:
        """A drafter with the memory that `save` wrote, or with a new one.

        Args:
            path: The file; it need not be there yet.
            tokenizer: Which one the tokens are of; needed without a datastore, which knows.

        Raises:
            FormatError: What is at the path is no snapshot, or is damaged.
            ValueError: It is of another vocabulary, or there is neither datastore nor tokenizer.
        """
        if datastore is not None:
            datastore = opened(datastore)
            size, name = datastore.vocab_size, datastore.tokenizer_fingerprint
        elif tokenizer is not None:
            from specds.tokenization import fingerprint, vocab_size

            size, name = vocab_size(tokenizer), fingerprint(tokenizer)
        else:
            raise ValueError("a memory is of one tokenizer: give it, or a datastore")
        if Path(path).exists():
            memory = Memory.open(path, size, tokenizer=name)
        else:
            memory = Memory(size, tokenizer=name)
        return cls(datastore, config, memory, weights, **sources)

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
            tenant: Whose earlier requests it drafts from and learned from, and whose memory it goes
                into; requests without a tenant are those of one of the empty name.
            predicted_output: What the model is expected to write, such as a text to be edited.
            group: Which of the tenant's requests it is of one group with, such as samples of one
                prompt, turns of one task, edits of one file: 1 to 1024 bytes of UTF-8. By default
                those whose prompts begin alike: the group of the shortest earlier prompt of at
                least 16 tokens that this one begins with.

        Raises:
            TypeError: A name is no string.
            ValueError: The prompt is empty or holds an id outside the vocabulary, or a name is too
                long.
        """
        return begin(self._state.session(tenant, predicted_output, group), prompt_ids)

    def for_request(
        self,
        tenant: str = "",
        predicted_output: Sequence[int] | np.ndarray | None = None,
        group: str | None = None,
    ) -> Drafter:
        """This drafter as `generate` takes it, for sessions with these arguments."""
        return _ForRequest(self, tenant=tenant, predicted_output=predicted_output, group=group)

    def weights(self, tenant: str = "") -> bytes:
        """What a tenant's requests taught so far: what drafters of other texts may start from."""
        return self._state.weights(tenant)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the memory to one file, in one step, for `resume`.

        What other processes have kept there meanwhile stays (`merge` of `Memory.save`).

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


def read_weights(name: str | None) -> bytes | None:
    """The weights of the file `name`, as `FusedDrafter` takes them.

    Args:
        name: A file of what `FusedDrafter.weights` gave; ``none``: weights that have learned
            nothing; None: the prior of the datastore.
    """
    if name is None:
        return None
    return fit_weights(None, []) if name == "none" else Path(name).read_bytes()


class _ForRequest(DrafterOf):
    def __init__(self, drafter: FusedDrafter, **arguments: Any) -> None:
        super().__init__(drafter)
        self._arguments = arguments

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        return self.drafter.session(prompt_ids, **self._arguments)


def _tables(source: PreTrainedModel | ModelTables | None) -> ModelTables | None:
    if source is None or isinstance(source, ModelTables):
        return source
    from specds.drafters.model_tables import load_tables

    return load_tables(source)

"""Drafters of a benchmark by name: those of this package, and external ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import specds.papers  # noqa: F401  (enters `hierarchy` among the names of drafters)
from specds._core import Datastore
from specds.bench.transcripts import Transcript
from specds.drafters import (
    Drafter,
    DrafterInputs,
    DrafterName,
    FusedDrafter,
    maker_of,
    require_inputs,
)

Make = Callable[[], Drafter]
"""Function that makes a new drafter, without any state."""


@dataclass(frozen=True)
class BenchDrafter:
    """Drafter of a benchmark, with its datastore if it takes one.

    `open` starts it and yields a function that makes drafters. It raises `DrafterError`.
    """

    name: str
    datastore: Datastore | None
    open: Callable[[], AbstractContextManager[Make]]


class DrafterError(RuntimeError):
    """A drafter failed; the message says why."""

    status = "failed"


@dataclass(frozen=True)
class ExternalDrafter:
    """Drafter from outside this package, such as a published baseline.

    Attributes:
        takes_datastore: Whether it indexes the text of a datastore.
        open: Starts it with its datastore and checks its drafts on some of the requests, then
            yields a function that makes drafters. It raises `DrafterError`.
    """

    takes_datastore: bool
    open: Callable[[Datastore | None, Sequence[Transcript]], AbstractContextManager[Make]]


EXTERNAL_DRAFTERS: dict[str, ExternalDrafter] = {}
"""External drafters: `bench.acceptance` registers `suggested`, `benches/baselines` the rest."""


def drafter_of(name: str) -> ExternalDrafter | DrafterName:
    return EXTERNAL_DRAFTERS.get(name) or DrafterName.parse(name)


def check_names(names: Sequence[str], *, datastore: bool, model: bool) -> None:
    """Raise unless every drafter exists and has its inputs, before anything is loaded."""
    for name in names:
        drafter = drafter_of(name)
        if isinstance(drafter, DrafterName):
            require_inputs(drafter, datastore=datastore, model=model)
        elif drafter.takes_datastore and not datastore:
            raise ValueError(f"drafter `{name}` needs a datastore: pass one with --datastore")


def needs_model(names: Sequence[str]) -> bool:
    """Return whether any of the drafters is made of the target's weights."""
    return any(getattr(drafter_of(name), "needs_model", False) for name in names)


def drafters_of(
    names: Sequence[str],
    datastores: Sequence[Datastore],
    own: DrafterInputs,
    requests: Sequence[Transcript] = (),
    memory_tokens: int = 0,
) -> list[BenchDrafter]:
    """Combine each name with each datastore; a drafter that takes none appears once.

    External drafters are checked on some of the `requests`. A new drafter with a memory starts with
    `memory_tokens` of its datastore in it.
    """
    found = []
    for name in names:
        drafter = drafter_of(name)
        # Some drafters can use a datastore without requiring one.
        taken = datastores if drafter.takes_datastore and datastores else [None]
        for datastore in taken:
            start: Callable[[], AbstractContextManager[Make]]
            if isinstance(drafter, ExternalDrafter):
                start = partial(drafter.open, datastore, requests)
            else:
                start = partial(_open, drafter, replace(own, datastore=datastore), memory_tokens)
            found.append(BenchDrafter(name, datastore, start))
    return found


@contextmanager
def _open(name: DrafterName, inputs: DrafterInputs, memory_tokens: int) -> Iterator[Make]:
    make = maker_of(name, inputs)

    def remembering() -> Drafter:
        drafter = make()
        if isinstance(drafter, FusedDrafter):
            _remember(drafter, memory_tokens)
        return drafter

    yield remembering


def _remember(drafter: FusedDrafter, num_tokens: int) -> None:
    """Insert tokens of the datastore, from its middle on, into the drafter's memory."""
    if drafter.memory is None or drafter.datastore is None:
        return
    datastore = drafter.datastore
    middle = datastore.document_at(datastore.num_tokens // 2).index
    for index in range(middle, datastore.num_documents):
        if num_tokens <= 0:
            return
        token_ids = datastore.document(index).token_ids[:num_tokens]
        drafter.memory.insert("", token_ids)
        num_tokens -= len(token_ids)

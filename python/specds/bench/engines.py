"""The drafters of a benchmark by name: those of this package, and entrants from outside."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import specds.hierarchy  # noqa: F401  (enters `hierarchy` among the names of drafters)
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
"""Makes a new drafter, which has learned nothing yet."""


@dataclass(frozen=True)
class Engine:
    """A drafter or an entrant, with its datastore if it takes one.

    `open` starts it and yields what makes its drafters. Raises `EngineError`.
    """

    name: str
    datastore: Datastore | None
    open: Callable[[], AbstractContextManager[Make]]


class EngineError(RuntimeError):
    """An engine failed; the message says why."""

    status = "failed"


@dataclass(frozen=True)
class Entrant:
    """A drafter from outside this package, such as a published rival.

    Attributes:
        takes_datastore: Whether it indexes the text of a datastore.
        open: Starts it, with the datastore if it takes one, and checks its answers with some of the
            requests; yields what makes its drafters. Raises `EngineError`.
    """

    takes_datastore: bool
    open: Callable[[Datastore | None, Sequence[Transcript]], AbstractContextManager[Make]]


ENTRANTS: dict[str, Entrant] = {}
"""By name: a replay enters `suggested`, benchmarks of the repository others (`benches/rivals`)."""


def drafter_of(name: str) -> Entrant | DrafterName:
    return ENTRANTS.get(name) or DrafterName.parse(name)


def check_names(names: Sequence[str], *, datastore: bool, model: bool) -> None:
    """Checks that every drafter exists and gets what it needs, before anything is loaded."""
    for name in names:
        drafter = drafter_of(name)
        if isinstance(drafter, DrafterName):
            require_inputs(drafter, datastore=datastore, model=model)
        elif drafter.takes_datastore and not datastore:
            raise ValueError(f"drafter `{name}` needs a datastore: give one by --datastore")


def needs_model(names: Sequence[str]) -> bool:
    """Whether any of them is made of the target's weights."""
    return any(getattr(drafter_of(name), "needs_model", False) for name in names)


def engines_of(
    names: Sequence[str],
    datastores: Sequence[Datastore],
    own: DrafterInputs,
    requests: Sequence[Transcript] = (),
    memory_tokens: int = 0,
) -> list[Engine]:
    """Combines each name with each datastore; a drafter that takes none appears once.

    Entrants check their answers with some of the `requests`. A new drafter with a memory starts
    with `memory_tokens` of its datastore in it.
    """
    engines = []
    for name in names:
        drafter = drafter_of(name)
        # A drafter that has other sources too may take a datastore, and do without.
        taken = datastores if drafter.takes_datastore and datastores else [None]
        for datastore in taken:
            start: Callable[[], AbstractContextManager[Make]]
            if isinstance(drafter, Entrant):
                start = partial(drafter.open, datastore, requests)
            else:
                start = partial(_open, drafter, replace(own, datastore=datastore), memory_tokens)
            engines.append(Engine(name, datastore, start))
    return engines


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
    """Puts tokens of the datastore, from its middle on, into the drafter's memory."""
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

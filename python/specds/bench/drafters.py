"""Drafters of a benchmark by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import specds.papers  # noqa: F401  (enters `hierarchy` among the names of drafters)
from specds._core import Datastore
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

    `load` loads what its drafters share, and returns a function that makes one.
    """

    name: str
    datastore: Datastore | None
    load: Callable[[], Make]


def check_names(names: Sequence[str], *, datastore: bool, model: bool) -> None:
    """Raise unless every drafter exists and has its inputs, before anything is loaded."""
    for name in names:
        require_inputs(DrafterName.parse(name), datastore=datastore, model=model)


def needs_model(names: Sequence[str]) -> bool:
    """Return whether any of the drafters is made of the target's weights."""
    return any(DrafterName.parse(name).needs_model for name in names)


def drafters_of(
    names: Sequence[str],
    datastores: Sequence[Datastore],
    own: DrafterInputs,
    memory_tokens: int = 0,
) -> list[BenchDrafter]:
    """Combine each name with each datastore; a drafter that takes none appears once.

    A new drafter with a memory starts with `memory_tokens` of its datastore in it.
    """
    found = []
    for name in names:
        drafter = DrafterName.parse(name)
        # Some drafters can use a datastore without requiring one.
        taken = datastores if drafter.takes_datastore and datastores else [None]
        for datastore in taken:
            inputs = replace(own, datastore=datastore)
            found.append(
                BenchDrafter(name, datastore, partial(_load, drafter, inputs, memory_tokens))
            )
    return found


def _load(name: DrafterName, inputs: DrafterInputs, memory_tokens: int) -> Make:
    make = maker_of(name, inputs)

    def remembering() -> Drafter:
        drafter = make()
        if isinstance(drafter, FusedDrafter):
            _remember(drafter, memory_tokens)
        return drafter

    return remembering


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

"""What drafts in a replay: the drafters of this package and rivals, each by its name."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from specds.bench.rivals import RIVALS, RivalInputs
from specds.bench.rivals.corpus import RivalCorpus, documents
from specds.drafters import (
    DrafterInputs,
    DrafterName,
    FusedDrafter,
    make_drafter,
    require_inputs,
    with_trigrams,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from specds._core import Datastore
    from specds.drafters import Drafter


@dataclass(frozen=True)
class Engine:
    """Something that drafts.

    Attributes:
        name: Of the drafter or the rival.
        datastore: What it drafts from; None where it takes none.
        open: Starts it and, where it is a rival, checks its answers; yields what makes a new
            drafter, which has learned nothing yet.
    """

    name: str
    datastore: Datastore | None
    open: Callable[[], AbstractContextManager[Callable[[], Drafter]]]


def check_names(names: Sequence[str], *, datastore: bool, model: bool) -> None:
    """Refuses what cannot be run, before anything is loaded.

    Raises:
        ValueError: A name is unknown, or its drafter needs what is not there.
    """
    for name in names:
        if name in RIVALS:
            if RIVALS[name].takes_datastore and not datastore:
                raise ValueError(f"rival `{name}` needs a datastore: give one by --datastore")
        elif name in {drafter.value for drafter in DrafterName}:
            require_inputs(DrafterName(name), datastore=datastore, model=model)
        else:
            known = ", ".join([*(drafter.value for drafter in DrafterName), *RIVALS])
            raise ValueError(f"no drafter `{name}`: choose of {known}")


def needs_model(names: Sequence[str]) -> bool:
    """Whether any of them is made of the target's weights."""
    return any(name not in RIVALS and DrafterName(name).needs_model for name in names)


def engines_of(
    names: Sequence[str],
    datastores: Sequence[Datastore],
    own: DrafterInputs,
    rivals: RivalInputs,
    folder: Path,
    memory_tokens: int = 0,
) -> list[Engine]:
    """Each name with each datastore, or once where it takes none.

    Args:
        names: As `check_names` lets through.
        datastores: Open ones.
        own: What drafters of this package are made of besides.
        rivals: What rivals are started with; what they index is added here.
        folder: Where rivals keep their indexes.
        memory_tokens: So many tokens of the datastore are in the memory of a new drafter that has
            one.
    """
    engines = []
    corpora = [_corpus(datastore, folder / str(n)) for n, datastore in enumerate(datastores)]
    for name in names:
        takes_datastore = (RIVALS[name] if name in RIVALS else DrafterName(name)).takes_datastore
        # A drafter that has other sources too may take one, and do without.
        taken = datastores if takes_datastore and datastores else [None]
        for number, datastore in enumerate(taken):
            if name in RIVALS:
                start = partial(
                    _open_rival, name, rivals, None if datastore is None else corpora[number]
                )
            else:
                inputs = replace(own, datastore=datastore)
                start = partial(_open_own, DrafterName(name), inputs, memory_tokens)
            engines.append(Engine(name, datastore, start))
    return engines


@contextmanager
def _open_own(
    name: DrafterName, inputs: DrafterInputs, memory_tokens: int
) -> Iterator[Callable[[], Drafter]]:
    inputs = with_trigrams(name, inputs)

    def make() -> Drafter:
        drafter = make_drafter(name, inputs)
        if isinstance(drafter, FusedDrafter):
            _remember(drafter, memory_tokens)
        return drafter

    yield make


def _remember(drafter: FusedDrafter, num_tokens: int) -> None:
    """Puts so many tokens of the datastore, from its middle on, into the drafter's memory."""
    if drafter.memory is None or drafter.datastore is None:
        return
    for token_ids in documents(drafter.datastore, drafter.datastore.num_tokens // 2):
        if num_tokens <= 0:
            return
        drafter.memory.insert("", token_ids[:num_tokens])
        num_tokens -= len(token_ids)


def _corpus(datastore: Datastore, folder: Path) -> Callable[[], RivalCorpus]:
    """Writes the text of a datastore where it is first asked for."""

    @cache
    def corpus() -> RivalCorpus:
        folder.mkdir()
        return RivalCorpus.of(datastore, folder / "tokens.bin")

    return corpus


@contextmanager
def _open_rival(
    name: str, inputs: RivalInputs, corpus: Callable[[], RivalCorpus] | None
) -> Iterator[Callable[[], Drafter]]:
    if corpus is not None and inputs.python is not None:
        indexed = corpus()
        inputs = replace(inputs, corpus=indexed, folder=indexed.path.parent)
    with RIVALS[name].open(inputs) as make:
        yield make

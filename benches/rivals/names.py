"""The rivals by name, and as what the harness of `specds.bench` takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rivals.corpus import corpus_of
from rivals.inputs import RivalInputs
from rivals.prompt_lookup import open_prompt_lookup
from rivals.remote import open_remote
from rivals.suffix_automaton import open_suffix_automaton
from specds.bench.engines import Entrant, EntrantInputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from specds.drafters import Drafter


@dataclass(frozen=True)
class Rival:
    """An engine that others published.

    Attributes:
        takes_datastore: Whether it indexes the text of a datastore.
        open: Starts it and checks its answers; yields what makes a new drafter.
    """

    takes_datastore: bool
    open: Callable[[RivalInputs], AbstractContextManager[Callable[[], Drafter]]]


RIVALS: dict[str, Rival] = {
    "transformers-prompt-lookup": Rival(False, open_prompt_lookup),
    "suffix-automaton": Rival(False, open_suffix_automaton),
    "draftretriever": Rival(True, partial(open_remote, "draftretriever")),
    "tokengrams": Rival(True, partial(open_remote, "tokengrams")),
    "infini-gram": Rival(True, partial(open_remote, "infini-gram")),
    "arctic-suffix": Rival(False, partial(open_remote, "arctic-suffix")),
    "arctic-suffix-tree": Rival(False, partial(open_remote, "arctic-suffix-tree")),
}
"""The first two run in this process, the others in that of another interpreter."""


def entrants(python: Path | None) -> dict[str, Entrant]:
    """The rivals as the harness takes them.

    Args:
        python: The interpreter that they are installed for; without one most are absent.
    """
    return {
        name: Entrant(rival.takes_datastore, partial(_open, rival, python))
        for name, rival in RIVALS.items()
    }


def _open(
    rival: Rival, python: Path | None, given: EntrantInputs
) -> AbstractContextManager[Callable[[], Drafter]]:
    inputs = RivalInputs(given.vocab_size, [list(context) for context in given.contexts], python)
    if given.datastore is not None and given.folder is not None and python is not None:
        corpus = corpus_of(given.datastore, given.folder)
        inputs = replace(inputs, corpus=corpus, folder=given.folder)
    return rival.open(inputs)

"""The rivals by name, as the command line knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from specds.bench.rivals.prompt_lookup import open_prompt_lookup
from specds.bench.rivals.remote import open_remote

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from specds.bench.rivals.corpus import RivalCorpus
    from specds.drafters import Drafter


@dataclass(frozen=True)
class RivalInputs:
    """What a rival is started with.

    Attributes:
        vocab_size: Token ids are below this.
        contexts: Some contexts to check its drafts with.
        python: The interpreter that rivals are installed for.
        corpus: What it indexes, where it indexes a corpus.
        folder: Where it keeps its index; what is there from before is used again.
    """

    vocab_size: int
    contexts: list[list[int]] = field(default_factory=list)
    python: Path | None = None
    corpus: RivalCorpus | None = None
    folder: Path | None = None


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
    "draftretriever": Rival(True, partial(open_remote, "draftretriever")),
    "tokengrams": Rival(True, partial(open_remote, "tokengrams")),
    "infini-gram": Rival(True, partial(open_remote, "infini-gram")),
    "arctic-suffix": Rival(False, partial(open_remote, "arctic-suffix")),
    "arctic-suffix-tree": Rival(False, partial(open_remote, "arctic-suffix-tree")),
}
"""`transformers-prompt-lookup` runs in this process, the others in that of another interpreter."""

"""What a rival is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rivals.corpus import RivalCorpus


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

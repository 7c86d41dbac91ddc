"""REST: drafts from the longest match in a datastore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specds._core import Datastore, rest_session
from specds.drafters.session import begin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import numpy as np

    from specds._core import DraftSession


@dataclass(frozen=True)
class RestConfig:
    """Limits of lookups; the defaults are those of the REST paper, but for the samples.

    Attributes:
        max_match: The longest suffix of the context that is looked up (n_max).
        min_match: A shorter match drafts nothing.
        continuation: Tokens taken after each occurrence of the match (m).
        max_samples: Occurrences looked at, evenly spread over all of them; the paper's program
            takes the first 5,000 in lexicographic order.
        max_nodes: Node budget of a draft unless the caller of `generate` names one (c).
    """

    max_match: int = 16
    min_match: int = 1
    continuation: int = 10
    max_samples: int = 256
    max_nodes: int | None = None


class RestDrafter:
    """Retrieval-based drafting as in REST (He et al. 2024), Algorithm 1.

    Looks up the longest suffix of the context in a datastore and drafts the most frequent
    continuations as a tree. Safe to share by threads.

    Args:
        datastore: An open datastore, or the path of one.
        config: The limits.

    Raises:
        FileNotFoundError: There is nothing at the path.
        FormatError: What is there cannot be read.
    """

    _start = staticmethod(rest_session)

    def __init__(
        self, datastore: Datastore | str | PathLike[str], config: RestConfig | None = None
    ) -> None:
        opened = datastore if isinstance(datastore, Datastore) else Datastore.open(datastore)
        self.datastore = opened
        self.config = config or RestConfig()

    @property
    def vocab_size(self) -> int:
        """The vocabulary size of the datastore's tokenizer."""
        return self.datastore.vocab_size

    @property
    def max_nodes(self) -> int | None:
        """The node budget that the configuration names."""
        return self.config.max_nodes

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> DraftSession:
        """Starts a request.

        Raises:
            ValueError: The prompt is empty or holds an id outside the vocabulary.
        """
        session = self._start(
            self.datastore,
            max_match=self.config.max_match,
            min_match=self.config.min_match,
            continuation=self.config.continuation,
            max_samples=self.config.max_samples,
        )
        return begin(session, prompt_ids)

"""Drafters: each opens a session for a request, and the session drafts token trees."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from specds._core import Datastore, FusedSession, RestSession

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import numpy as np

    from specds._core import TokenTree


@runtime_checkable
class Session(Protocol):
    """One request as a drafter sees it: draft, observe what was accepted, again until finish."""

    def draft(self, max_nodes: int) -> TokenTree:
        """Drafts at most `max_nodes` nodes that continue the context, best nodes first.

        Node parents of -1 continue the last token of the context. An empty tree is a valid draft.
        """
        ...

    def observe(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Appends the tokens that the target model emitted (accepted ones and the bonus token)."""
        ...

    def finish(self) -> None:
        """Ends the request. Called once, also when generation fails."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Shared by requests, one session each."""

    @property
    def vocab_size(self) -> int | None:
        """One more than the largest token id it can draft; None where that is not known."""
        ...

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> Session:
        """Starts a request with its prompt, a non-empty sequence of token ids."""
        ...


@dataclass(frozen=True)
class RestConfig:
    """Limits of lookups; the defaults are those of the REST paper, but for the samples.

    Attributes:
        max_match: The longest suffix of the context that is looked up (n_max).
        min_match: A shorter match drafts nothing.
        continuation: Tokens taken after each occurrence of the match (m).
        max_samples: Occurrences looked at, evenly spread over all of them; the paper's program
            takes the first 5,000 in lexicographic order.
        exact: Whether all occurrences rank the nodes, not a sample of them. It takes longer where a
            match occurs more often than `max_samples`.
    """

    max_match: int = 16
    min_match: int = 1
    continuation: int = 10
    max_samples: int = 256
    exact: bool = False


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

    _session: type[RestSession | FusedSession] = RestSession

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

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> RestSession | FusedSession:
        """Starts a request.

        Raises:
            ValueError: The prompt is empty or holds an id outside the vocabulary.
        """
        if len(prompt_ids) == 0:
            raise ValueError("the prompt is empty: give at least one token")
        session = self._session(
            self.datastore,
            max_match=self.config.max_match,
            min_match=self.config.min_match,
            continuation=self.config.continuation,
            max_samples=self.config.max_samples,
            exact=self.config.exact,
        )
        session.observe(prompt_ids)
        return session


class FusedDrafter(RestDrafter):
    """Two sources in one tree: a datastore, as REST looks it up, and the request's own text.

    The second is what prompt lookup drafts: the tokens that followed the longest suffix of the
    context when it last came in the request. The nodes of both are ranked by how likely their path
    is: each source trusts its path the more, the longer its match (Laplace's rule of succession,
    ``(L + 1) / (L + 2)`` a token after a match of L tokens).
    """

    _session = FusedSession


class DrafterName(str, Enum):
    """The drafters that the command line knows."""

    FUSED = "fused"
    REST = "rest"


def open_drafter(name: DrafterName, datastore: str | PathLike[str]) -> RestDrafter:
    """Opens a datastore for a drafter with its default limits.

    Raises:
        FileNotFoundError: There is nothing at the path.
        FormatError: What is there cannot be read.
    """
    drafters = {DrafterName.FUSED: FusedDrafter, DrafterName.REST: RestDrafter}
    return drafters[name](datastore)

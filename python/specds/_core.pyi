"""The compiled core: datastores, lookups and the drafters that need no model."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

__all__ = [
    "Datastore",
    "DatastoreBuilder",
    "FormatError",
    "FusedSession",
    "Match",
    "RestSession",
    "StoredDocument",
    "TokenTree",
    "__version__",
    "draft_batch",
]

__version__: Final[str]

class FormatError(ValueError):
    """A datastore's files are truncated, corrupt, foreign, or of a newer format."""

@final
class Match:
    """The longest suffix of a context that occurs in a datastore."""

    @property
    def length(self) -> int:
        """How many tokens matched; 0 where nothing did."""
    @property
    def count(self) -> int:
        """How often they occur in the corpus."""

@final
class StoredDocument:
    """A document of a corpus."""

    @property
    def index(self) -> int:
        """How many documents come before it."""
    @property
    def start(self) -> int:
        """How many tokens come before it, separators included."""
    @property
    def token_ids(self) -> NDArray[np.int64]:
        """Its tokens without the separator after it, shape `(n,)`."""

@final
class Datastore:
    """An index over the tokens of a corpus: built once, memory-mapped, never modified.

    Safe to share by threads. Opening takes milliseconds whatever the size.
    """

    @staticmethod
    def open(path: str | PathLike[str]) -> Datastore:
        """Opens a datastore by mapping its files.

        Raises:
            FileNotFoundError: There is nothing at `path`.
            FormatError: What is there is not a datastore, is damaged, or is of a newer format.
        """
    def verify(self) -> None:
        """Reads everything and checks every checksum and the order of the index.

        Raises:
            FormatError: The first thing found wrong.
        """
    def warm(self) -> None:
        """Reads the whole datastore into memory, as far as there is room.

        No lookup waits for the disk then.

        Raises:
            OSError: The system refuses.
        """
    def lookup(self, context: ArrayLike, *, max_match: int = 16, min_match: int = 1) -> Match:
        """Finds the longest suffix of `context` that occurs in the corpus.

        Args:
            context: Token ids, any integer dtype, shape `(n,)`, n >= 1.
            max_match: The longest suffix tried.
            min_match: A shorter one counts as no match.

        Raises:
            ValueError: `context` is empty or holds an id outside the vocabulary.
        """
    def lookup_batch(
        self,
        contexts: Sequence[ArrayLike],
        *,
        max_match: int = 16,
        min_match: int = 1,
        num_threads: int | None = None,
    ) -> list[Match]:
        """Looks up every context as `lookup` does, in several threads.

        Args:
            contexts: One array of token ids each, as `lookup` takes it.
            max_match: The longest suffix tried.
            min_match: A shorter one counts as no match.
            num_threads: The most threads that work at a time; all processors by default. The result
                is the same with any number.

        Raises:
            ValueError: A context is empty or holds an id outside the vocabulary, or there are 0
                threads.
        """
    def count(self, pattern: ArrayLike) -> int:
        """How often `pattern` occurs within a document: never where it holds the separator.

        Args:
            pattern: Token ids, any integer dtype, shape `(n,)`, n >= 1.

        Raises:
            ValueError: `pattern` is empty or holds an id outside the vocabulary.
        """
    def continuations(
        self, match: Match, top_k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The most frequent tokens after a match, and their exact counts.

        Returns:
            Token ids and counts, both of shape `(at most top_k,)`; count descending, then id
            ascending. The end of a document counts as its separator where that is a token of the
            vocabulary, and not at all where it is not.
        """
    def positions(self, match: Match, limit: int = 10) -> NDArray[np.int64]:
        """Where the first `limit` occurrences of a match begin in the corpus.

        Returns:
            How many tokens come before each, separators included; ascending, shape
            `(at most limit,)`.
        """
    def document(self, position: int) -> StoredDocument:
        """The document that the token at `position` of the corpus belongs to.

        A separator belongs to the document before it.

        Raises:
            ValueError: The corpus is not that long.
        """
    @property
    def path(self) -> Path: ...
    @property
    def num_tokens(self) -> int:
        """Tokens in the corpus, separators included."""
    @property
    def num_documents(self) -> int: ...
    @property
    def num_shards(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Size on disk."""
    @property
    def vocab_size(self) -> int: ...
    @property
    def separator(self) -> int:
        """The token that ends each document; equal to `vocab_size` where the tokenizer has none."""
    @property
    def tokenizer_name(self) -> str: ...
    @property
    def tokenizer_fingerprint(self) -> str: ...
    @property
    def corpus(self) -> list[str]:
        """What the datastore was built from."""

@final
class DatastoreBuilder:
    """Writes a datastore beside its target and moves it there when it is complete.

    A context manager: leaving it without `finish` removes everything it wrote.
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        vocab_size: int,
        separator: int,
        tokenizer_name: str = "",
        tokenizer_fingerprint: str = "",
        corpus: list[str] = ...,
        max_shard_tokens: int = ...,
        overwrite: bool = False,
    ) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def add_documents(self, tokens: ArrayLike, lengths: ArrayLike) -> None:
        """Appends documents.

        Args:
            tokens: The token ids of all of them, shape `(num_tokens,)`.
            lengths: The number of tokens of each, shape `(num_documents,)`.

        Raises:
            ValueError: An id is outside the vocabulary (nothing of this call is added), or the
                lengths do not add up.
            OSError: The disk is full.
        """
    def finish(self, progress: Callable[[str, int, int], Any] | None = None) -> Datastore:
        """Sorts and writes the index, moves the datastore to its path and opens it.

        Args:
            progress: Called with a stage, how far it has come, and how far it has to go. What it
                raises stops the build.

        Raises:
            ValueError: No tokens were added.
        """
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_documents(self) -> int: ...

@final
class TokenTree:
    """A draft: likely continuations of a context as a tree, best nodes first.

    Args:
        token_ids: Shape `(n,)`.
        parents: Shape `(n,)`, each smaller than its own index; -1 continues the context itself.
        probs: Shape `(n,)`, in [0, 1]: how likely the path to each node is; all 0 by default.

    Raises:
        ValueError: The shapes differ, a parent does not come before its child, two siblings hold
            the same token, or a value is out of range.
    """

    def __new__(
        cls, token_ids: ArrayLike, parents: ArrayLike, probs: ArrayLike | None = None
    ) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def token_ids(self) -> NDArray[np.int64]:
        """Shape `(n,)`."""
    @property
    def parents(self) -> NDArray[np.int64]:
        """Shape `(n,)`; -1 is the last token of the context."""
    @property
    def probs(self) -> NDArray[np.float32]:
        """Shape `(n,)`."""
    def depths(self) -> NDArray[np.int64]:
        """Distance of each node from the last token of the context, shape `(n,)`, at least 1."""
    def mask(self) -> NDArray[np.bool_]:
        """Shape `(n, n)`: whether column j is row i or an ancestor of it."""
    def paths(self) -> list[NDArray[np.int64]]:
        """The node indices from a root to each leaf, in the order of the leaves."""
    def prefix(self, max_nodes: int) -> TokenTree:
        """The tree of the first `max_nodes` nodes."""

@final
class RestSession:
    """One request drafted by retrieval: REST (He et al. 2024), Algorithm 1."""

    def __new__(
        cls,
        datastore: Datastore,
        *,
        max_match: int = 16,
        min_match: int = 1,
        continuation: int = 10,
        max_samples: int = 256,
        exact: bool = False,
    ) -> Self: ...
    def observe(self, token_ids: ArrayLike) -> None:
        """Appends tokens to the context: the prompt first, then what the model emitted."""
    def draft(self, max_nodes: int) -> TokenTree:
        """Drafts at most `max_nodes` nodes that continue the context, most frequent first."""
    def finish(self) -> None:
        """Ends the request: there is nothing to do."""

@final
class FusedSession:
    """One request drafted for from a datastore and from its own text."""

    def __new__(
        cls,
        datastore: Datastore,
        *,
        max_match: int = 16,
        min_match: int = 1,
        continuation: int = 10,
        max_samples: int = 256,
        exact: bool = False,
    ) -> Self: ...
    def observe(self, token_ids: ArrayLike) -> None:
        """Appends tokens to the context: the prompt first, then what the model emitted."""
    def draft(self, max_nodes: int) -> TokenTree:
        """Drafts at most `max_nodes` nodes that continue the context, likeliest first."""
    def finish(self) -> None:
        """Ends the request: there is nothing to do."""

def draft_batch(
    sessions: Sequence[RestSession | FusedSession],
    max_nodes: int,
    *,
    num_threads: int | None = None,
) -> list[TokenTree]:
    """Drafts at most `max_nodes` nodes for each session, in several threads.

    Args:
        sessions: What `RestDrafter.session` and `FusedDrafter.session` return, each at most once.
        max_nodes: As for one session.
        num_threads: The most threads that work at a time; all processors by default. The trees are
            the same with any number.

    Raises:
        ValueError: A session comes twice or drafts in another thread, or `num_threads` is 0.
    """

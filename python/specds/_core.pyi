"""The compiled core: datastores, lookups and the drafters that need no model."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from specds.drafters.session import Proposal, RequestRules, Session
from specds.stats import LevelStats

__all__ = [
    "DEFAULT_PRIOR_TOKENS",
    "SOURCES",
    "AdaptiveTrigrams",
    "Datastore",
    "DatastoreBuilder",
    "DraftSession",
    "FormatError",
    "FusedState",
    "Match",
    "Memory",
    "StoredDocument",
    "TokenTree",
    "Trigrams",
    "__version__",
    "aded_session",
    "compact",
    "draft_batch",
    "fit_weights",
    "merge",
    "refit",
    "rest_session",
]

SOURCES: Final[tuple[str, ...]]
"""What can draft a node; `TokenTree.sources` holds places in it."""

DEFAULT_PRIOR_TOKENS: Final[int]
"""How many tokens of a datastore its prior is fitted to, unless the caller says."""

__version__: Final[str]

class FormatError(ValueError):
    """Files of a datastore or a memory are truncated, corrupt, foreign, or of a newer format."""

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

        No lookup waits for the disk then, and no draft for what follows a token that is met first:
        that is looked up for the whole vocabulary.

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
    @property
    def prior(self) -> bytes | None:
        """The weights that fused drafters with it start from, fitted when it was built.

        None where there are none, or another version of specds has fitted them: `specds.refit`
        fits them again.
        """

@final
class DatastoreBuilder:
    """Writes a datastore beside its target and publishes it when it is complete.

    A context manager: leaving it without `finish` removes everything it wrote; or keeps it for the
    next build of the same `plan`.

    Args:
        path: The folder to make, or to add to.
        vocab_size: Token ids are below this.
        separator: The token that ends each document; `vocab_size` where the tokenizer has none.
        tokenizer_name: For people.
        tokenizer_fingerprint: For programs.
        corpus: Where the documents come from, one line a source.
        max_shard_tokens: The most tokens of a shard.
        max_memory: The most private memory that sorting takes, in bytes; it bounds the shards too.
        drop_duplicates: Leave out documents that were added before, and count them.
        max_documents: The most documents to add; those beyond are ignored.
        max_tokens: The most tokens to add, separators included.
        prior_tokens: Fit the prior to at most this many tokens, and to one in 16; 0 fits none.
        overwrite: Replace the datastore at `path` once the new one is complete.
        append: Add to the datastore at `path`.
        plan: What is built, in words. A build that was killed is taken up where it was by the next
            one with the same words and options.

    Raises:
        FileExistsError: Something is at `path`, and neither `overwrite` nor `append` is set.
        FormatError: What is at `path` is not a datastore.
        ValueError: An option is out of its bounds, or the datastore to add to is of another
            tokenizer.
        BlockingIOError: Another process builds there.
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
        max_memory: int = ...,
        drop_duplicates: bool = False,
        max_documents: int = ...,
        max_tokens: int = ...,
        prior_tokens: int = ...,
        overwrite: bool = False,
        append: bool = False,
        plan: str | None = None,
    ) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def add_documents(self, tokens: ArrayLike, lengths: ArrayLike) -> None:
        """Appends documents. Shards that are complete are indexed in the background.

        Args:
            tokens: The token ids of all of them, shape `(num_tokens,)`.
            lengths: The number of tokens of each, shape `(num_documents,)`.

        Raises:
            ValueError: An id is outside the vocabulary (nothing of this call is added), or the
                lengths do not add up.
            OSError: The disk is full.
        """
    def finish(self, progress: Callable[[str, int, int], Any] | None = None) -> Datastore:
        """Waits until every shard is indexed, publishes the datastore and fits its prior.

        What stops or kills the fit leaves the new datastore without a prior; `refit` adds it.

        Args:
            progress: Called with a stage, how far it has come, and how far it has to go. What it
                raises stops the build.

        Raises:
            ValueError: No tokens were added.
        """
    @property
    def staging_folder(self) -> Path:
        """Where the datastore grows before it is published."""
    @property
    def num_tokens(self) -> int:
        """Tokens added so far, separators included."""
    @property
    def num_documents(self) -> int: ...
    @property
    def num_duplicates(self) -> int:
        """Documents left out as they had come before."""
    @property
    def num_given(self) -> int:
        """All documents that were given so far; a build that goes on skips as many."""
    @property
    def is_full(self) -> bool:
        """Whether a limit is reached, so that no more documents are taken."""

def merge(
    sources: Sequence[str | PathLike[str]],
    path: str | PathLike[str],
    *,
    overwrite: bool = False,
    prior_tokens: int = ...,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Datastore:
    """Joins datastores of one tokenizer: the new one has all their shards, in order.

    A shard that several of them have counts once; documents are not compared. Files are linked
    where the file system can, and copied elsewhere. The prior is fitted once the new one is there.

    Args:
        sources: The datastores.
        path: The folder to make.
        overwrite: Replace what is there.
        prior_tokens: As for `DatastoreBuilder`.
        progress: As for `DatastoreBuilder.finish`; of the prior alone.

    Raises:
        ValueError: There are no sources, or they are of different tokenizers.
        FileExistsError: Something is at `path` and `overwrite` is false.
    """

def compact(
    path: str | PathLike[str],
    *,
    max_shard_tokens: int = ...,
    max_memory: int = ...,
    drop_duplicates: bool = False,
    prior_tokens: int = ...,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Datastore:
    """Rebuilds the shards of a datastore into as few as possible.

    It is then what one build of all its documents would have made. Who has it open goes on with
    the old shards.

    Args:
        path: The datastore.
        max_shard_tokens: As for `DatastoreBuilder`.
        max_memory: As for `DatastoreBuilder`.
        drop_duplicates: As for `DatastoreBuilder`.
        prior_tokens: As for `DatastoreBuilder`.
        progress: As for `DatastoreBuilder.finish`.
    """

def refit(
    path: str | PathLike[str],
    *,
    prior_tokens: int = ...,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Datastore:
    """Fits the prior of a datastore again, as a build does; one that is damaged is replaced.

    Who has it open goes on with the old one.

    Args:
        path: The datastore.
        prior_tokens: As for `DatastoreBuilder`; 0 takes the prior away.
        progress: As for `DatastoreBuilder.finish`.
    """

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
    @property
    def sources(self) -> NDArray[np.uint8]:
        """What drafted each node, as places in `SOURCES`, shape `(n,)`.

        Where several sources did, the one that gave it the largest share of its probability.
        """
    def depths(self) -> NDArray[np.int64]:
        """Distance of each node from the last token of the context, shape `(n,)`, at least 1."""
    def mask(self) -> NDArray[np.bool_]:
        """Shape `(n, n)`: whether column j is row i or an ancestor of it."""
    def paths(self) -> list[NDArray[np.int64]]:
        """The node indices from a root to each leaf, in the order of the leaves."""
    def prefix(self, max_nodes: int) -> TokenTree:
        """The tree of the first `max_nodes` nodes."""
    def up_to_depth(self, max_depth: int) -> TokenTree:
        """The tree without the nodes deeper than `max_depth`, the others in their order."""

@final
class Memory:
    """Texts of earlier requests by tenant, within a number of bytes.

    Where it is full, the texts that were not of use for longest go, whoever's they are. No tenant
    sees another's. Safe to share by threads: many read while one writes.

    Args:
        vocab_size: Token ids are below this.
        max_bytes: The most bytes that all texts and what finds them take, at least 16,384; a token
            takes 16 or less. While texts are removed, those of one tenant are there twice.
        tokenizer: Which tokenizer the ids are of, in the caller's words: a snapshot of another one
            is not opened.

    Raises:
        ValueError: An argument is out of its bounds.
    """

    def __new__(cls, vocab_size: int, *, max_bytes: int = ..., tokenizer: str = "") -> Self: ...
    @staticmethod
    def open(
        path: str | PathLike[str], vocab_size: int, *, max_bytes: int = ..., tokenizer: str = ""
    ) -> tuple[Memory, bytes]:
        """Reads what `save` has written.

        Args:
            path: The file.
            vocab_size: As it was when the file was written.
            max_bytes: May be less than it was: the texts that were of use last are kept.
            tokenizer: As it was when the file was written.

        Returns:
            The memory, and the `weights` that were saved with it.

        Raises:
            FileNotFoundError: There is nothing at `path`.
            FormatError: What is there is no snapshot of a memory, is damaged, or is of a newer
                format.
            ValueError: It is of another vocabulary or tokenizer.
        """
    def insert(self, tenant: str, token_ids: ArrayLike) -> None:
        """Adds a text that is complete; one that the tenant has already is of use again.

        Of a text that does not fit into the whole memory, the end is kept.

        Args:
            tenant: Whose it is, at most 1024 bytes of UTF-8.
            token_ids: The text, any integer dtype, shape `(n,)`.

        Raises:
            ValueError: An id is outside the vocabulary, or the name is too long; nothing is added.
        """
    def forget(self, tenant: str) -> None:
        """Removes all texts of a tenant: from memory now, and from the next snapshot."""
    def clear(self) -> None:
        """Removes all texts of all tenants."""
    def save(self, path: str | PathLike[str], *, weights: bytes = b"") -> None:
        """Writes all texts to a file, for its owner alone; threads go on reading.

        What is at `path` is replaced in one step, once the new file is on the disk.

        Args:
            path: The file.
            weights: Any bytes; `open` gives them back.

        Raises:
            OSError: The file cannot be written; what was at `path` is still there.
        """
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Bytes that all texts and what finds them take."""
    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
    @property
    def num_tenants(self) -> int: ...

@final
class DraftSession(Session):
    """One request that a drafter of the core drafts for. Safe to hand to other threads.

    A node's probability is how likely the model is held to accept it.
    """

    @property
    def grows(self) -> bool: ...
    @property
    def proposes(self) -> bool: ...
    @property
    def proposals(self) -> Mapping[int, Proposal]: ...
    @property
    def level_stats(self) -> Mapping[str, LevelStats]: ...
    @property
    def elapsed_ns(self) -> int | None: ...
    def observe(self, token_ids: ArrayLike, num_verified: int | None = None) -> None:
        """As `Session.observe`.

        Raises:
            ValueError: A token id is not in the vocabulary; the context is then as it was.
        """
    def draft(
        self,
        max_nodes: int,
        max_depth: int | None = None,
        min_gain: float = 0.0,
        may_grow_to: int = 0,
    ) -> TokenTree:
        """As `Session.draft`."""
    def draft_after(self, token_ids: ArrayLike, max_nodes: int) -> TokenTree:
        """As `Session.draft_after`.

        Raises:
            ValueError: A token id is not in the vocabulary.
        """
    def set_step_time(self, step_seconds: float) -> None:
        """As `Session.set_step_time`."""
    @property
    def num_predictions(self) -> int:
        """How many of the model's likeliest tokens at each node it uses; 0 where none."""
    def observe_predictions(self, tree: TokenTree, predictions: ArrayLike) -> None:
        """As `Session.observe_predictions`.

        Raises:
            ValueError: There is not a row for each node, or a token id is not in the vocabulary.
        """
    def join(self, rules: RequestRules) -> None:
        """Does nothing."""
    @property
    def match_length(self) -> int:
        """The length of the context suffix that the last draft was made from; 0 without one."""
    def finish(self) -> None:
        """As `Session.finish`."""

@final
class Trigrams:
    """How likely a word is after two others, in a corpus: ADED's matrix (Liu et al. 2024), Eq. 1.

    Read-only; safe to share by threads. In memory, 8 bytes for each word after two others and 24
    for these.
    """

    @staticmethod
    def build(
        datastore: Datastore,
        *,
        order: int = 3,
        max_words: int = 12,
        min_count: int = 1,
        progress: Callable[[str, int, int], Any] | None = None,
    ) -> Trigrams:
        """Counts the n-grams of a datastore. None reaches across the end of a document.

        Args:
            datastore: However it is cut into shards.
            order: The tokens of an n-gram, 2 to 4.
            max_words: Keep at most this many words after each prefix, the likeliest: the paper's t.
            min_count: Leave out n-grams that occur less often.
            progress: As for `DatastoreBuilder.finish`.

        Raises:
            ValueError: An argument is out of its bounds, or the vocabulary has more than 2,097,152
                tokens.
        """
    def words(self, token_ids: ArrayLike) -> list[tuple[int, float]]:
        """The words that follow `order - 1` tokens and their probabilities.

        Returns:
            The likeliest first, of equals the smaller id; none where these tokens do not occur.
        """
    def __len__(self) -> int:
        """The n-grams that are kept."""
    @property
    def order(self) -> int: ...
    @property
    def max_words(self) -> int: ...
    @property
    def min_count(self) -> int: ...
    @property
    def num_prefixes(self) -> int:
        """The different beginnings of the n-grams, all tokens but the last."""
    @property
    def vocab_size(self) -> int: ...
    @property
    def separator(self) -> int: ...

@final
class AdaptiveTrigrams:
    """Tri-grams and what was learned since, for one request or for several at a time.

    Sessions that share one learn from each other. What is learned is bounded: it is forgotten where
    it would grow beyond some 32 MiB.
    """

    def __new__(cls, trigrams: Trigrams) -> Self: ...

def aded_session(
    trigrams: AdaptiveTrigrams,
    *,
    search: Literal["mcts", "greedy"] = "mcts",
    searches: int = 150,
    depth: int = 4,
    candidates: int = 24,
    c1: float = 32.0,
    c2: float = 8.0,
    adaptive: bool = True,
    increment: float = 0.5,
    max_prob: float = 1.0,
    max_length: int | None = None,
    seed: int = 0,
) -> DraftSession:
    """Starts a request that is drafted for as ADED does (Liu et al. 2024), Algorithms 1 and 2."""

def rest_session(
    datastore: Datastore,
    *,
    max_match: int = 16,
    min_match: int = 1,
    continuation: int = 10,
    max_samples: int = 256,
) -> DraftSession:
    """Starts a request that is drafted for as REST does (He et al. 2024), Algorithm 1."""

def draw(probs: NDArray[np.float32], uniforms: NDArray[np.float64]) -> int | None:
    """The place of the largest ``p / t``, t the exponential time -ln(1 - u) of a uniform number.

    It is what `torch.multinomial` draws from `probs` where its random numbers are these.

    Args:
        probs: Shape `(num_tokens,)`; they need not sum to one.
        uniforms: Shape `(num_tokens,)`, from 0 on and below 1.

    Returns:
        None where two are closer than rounding can tell, and where there is nothing to draw from: a
        probability is infinite, or none is above 0.
    """

def likeliest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The places of the largest scores of each row, the largest first, of equal ones the first.

    Some µs a row of some thousand scores, where `torch.topk` takes some 20 on a CPU.

    Args:
        scores: Shape `(num_rows, num_scores)`.
        k: How many of each row, or all where they are fewer.

    Returns:
        Shape `(num_rows, min(k, num_scores))`.
    """

@final
class FusedState:
    """What the sessions of a fused drafter share: its sources, and what each proved to be worth."""

    def __new__(
        cls,
        datastore: Datastore | None = None,
        memory: Memory | None = None,
        *,
        model_tables: ModelTables | None = None,
        context: bool = True,
        recycled: bool = True,
        learns: bool = True,
        effort: str = "auto",
        weights: bytes | None = None,
    ) -> Self: ...
    def session(self, tenant: str = "", predicted_output: ArrayLike | None = None) -> DraftSession:
        """Starts a request."""
    def weights(self) -> bytes:
        """What is learned so far."""
    def prior(self) -> bytes:
        """What of it holds for other texts too: what drafters of these may start from."""
    def accepted(self) -> list[int]:
        """How many tokens of each source were accepted, in the order of `SOURCES`."""

def fit_weights(
    datastore: Datastore | None,
    documents: Sequence[ArrayLike],
    *,
    weights: bytes | None = None,
) -> bytes:
    """Learns weights from documents, as if a model had written them: what a drafter starts from.

    Args:
        datastore: What the drafter will draft from.
        documents: Token ids each. They should be like what will be written, and not be in the
            datastore. It takes some 20 µs a token.
        weights: What to start from; by default the datastore's prior, and without one nothing.

    Raises:
        ValueError: A token id is not in the vocabulary, or `weights` are not weights.
    """

@final
class ModelTables:
    """What a model predicts without a context, or after a single token; see `load_tables`.

    Args:
        bigram: Shape `(vocab_size, k)`: the tokens held likeliest after each token, best first.
        bigram_probs: Shape `(vocab_size, k)`, in [0, 1]: how likely each of them is.
        unigram: Shape `(vocab_size,)`: the vocabulary, best token first.

    Raises:
        ValueError: The shapes do not fit, or a value is out of range.
    """

    def __new__(cls, bigram: ArrayLike, bigram_probs: ArrayLike, unigram: ArrayLike) -> Self: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def k(self) -> int:
        """How many tokens are known after each."""
    @property
    def bigram(self) -> NDArray[np.int64]:
        """Shape `(vocab_size, k)`."""
    @property
    def bigram_probs(self) -> NDArray[np.float32]:
        """Shape `(vocab_size, k)`."""
    @property
    def unigram(self) -> NDArray[np.int64]:
        """Shape `(vocab_size,)`."""

def n_grammys_session(
    tables: ModelTables | None,
    *,
    k: int = 10,
    w: int = 10,
    q: int = 1,
    strategy: str = "mixed",
) -> DraftSession:
    """Starts a request that is drafted for as N-Grammys do (Stewart et al. 2024).

    Args:
        tables: The target model's; needed for all strategies but ``context``.
        k: Rows of a draft.
        w: Tokens of a row.
        q: Tokens at the end of the context that are looked for earlier in it.
        strategy: ``mixed``, ``context``, ``bigram``, ``extended-bigram`` or ``unigram``.
    """

def prompt_lookup_session(*, max_match: int = 3, num_tokens: int = 10) -> DraftSession:
    """Starts a request that is drafted for by prompt lookup (Saxena 2023).

    Args:
        max_match: The longest suffix of the context that is looked for earlier in it.
        num_tokens: Tokens of a draft.
    """

def draft_batch(
    sessions: Sequence[DraftSession],
    max_nodes: int,
    *,
    max_depths: Sequence[int] | None = None,
    min_gain: float = 0.0,
    may_grow_to: int = 0,
    num_threads: int | None = None,
) -> list[TokenTree]:
    """Drafts at most `max_nodes` nodes for each session, in several threads.

    Args:
        sessions: What the drafters' `session` returns, each at most once.
        max_nodes: As for one session.
        max_depths: As for one session, one for each.
        min_gain: As for one session.
        may_grow_to: As for one session.
        num_threads: The most threads that work at a time; all processors by default. The trees are
            the same with any number.

    Raises:
        ValueError: A session comes twice or drafts in another thread, `max_depths` has not one for
            each, or `num_threads` is 0.
    """

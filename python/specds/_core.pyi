# The types alone: `help(specds.Datastore)` has the documentation, which stands in `rust/py`.

from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from specds.drafters.session import Session

__all__ = [
    "DEFAULTS",
    "DEFAULT_PRIOR_TOKENS",
    "SOURCES",
    "AdaptiveTrigrams",
    "Datastore",
    "DatastoreBuilder",
    "DraftSession",
    "EngineDrafter",
    "FormatError",
    "FusedState",
    "Match",
    "Memory",
    "ModelTables",
    "StoredDocument",
    "TokenTree",
    "Trigrams",
    "__version__",
    "aded_session",
    "compact",
    "draft_batch",
    "draw",
    "fit_weights",
    "likeliest",
    "merge",
    "n_grammys_session",
    "pack_rows",
    "prompt_lookup_session",
    "read_manifest",
    "read_outcomes",
    "refit",
    "rest_session",
]

SOURCES: Final[tuple[str, ...]]
"""What can draft a node; `TokenTree.sources` holds places in it."""

DEFAULTS: Final[dict[str, dict[str, Any]]]
"""What each record of options holds where nothing is given, by the names of its options."""

DEFAULT_PRIOR_TOKENS: Final[int]
"""How many tokens of a datastore its prior is fitted to, unless the caller says."""

__version__: Final[str]

class FormatError(ValueError): ...

@final
class Match:
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def length(self) -> int: ...
    @property
    def count(self) -> int: ...

@final
class StoredDocument:
    @property
    def index(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def token_ids(self) -> NDArray[np.int64]: ...

@final
class Datastore:
    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    @staticmethod
    def open(path: str | PathLike[str]) -> Datastore: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __iter__(self) -> Iterator[StoredDocument]: ...
    def verify(self, *, checksums_only: bool = False) -> None: ...
    def warm(self) -> None: ...
    def lookup(self, context: ArrayLike, *, max_match: int = 16, min_match: int = 1) -> Match: ...
    def find(self, pattern: ArrayLike) -> Match: ...
    def count(self, pattern: ArrayLike) -> int: ...
    def count_batch(self, patterns: ArrayLike | Iterable[ArrayLike]) -> NDArray[np.int64]: ...
    def continuations(
        self, of: Match | ArrayLike, top_k: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def count_next(self, of: Match | ArrayLike) -> NDArray[np.int64]: ...
    def count_next_batch(self, patterns: ArrayLike | Iterable[ArrayLike]) -> NDArray[np.int64]: ...
    def infinity_gram(
        self, token_ids: ArrayLike, *, max_match: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]: ...
    def score(
        self, token_ids: ArrayLike, *, max_match: int = 8, concentration: float = 4.0
    ) -> NDArray[np.float64]: ...
    def positions(self, of: Match | ArrayLike, limit: int = 10) -> NDArray[np.int64]: ...
    def document(self, index: int) -> StoredDocument: ...
    def document_at(self, position: int) -> StoredDocument: ...
    @property
    def path(self) -> Path: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def num_shards(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def separator(self) -> int: ...
    @property
    def tokenizer_name(self) -> str: ...
    @property
    def tokenizer_fingerprint(self) -> str: ...
    @property
    def corpus(self) -> list[str]: ...
    @property
    def commands(self) -> list[str]: ...
    @property
    def prior(self) -> bytes | None: ...

@final
class DatastoreBuilder:
    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        vocab_size: int,
        separator: int,
        tokenizer_name: str = "",
        tokenizer_fingerprint: str = "",
        corpus: Sequence[str] | None = None,
        command: str = "",
        max_shard_tokens: int | None = None,
        max_memory: int | None = None,
        drop_duplicates: bool = False,
        max_documents: int | None = None,
        max_tokens: int | None = None,
        prior_tokens: int | None = None,
        overwrite: bool = False,
        append: bool = False,
        plan: str | None = None,
    ) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def add_documents(self, tokens: ArrayLike, lengths: ArrayLike) -> None: ...
    def finish(self, progress: Callable[[str, int, int], Any] | None = None) -> Datastore: ...
    @property
    def staging_folder(self) -> Path: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def num_duplicates(self) -> int: ...
    @property
    def num_given(self) -> int: ...
    @property
    def is_full(self) -> bool: ...

def merge(
    sources: Sequence[str | PathLike[str]],
    path: str | PathLike[str],
    *,
    overwrite: bool = False,
    prior_tokens: int | None = None,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Datastore: ...
def compact(
    path: str | PathLike[str],
    *,
    max_shard_tokens: int | None = None,
    max_memory: int | None = None,
    drop_duplicates: bool = False,
    prior_tokens: int | None = None,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Datastore: ...
def read_manifest(path: str | PathLike[str]) -> str: ...
def refit(
    path: str | PathLike[str],
    *,
    prior_tokens: int | None = None,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Datastore: ...

@final
class TokenTree:
    def __new__(
        cls, token_ids: ArrayLike, parents: ArrayLike, probs: ArrayLike | None = None
    ) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def token_ids(self) -> NDArray[np.int64]: ...
    @property
    def parents(self) -> NDArray[np.int64]: ...
    @property
    def probs(self) -> NDArray[np.float32]: ...
    @property
    def sources(self) -> NDArray[np.uint8]: ...
    def depths(self) -> NDArray[np.int64]: ...
    def mask(self) -> NDArray[np.bool_]: ...
    def paths(self) -> list[NDArray[np.int64]]: ...
    def accept(self, predictions: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def prefix(self, max_nodes: int) -> TokenTree: ...
    def best_chain(self) -> TokenTree: ...
    def up_to_depth(self, max_depth: int) -> TokenTree: ...

@final
class EngineDrafter:
    def __new__(
        cls,
        *,
        datastore: str | PathLike[str] | None = None,
        memory: Literal["off", "tenants", "shared"] | None = None,
        memory_bytes: int | None = None,
        snapshot: str | PathLike[str] | None = None,
        save_every: float | None = None,
        effort: Literal["auto", "low", "normal"] | None = None,
        recycled: bool | None = None,
        min_prob: float | None = None,
        max_context: int | None = None,
        num_threads: int | None = None,
        step_cost: Sequence[tuple[float, float]] | Literal["measured"] | None = None,
        vocab_size: int | None = None,
        tokenizer: str = "",
        num_ranks: int = 1,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def sync(
        self,
        contexts: Sequence[ArrayLike | None],
        *,
        starts: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        tenants: Sequence[str] | None = None,
    ) -> None: ...
    def draft_chains(
        self,
        k: int,
        min_prob: float | None = None,
        *,
        budgets: Sequence[int] | None = None,
        min_probs: Sequence[float] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]: ...
    def draft_trees(
        self,
        n: int,
        *,
        budgets: Sequence[int] | None = None,
        max_depths: Sequence[int] | None = None,
        min_gains: Sequence[float] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]: ...
    def observe_step_time(self, seconds: float) -> None: ...
    @property
    def num_predictions(self) -> int: ...
    def observe_predictions(self, predictions: ArrayLike, num_nodes: int) -> None: ...
    def end(self, names: Sequence[str]) -> None: ...
    def end_all(self) -> None: ...
    @property
    def warnings(self) -> list[str]: ...
    def stats(self) -> dict[str, int]: ...

@final
class Memory:
    def __new__(cls, vocab_size: int, *, max_bytes: int = ..., tokenizer: str = "") -> Self: ...
    @staticmethod
    def open(
        path: str | PathLike[str],
        vocab_size: int,
        *,
        max_bytes: int = ...,
        tokenizer: str = "",
    ) -> Memory: ...
    def insert(self, tenant: str, token_ids: ArrayLike) -> None: ...
    def forget(self, tenant: str) -> None: ...
    def clear(self) -> None: ...
    def save(
        self,
        path: str | PathLike[str],
        *,
        merge: bool = False,
        known: Datastore | None = None,
    ) -> None: ...
    def share(self, path: str | PathLike[str], *, every: float = 60.0) -> None: ...
    @property
    def failure(self) -> str | None: ...
    def texts(self, tenant: str) -> list[NDArray[np.uint32]]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_tenants(self) -> int: ...

@final
class DraftSession(Session):
    def observe(self, token_ids: ArrayLike, num_verified: int | None = None) -> None: ...
    def draft(
        self,
        max_nodes: int,
        max_depth: int | None = None,
        min_gain: float = 0.0,
        *,
        is_chain: bool = False,
    ) -> TokenTree: ...
    def draft_after(self, token_ids: ArrayLike, max_nodes: int) -> TokenTree: ...
    def suggest(
        self,
        token_ids: ArrayLike,
        parents: ArrayLike | None = None,
        probs: ArrayLike | None = None,
    ) -> bool: ...
    def set_step_time(self, step_seconds: float) -> None: ...
    @property
    def num_predictions(self) -> int: ...
    def observe_predictions(self, tree: TokenTree, predictions: ArrayLike) -> None: ...
    @property
    def match_length(self) -> int: ...
    def finish(self) -> None: ...

@final
class Trigrams:
    @staticmethod
    def build(
        datastore: Datastore,
        *,
        progress: Callable[[str, int, int], Any] | None = None,
        order: int = ...,
        max_words: int = ...,
    ) -> Trigrams: ...
    def words(self, token_ids: ArrayLike) -> list[tuple[int, float]]: ...
    def __len__(self) -> int: ...
    @property
    def order(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

@final
class AdaptiveTrigrams:
    def __new__(cls, trigrams: Trigrams) -> Self: ...

def aded_session(
    trigrams: AdaptiveTrigrams,
    **options: Any,
) -> DraftSession: ...
def rest_session(
    datastore: Datastore,
    **options: Any,
) -> DraftSession: ...
def draw(probs: NDArray[np.float32], uniforms: NDArray[np.float64]) -> int | None: ...
def likeliest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]: ...
def pack_rows(
    numbers: NDArray[np.int64],
    width: int,
    token_ids: Sequence[int],
    trees: Sequence[TokenTree | None],
    lengths: Sequence[int],
) -> None: ...
def read_outcomes(
    reported: NDArray[np.int64], width: int
) -> list[tuple[list[int], list[int], NDArray[np.int64]]]: ...

@final
class FusedState:
    def __new__(
        cls,
        datastore: Datastore | None = None,
        memory: Memory | None = None,
        *,
        model_tables: ModelTables | None = None,
        weights: bytes | None = None,
        **options: Any,
    ) -> Self: ...
    def session(
        self,
        tenant: str = "",
        predicted_output: ArrayLike | None = None,
        group: str | None = None,
    ) -> DraftSession: ...
    def weights(self, tenant: str = "") -> bytes: ...
    def accepted(self) -> list[int]: ...

def fit_weights(
    datastore: Datastore | None,
    documents: Sequence[ArrayLike],
    *,
    weights: bytes | None = None,
) -> bytes: ...

@final
class ModelTables:
    def __new__(cls, bigram: ArrayLike, bigram_probs: ArrayLike, unigram: ArrayLike) -> Self: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def bigram(self) -> NDArray[np.int64]: ...
    @property
    def bigram_probs(self) -> NDArray[np.float32]: ...
    @property
    def unigram(self) -> NDArray[np.int64]: ...

def n_grammys_session(
    tables: ModelTables | None,
    **options: Any,
) -> DraftSession: ...
def prompt_lookup_session(**options: Any) -> DraftSession: ...
def draft_batch(
    sessions: Sequence[DraftSession],
    max_nodes: int,
    *,
    max_depths: Sequence[int] | None = None,
    min_gain: float = 0.0,
    num_threads: int | None = None,
) -> list[TokenTree]: ...

# Types only: the docstrings are in `rust/py` and are shown by `help(specds.Datastore)`. `Final`
# attributes are properties that cannot be set.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specds.constraints import Constraint
from specds.drafters.session import Proposal, RequestRules
from specds.generation.stats import LevelStats

__all__ = ["DEFAULTS", "SOURCES", "AdaptiveTrigrams", "Datastore", "DatastoreBuilder"]
__all__ += ["DraftSession", "DraftStats", "EngineDrafter", "FormatError", "ForwardCache"]
__all__ += ["ForwardModel", "FusedState", "GgufFile", "InternalError", "Match", "Memory"]
__all__ += ["ModelTables", "NodeBudget", "Session", "StepTimes", "StoredDocument"]
__all__ += ["TokenTree", "Trigrams"]
__all__ += ["UnsupportedFileError", "__version__", "aded_session", "compact", "draft_batch"]
__all__ += ["draw", "has_linear_product", "likeliest", "linear_product", "merge"]
__all__ += [
    "datastore_files",
    "is_off",
    "memory_bandwidth",
    "merges_of",
    "n_grammys_session",
    "pack_rows",
    "prompt_lookup_session",
    "read_manifest",
    "was_killed_after_publishing",
    "without_credentials",
]
__all__ += ["read_outcomes", "rest_session"]

SOURCES: Final[tuple[str, ...]]
"""Names of the drafting sources; `TokenTree.sources` holds indices into it."""

DEFAULTS: Final[dict[str, dict[str, Any]]]
"""Default options of each component, by component and option name."""

__version__: Final[str]

class InternalError(RuntimeError): ...
class FormatError(ValueError): ...
class UnsupportedFileError(FormatError): ...

@final
class Match:
    def __eq__(self, other: object, /) -> bool: ...
    length: Final[int]
    count: Final[int]

@final
class StoredDocument:
    index: Final[int]
    start: Final[int]
    token_ids: Final[NDArray[np.int64]]

@final
class Datastore:
    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __iter__(self) -> Iterator[StoredDocument]: ...
    def verify(self, *, checksums_only: bool = False) -> None: ...
    def warm(self, *, next_tokens: bool = True) -> None: ...
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
    def source(self, index: int) -> str: ...
    path: Final[Path]
    num_tokens: Final[int]
    num_documents: Final[int]
    num_shards: Final[int]
    num_bytes: Final[int]
    vocab_size: Final[int]
    separator: Final[int]
    tokenizer_name: Final[str]
    tokenizer_fingerprint: Final[str]
    corpus: Final[list[str]]
    commands: Final[list[str]]

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
        commands: Sequence[str] | None = None,
        max_shard_tokens: int | None = None,
        max_memory: int | None = None,
        drop_duplicates: bool = False,
        max_documents: int | None = None,
        max_tokens: int | None = None,
        overwrite: bool = False,
        append: bool = False,
        plan: str | None = None,
    ) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def add_documents(
        self, tokens: ArrayLike, lengths: ArrayLike, sources: Sequence[str] | None = None
    ) -> None: ...
    def finish(self, progress: Callable[[str, int, int], Any] | None = None) -> Datastore: ...
    staging_folder: Final[Path]
    num_tokens: Final[int]
    num_documents: Final[int]
    num_duplicates: Final[int]
    num_given: Final[int]
    is_full: Final[bool]

def merge(
    sources: Sequence[str | PathLike[str]], path: str | PathLike[str], *, overwrite: bool = False
) -> Datastore: ...
def compact(
    path: str | PathLike[str],
    *,
    max_shard_tokens: int | None = None,
    max_memory: int | None = None,
    drop_duplicates: bool = False,
    progress: Callable[[str, int, int], Any] | None = None,
) -> Datastore: ...
def read_manifest(path: str | PathLike[str]) -> str: ...
def datastore_files(path: str | PathLike[str]) -> list[tuple[str, bool]]: ...
def was_killed_after_publishing(path: str | PathLike[str]) -> bool: ...
def without_credentials(path: str | PathLike[str]) -> str: ...

@final
class TokenTree:
    def __new__(
        cls, token_ids: ArrayLike, parents: ArrayLike, probs: ArrayLike | None = None
    ) -> Self: ...
    @staticmethod
    def of_paths(paths: Sequence[Sequence[int]], known_tokens: int | None = None) -> TokenTree: ...
    def __len__(self) -> int: ...
    token_ids: Final[NDArray[np.int64]]
    parents: Final[NDArray[np.int64]]
    probs: Final[NDArray[np.float32]]
    sources: Final[NDArray[np.uint8]]
    def depths(self) -> NDArray[np.int64]: ...
    def mask(self) -> NDArray[np.bool_]: ...
    def paths(self) -> list[NDArray[np.int64]]: ...
    def accept(self, predictions: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def follow(self, token_ids: ArrayLike) -> list[int]: ...
    def child(self, parent: int, token: int) -> int | None: ...
    def limited(self, max_nodes: int | None = None, max_depth: int | None = None) -> TokenTree: ...
    def known(self, vocab_size: int) -> TokenTree: ...
    def allowed(
        self, constraint: Constraint, max_nodes: int, *, ends: bool = False
    ) -> TokenTree: ...
    def best_chain(self) -> TokenTree: ...

@final
class DraftStats:
    def __new__(cls, reliability: float | None = None) -> Self: ...

@final
class StepTimes:
    def __new__(
        cls, token_cost: float | None = None, passes: Sequence[tuple[int, float]] = ...
    ) -> Self: ...

@final
class NodeBudget:
    def __new__(
        cls, draft_stats: DraftStats, costs: StepTimes | Sequence[float], num_rows: int
    ) -> Self: ...
    drafts: Final[list[bool]]
    min_prob: Final[float]
    step_s: Final[float]
    def choose(
        self, drafts: Sequence[TokenTree | None], seconds: float, waiting: int | None = None
    ) -> list[int]: ...
    def learn(self, emitted: Sequence[Sequence[int] | None], step_s: float) -> None: ...
    def join(self) -> None: ...
    def leave(self, row: int) -> None: ...

@final
class EngineDrafter:
    def __new__(
        cls,
        *,
        datastore: str | PathLike[str] | None = None,
        memory_scope: Literal["none", "tenant", "shared"] | None = None,
        memory_bytes: int | None = None,
        memory_tenant_bytes: int | None = None,
        memory_max_age: float | None = None,
        snapshot: str | PathLike[str] | None = None,
        sync_interval: float | None = None,
        effort: Literal["auto", "low", "normal"] | None = None,
        recycle_predictions: bool | None = None,
        min_prob: float | None = None,
        max_context: int | None = None,
        num_threads: int | None = None,
        max_row_time: float | None = None,
        step_cost: Sequence[tuple[float, float]] | Literal["measured", "ignored"] | None = None,
        vocab_size: int | None = None,
        tokenizer: str = "",
        times_steps: bool = False,
        token_cost: float | None = None,
    ) -> Self: ...
    @staticmethod
    def check(*, vocab_size: int | None = None, tokenizer: str = "", **options: Any) -> None: ...
    def __len__(self) -> int: ...
    def sync(
        self,
        contexts: Sequence[ArrayLike | None],
        names: Sequence[str],
        *,
        starts: Sequence[int] | None = None,
        request_options: Sequence[dict[str, Any] | None] | None = None,
        num_verified: Sequence[int] | None = None,
    ) -> None: ...
    def suggest(self, token_ids: ArrayLike, probs: ArrayLike) -> None: ...
    def candidates(
        self, row: int, max_nodes: int, suggestion: TokenTree | None = None
    ) -> TokenTree: ...
    def choose(self, row: int, tree: TokenTree) -> None: ...
    def draft_chains(
        self,
        width: int,
        *,
        max_nodes: int | Sequence[int] | None = None,
        min_prob: float | Sequence[float] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]: ...
    def draft_trees(
        self,
        width: int,
        *,
        max_nodes: int | Sequence[int] | None = None,
        max_depth: int | Sequence[int] | None = None,
        min_prob: float | Sequence[float] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]: ...
    def observe_step_time(self, seconds: float) -> None: ...
    def reset_acceptance(self) -> None: ...
    def set_passes(self, passes: Sequence[tuple[int, float]]) -> None: ...
    def set_graph_sizes(
        self, sizes: Sequence[int], draft_sizes: Sequence[int] | None = None
    ) -> None: ...
    max_row_time: Final[float]
    num_predictions: Final[int]
    def observe_predictions(self, predictions: ArrayLike, num_nodes: int) -> None: ...
    def end(self, names: Sequence[str]) -> None: ...
    def end_all(self) -> None: ...
    def close(self) -> None: ...
    warnings: Final[list[str]]
    def stats(self) -> dict[str, Any]: ...

@final
class Memory:
    def __new__(
        cls,
        vocab_size: int,
        *,
        max_bytes: int = ...,
        tokenizer: str = "",
        max_tenant_bytes: int | None = None,
        max_age: float | None = None,
    ) -> Self: ...
    @staticmethod
    def open(
        path: str | PathLike[str], vocab_size: int, *, max_bytes: int = ..., tokenizer: str = ""
    ) -> Memory: ...
    def insert(self, tenant: str, token_ids: ArrayLike) -> None: ...
    def forget(self, tenant: str) -> None: ...
    def deleted_at(self, tenant: str) -> float: ...
    @staticmethod
    def forget_in(path: str | PathLike[str], tenants: Sequence[str]) -> list[int | None]: ...
    @staticmethod
    def stores_at(path: str | PathLike[str], tenants: Sequence[str] | None = None) -> list[str]: ...
    @staticmethod
    def info(path: str | PathLike[str]) -> dict[str, Any]: ...
    @staticmethod
    def compact(path: str | PathLike[str]) -> None: ...
    @staticmethod
    def move_to(
        path: str | PathLike[str],
        tenant: str,
        datastore: str | PathLike[str],
        *,
        vocab_size: int,
        separator: int,
        progress: Callable[[str, int, int], Any] | None = None,
        **options: Any,
    ) -> tuple[Datastore | None, list[int]]: ...
    def clear(self) -> None: ...
    def save(self, path: str | PathLike[str], *, known: Datastore | None = None) -> None: ...
    def share(self, path: str | PathLike[str], *, every: float = 60.0) -> None: ...
    failure: Final[str | None]
    def texts(self, tenant: str) -> list[NDArray[np.uint32]]: ...
    vocab_size: Final[int]
    max_bytes: Final[int]
    num_bytes: Final[int]
    num_tokens: Final[int]
    num_tenants: Final[int]

class Session:
    def __new__(cls, *arguments: Any, **named: Any) -> Self: ...
    @property
    def proposes(self) -> bool: ...
    @property
    def proposals(self) -> Mapping[int, Proposal]: ...
    @property
    def num_predictions(self) -> int: ...
    @property
    def level_stats(self) -> Mapping[str, LevelStats]: ...
    @property
    def match_length(self) -> int | None: ...
    def begin(self, rules: RequestRules) -> None: ...
    def draft(
        self, max_nodes: int, max_depth: int | None = None, min_prob: float = 0.0
    ) -> TokenTree: ...
    def observe(
        self, token_ids: Sequence[int] | NDArray[Any], num_verified: int | None = None
    ) -> None: ...
    def draft_after(self, token_ids: Sequence[int] | NDArray[Any], max_nodes: int) -> TokenTree: ...
    def suggest(
        self,
        token_ids: Sequence[int] | NDArray[Any] | TokenTree,
        parents: Sequence[int] | NDArray[Any] | None = None,
        probs: Sequence[float] | NDArray[Any] | None = None,
    ) -> bool: ...
    def set_step_time(self, step_seconds: float) -> None: ...
    def observe_predictions(self, tree: TokenTree, predictions: NDArray[Any]) -> None: ...
    def finish(self) -> None: ...

@final
class DraftSession(Session):
    def observe(self, token_ids: ArrayLike, num_verified: int | None = None) -> None: ...
    def draft(
        self,
        max_nodes: int,
        max_depth: int | None = None,
        min_prob: float = 0.0,
        *,
        is_chain: bool = False,
    ) -> TokenTree: ...
    def draft_after(self, token_ids: ArrayLike, max_nodes: int) -> TokenTree: ...
    def suggest(
        self,
        token_ids: ArrayLike | TokenTree,
        parents: ArrayLike | None = None,
        probs: ArrayLike | None = None,
    ) -> bool: ...
    def observe_predictions(self, tree: TokenTree, predictions: ArrayLike) -> None: ...
    match_length: Final[int]

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
    order: Final[int]
    vocab_size: Final[int]

@final
class AdaptiveTrigrams:
    def __new__(cls, trigrams: Trigrams) -> Self: ...

def aded_session(trigrams: AdaptiveTrigrams, **options: Any) -> DraftSession: ...
def rest_session(datastore: Datastore, **options: Any) -> DraftSession: ...
def draw(probs: NDArray[np.float32], uniforms: NDArray[np.float64]) -> int | None: ...
def is_off(options: dict[str, Any]) -> bool: ...
def memory_bandwidth(num_threads: int = 1) -> float: ...
def merges_of(tokens: Sequence[str], scores: Sequence[float | None]) -> NDArray[np.int64]: ...
def likeliest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]: ...
def linear_product(
    weights: NDArray[np.float32] | NDArray[np.uint16], states: NDArray[np.float32], num_threads: int
) -> NDArray[np.float32]: ...
def has_linear_product() -> bool: ...
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
class GgufFile:
    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    @staticmethod
    def of_arrays(
        name: str,
        fields: Mapping[str, int | float | str | list[bool]],
        arrays: Mapping[str, NDArray[np.float32] | NDArray[np.uint16]],
    ) -> GgufFile: ...
    def keys(self) -> list[str]: ...
    def __contains__(self, key: str, /) -> bool: ...
    def __getitem__(
        self, key: str, /
    ) -> bool | int | float | str | list[bool] | list[int] | list[float] | list[str]: ...
    def tensors(self) -> list[str]: ...
    num_weights: Final[int]
    def tensor_sizes(self) -> list[tuple[str, str, int]]: ...
    def model_sizes(
        self, num_tokens: Sequence[int], cache_type: Literal["float32", "float16"] = "float32"
    ) -> tuple[str, int, list[int]]: ...
    def tensor(self, name: str) -> NDArray[np.float32]: ...

@final
class ForwardModel:
    def __new__(
        cls,
        file: GgufFile,
        *,
        instructions: Literal["auto", "avx512", "avxvnni", "avx2", "neon", "portable"] = "auto",
        num_threads: int = 1,
        progress: Callable[[int, int], object] | None = None,
        cache: tuple[str | PathLike[str], int] | None = None,
    ) -> Self: ...
    config: Final[dict[str, Any]]
    instructions: Final[str]
    num_bytes: Final[int]
    short_context: Final[int | None]
    takes_trees: Final[bool]
    is_cached: Final[bool]
    def pass_times(
        self,
        sizes: Sequence[int],
        *,
        activations: Literal["float32", "int8"] = "float32",
        num_threads: int = 1,
    ) -> list[float]: ...
    def cache_bytes(
        self, num_tokens: int, cache_type: Literal["float32", "float16"] = "float32"
    ) -> int: ...
    def forward(
        self,
        cache: ForwardCache,
        inputs: Sequence[tuple[int, ArrayLike, ArrayLike | None, int]],
        *,
        activations: Literal["float32", "int8"] = "float32",
        num_threads: int = 1,
        poll: Callable[[float], object] | None = None,
    ) -> NDArray[np.float32]: ...

@final
class ForwardCache:
    def __new__(
        cls,
        model: ForwardModel,
        num_rows: int = 1,
        cache_type: Literal["float32", "float16"] = "float32",
    ) -> Self: ...
    def length(self, row: int) -> int: ...
    def commit(self, row: int, path: ArrayLike) -> None: ...
    def truncate(self, row: int, length: int) -> None: ...
    def kept(self, row: int, length: int) -> int: ...
    def mark(self, row: int) -> None: ...
    def copy(self, from_row: int, to_row: int) -> None: ...
    def append(self, row: int, states: NDArray[np.float32]) -> None: ...
    def states(self, row: int) -> NDArray[np.float32]: ...

@final
class FusedState:
    NUM_WEIGHTS: Final[int]
    def __new__(
        cls,
        datastore: Datastore | None = None,
        memory: Memory | None = None,
        *,
        model_tables: ModelTables | None = None,
        prior: bytes | None = None,
        **options: Any,
    ) -> Self: ...
    def session(
        self,
        tenant: str | None = "",
        predicted_output: ArrayLike | None = None,
        group: str | None = None,
    ) -> DraftSession: ...
    def learned(self, tenant: str = "") -> bytes: ...
    def accepted(self) -> list[int]: ...

@final
class ModelTables:
    def __new__(cls, bigram: ArrayLike, bigram_probs: ArrayLike, unigram: ArrayLike) -> Self: ...
    vocab_size: Final[int]
    k: Final[int]
    bigram: Final[NDArray[np.int64]]
    bigram_probs: Final[NDArray[np.float32]]
    unigram: Final[NDArray[np.int64]]

def n_grammys_session(tables: ModelTables | None, **options: Any) -> DraftSession: ...
def prompt_lookup_session(**options: Any) -> DraftSession: ...
def draft_batch(
    sessions: Sequence[DraftSession],
    max_nodes: int,
    *,
    max_depths: Sequence[int] | None = None,
    min_prob: float = 0.0,
    num_threads: int | None = None,
) -> list[TokenTree]: ...

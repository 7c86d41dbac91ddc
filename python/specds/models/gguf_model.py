"""Models of GGUF files on a CPU, which the core computes; without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specds._core import ForwardCache, ForwardModel, GgufFile
from specds._lazy import advising
from specds.models.gguf import generation_settings, tokens_of
from specds.models.gguf_tokenizer import pretrained_tokenizer
from specds.models.packing import default_threads, packed
from specds.models.pass_times import PassTimes, pass_times_of
from specds.models.tokenization import FastTokenizer

Activations = Literal["float32", "int8"]
CacheType = Literal["float32", "float16"]
"""The precision of keys and values."""
Input = tuple[int, Any, Any, int]
"""A row, its tokens, their parents or None, and the number of the last ones with logits."""


def load_gguf(
    path: str | PathLike[str],
    activations: Activations = "float32",
    *,
    framework: Literal["auto", "transformers", "numpy"] = "auto",
    context_length: int | None = None,
    cache_type: CacheType | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Any, Any]:
    """Load a GGUF file and its tokenizer for `specds.generate`, `Chat` and `accelerate`.

    Nothing is converted: weights stay in their blocks, and configuration, tokenizer, chat template
    and generation settings come from the file.

    Args:
        path: The file.
        activations: `float32` writes what transformers writes with the dequantized weights. `int8`
            rounds activations as llama.cpp does and is faster; its texts differ.
        framework: `transformers` returns a `PreTrainedModel`, which `accelerate` and pipelines need
            too, and its tokenizer. `numpy` returns a `GgufModel` and a `FastTokenizer`, which need
            no torch. `auto` is `transformers` if that and torch are installed.
        context_length: Most tokens of a text, prompt included; None for the file's own number. A
            longer prompt is an error, and a text ends there.
        cache_type: The precision of keys and values, `float32` or `float16`, which takes half the
            memory; None for `float16` with activations in `int8`, and `float32` otherwise.
        progress: Is called several times a second with the bytes of weights that are packed, and
            those of all. The next load of a file of 64 MB or more maps what this one has packed.

    Raises:
        FormatError: The file is damaged, or a tensor, a type of weights or the architecture is not
            supported.
        NotEnoughMemoryError: The weights do not fit into memory; it has the numbers.
        UnknownTokenizerError: The tokenizer is of a kind that is not supported.
    """
    if framework not in ("auto", "transformers", "numpy"):
        raise ValueError(f"framework must be 'auto', 'transformers' or 'numpy', got {framework!r}")
    file = GgufFile(path)
    weights = packed(file, path, progress)
    if framework == "auto":
        is_installed = find_spec("torch") and find_spec("transformers")
        framework = "transformers" if is_installed else "numpy"
    of_framework = model_class(framework)
    read: Any = FastTokenizer.of_gguf if framework == "numpy" else pretrained_tokenizer
    tokenizer = read(file, path)
    model = of_framework.of(file, weights, path, activations, context_length, cache_type)
    return model, tokenizer


def model_class(framework: Literal["transformers", "numpy"]) -> type[GgufModel]:
    """Return the class of the models of a framework."""
    if framework == "numpy":
        return GgufModel
    with advising():
        from specds.transformers.native_model import NativeModel
    return NativeModel


class GgufCache:
    """Keys and values of a `GgufModel`, empty until its first forward pass.

    Attributes:
        states: The core's cache; None while it is empty.
        padding: For each row, the hidden tokens of its prompt.
        mark_at: The length of a prompt after which recurrent states are copied, so that
            `rolled_back` can return there; None for no copy.
    """

    mark_at: int | None = None

    def __init__(self, states: ForwardCache | None = None, num_rows: int = 1) -> None:
        self.states = states
        self.padding = [0] * num_rows

    def start(self, model: GgufModel, num_rows: int) -> ForwardCache:
        """Return the states, empty ones for the first pass."""
        if self.states is None:
            self.states, self.padding = model.new_states(num_rows), [0] * num_rows
        elif len(self.padding) != num_rows:
            raise ValueError(f"the cache has {len(self.padding)} rows, not {num_rows}")
        return self.states

    def get_seq_length(self) -> int:
        if self.states is None:
            return 0
        return max(self.states.length(row) + hidden for row, hidden in enumerate(self.padding))

    def crop(self, max_length: int) -> None:
        """Keep this many tokens; a negative number drops the last ones.

        Raises:
            ValueError: The model has recurrent states, and none after this many tokens.
        """
        length = self.get_seq_length()
        kept = max(length + max_length, 0) if max_length < 0 else min(max_length, length)
        for row, hidden in enumerate(self.padding if self.states is not None else ()):
            self.states.truncate(row, max(kept - hidden, 0))  # type: ignore[union-attr]

    def rolled_back(self, length: int) -> GgufCache:
        """Keep the most of the first `length` tokens that there are states for, and return this."""
        for row, hidden in enumerate(self.padding if self.states is not None else ()):
            states: Any = self.states
            states.truncate(row, states.kept(row, max(length - hidden, 0)))
        return self


class GgufModel:
    """A model of a GGUF file on a CPU for `specds.generate` and `Chat`, without torch.

    Args:
        weights: The packed weights.
        activations: As in `load_gguf`.
        settings: Defaults of requests, as the generation configuration of transformers names them.
        name_or_path: The file.
        context_length: As in `load_gguf`.
        cache_type: As in `load_gguf`.

    Attributes:
        cache_class: The class of its caches.
        cache_type: The precision of their keys and values.
        context_length: Most tokens of a text, prompt included.
        threads: Threads of a pass; None for those of `OMP_NUM_THREADS`, or one for each core.
        random: The random numbers of its samples.
    """

    cache_class = GgufCache

    def __init__(
        self,
        weights: ForwardModel,
        activations: Activations,
        settings: dict[str, Any] | None = None,
        name_or_path: str = "",
        context_length: int | None = None,
        cache_type: CacheType | None = None,
    ) -> None:
        if context_length is not None and context_length < 2:
            raise ValueError(f"context_length must be at least 2, got {context_length}")
        if activations not in ("float32", "int8"):
            raise ValueError(f"activations must be 'float32' or 'int8', got {activations!r}")
        self.weights = weights
        if cache_type not in (None, "float32", "float16"):
            raise ValueError(f"cache_type must be 'float32' or 'float16', got {cache_type!r}")
        self.activations: Activations = activations
        self.cache_type: CacheType = cache_type or _CACHE_TYPES[activations]
        self.settings, self.name_or_path = settings or {}, name_or_path
        self.context_length = context_length or weights.config["max_position_embeddings"]
        self.threads: int | None = None
        self.random = np.random.MT19937()
        self._pass_times: dict[int, PassTimes] = {}

    @classmethod
    def of(
        cls,
        file: GgufFile,
        weights: ForwardModel,
        path: str | PathLike[str],
        activations: Activations,
        context_length: int | None = None,
        cache_type: CacheType | None = None,
    ) -> GgufModel:
        """Return the model of a file whose weights are packed."""
        settings = generation_settings(file, tokens_of(file, path))
        model = cls(weights, activations, settings, str(path), context_length, cache_type)
        model.pass_times()
        return model

    def __repr__(self) -> str:
        about = f"activations={self.activations!r}, context_length={self.context_length}"
        return f"GgufModel({self.name_or_path!r}, {about})"

    @property
    def vocab_size(self) -> int:
        return int(self.weights.config["vocab_size"])

    @property
    def num_threads(self) -> int:
        return default_threads() if self.threads is None else self.threads

    def new_cache(self) -> GgufCache:
        """Return the empty cache of a conversation, which marks recurrent states to return to."""
        cache = self.cache_class()
        cache.mark_at = None if self.weights.takes_trees else 0
        return cache

    def new_states(self, num_rows: int) -> ForwardCache:
        """Return a cache of empty rows."""
        return ForwardCache(self.weights, num_rows, self.cache_type)

    def compute(
        self,
        states: ForwardCache,
        inputs: Sequence[Input],
        poll: Callable[[float], object] | None = None,
    ) -> NDArray[np.float32]:
        """Return the logits of some tokens of some rows, `(num_logits, vocab_size)`.

        A long pass calls `poll` from time to time with the share that is done; an exception ends
        it.
        """
        return self.weights.forward(
            states,
            inputs,
            activations=self.activations,
            num_threads=self.num_threads,
            poll=poll,
        )

    def pass_times(self) -> PassTimes:
        """Return the tokens and the seconds of some passes; loading measures them or reads them."""
        threads = self.num_threads
        if threads not in self._pass_times:
            about = self.activations, threads, self.name_or_path
            self._pass_times[threads] = pass_times_of(self.weights, *about)
        return self._pass_times[threads]

    def seed(self, number: int) -> None:
        """Begin the random numbers that `torch.manual_seed` begins."""
        self.random.state = seeded(number).state


def seeded(number: int) -> np.random.MT19937:
    """Return the random numbers that `torch.manual_seed` begins."""
    state: Any = np.random.RandomState(number % 2**32).get_state(legacy=False)
    random = np.random.MT19937()
    random.state = state
    return random


_CACHE_TYPES: dict[Activations, CacheType] = {"float32": "float32", "int8": "float16"}

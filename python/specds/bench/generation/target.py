"""The model of a benchmark, of transformers or of a GGUF file without it, and calls of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from specds._core import Datastore
from specds._lazy import imported
from specds.drafters import Drafter
from specds.generation import UnsupportedRequestError, generate
from specds.generation.arrays import ArrayTarget
from specds.generation.stats import GenerationStats
from specds.generation.target import target_of
from specds.papers import PromptLookupDrafter

if TYPE_CHECKING:
    import torch

PLAIN, PROMPT_LOOKUP = "plain", "transformers-prompt-lookup"
Batch: TypeAlias = "Sequence[list[int]]"
"""Prompts of one call, as token ids."""


class CallResult(NamedTuple):
    """New tokens of each prompt; of our loop also its statistics, and which tokens were drafted."""

    token_ids: list[list[int]]
    stats: GenerationStats | None = None
    drafted: Sequence[list[bool]] = ()


@dataclass(frozen=True, eq=False)
class Way:
    """Way to generate.

    Attributes:
        start: Starts a run with a new drafter; returns a function of a batch and arguments of
            `model.generate`, which does a call.
        is_plain: Whether it generates one token per forward pass.
        is_ours: Whether it is our loop, which reports its phases.
        max_nodes: Nodes of a draft; None for `model.generate`.
    """

    name: str
    start: Callable[[], Callable[[Batch, dict[str, Any]], CallResult]]
    is_plain: bool = False
    is_ours: bool = False
    max_nodes: int | Literal["auto"] | None = None
    datastore: Datastore | None = None


@dataclass(frozen=True)
class BenchTarget:
    """A model of transformers, or a `GgufModel`, which takes one prompt a call."""

    model: Any
    verification: str = "auto"

    @property
    def is_array(self) -> bool:
        return isinstance(target_of(self.model), ArrayTarget)

    @property
    def has_queue(self) -> bool:
        """Return whether timing a phase needs a synchronization, which costs time itself."""
        return not self.is_array and self.model.device.type != "cpu"

    @property
    def vocab_size(self) -> int:
        return target_of(self.model).vocab_size

    def seed(self, number: int) -> None:
        target_of(self.model).seed(number)

    def synchronize(self) -> None:
        if not self.is_array:
            synchronize(self.model.device)

    def about(self) -> dict[str, Any]:
        """Return the versions of libraries, the device and the type of the numbers."""
        if self.is_array:
            model = {"device": "cpu", "dtype": "float32", "num_threads": self.model.num_threads}
            return {"torch": None, "transformers": None, **model}
        torch, device = imported("torch"), self.model.device
        return {
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "num_threads": torch.get_num_threads(),
        }

    def inputs(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Return the prompts padded on the left, `(num_rows, length)`, and their arguments."""
        if self.is_array:
            if len(batch) > 1:
                raise UnsupportedRequestError("batches of prompts need torch and transformers")
            return np.array(batch, dtype=np.int64), {}
        length = max(map(len, batch))
        ids = [[0] * (length - len(prompt)) + prompt for prompt in batch]
        mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in batch]
        tensor = partial(imported("torch").tensor, device=self.model.device)
        return tensor(ids), {"attention_mask": tensor(mask), "pad_token_id": 0}

    def emitted(self, sequences: Any, prompt_length: int) -> list[list[int]]:
        """Return the new tokens of each row, up to its end of sequence."""
        eos = target_of(self.model).settings.get("eos_token_id")
        ends = [eos] if isinstance(eos, int) else eos or []
        rows = sequences[:, prompt_length:].tolist()
        lengths = [
            next((n for n, token in enumerate(row, 1) if token in ends), None) for row in rows
        ]
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def own_calls(
    target: BenchTarget, make: Callable[[], Drafter], max_nodes: int | Literal["auto"]
) -> Callable[[Batch, dict[str, Any]], CallResult]:
    """Return a function that calls our `generate` with a new drafter."""
    drafter = make()

    def call(batch: Batch, settings: dict[str, Any]) -> CallResult:
        ids, given = target.inputs(batch)
        output = generate(
            target.model,
            ids,
            drafter,
            max_nodes=max_nodes,
            verification=target.verification,
            **given,
            **settings,
        )
        emitted = target.emitted(output.sequences, ids.shape[1])
        return CallResult(emitted, output.stats, output.drafted_by_row)

    return call


def baseline_way(name: str, target: BenchTarget) -> Way:
    if name == PLAIN:
        start = partial(own_calls, target, PromptLookupDrafter, 0)
        return Way(name, start, is_plain=True, is_ours=True, max_nodes=0)
    compilation = imported("transformers").CompileConfig()
    static = {"cache_implementation": "static"}
    # Transformers compiles only on a GPU by default.
    compilation._compile_all_devices = target.model.device.type == "cpu"
    arguments: dict[str, dict[str, Any]] = {
        "generate": {},
        "static": static | {"disable_compile": True},
        "compiled": static | {"compile_config": compilation},
        PROMPT_LOOKUP: {"prompt_lookup_num_tokens": 10},
    }
    run: Any = target.model.generate

    def call(batch: Batch, settings: dict[str, Any]) -> CallResult:
        ids, given = target.inputs(batch)
        sequences = run(ids, **given, **arguments[name], **settings)
        return CallResult(target.emitted(sequences, ids.shape[1]))

    return Way(name, lambda: call, is_plain=name != PROMPT_LOOKUP)


def llama_cpp_way(path: str, num_threads: int, eos_ids: Sequence[int]) -> Way:
    """Return llama.cpp on the same file and threads, by llama-cpp-python, without drafts."""
    threads = {"n_threads": num_threads, "n_threads_batch": num_threads}
    llama = imported("llama_cpp").Llama(path, n_ctx=2048, verbose=False, **threads)

    def call(batch: Batch, settings: dict[str, Any]) -> CallResult:
        text: list[int] = []
        for token in llama.generate([*batch[0]], temp=0.0, top_k=1, repeat_penalty=1.0):
            text.append(token)
            if len(text) == settings["max_new_tokens"] or token in eos_ids:
                break
        return CallResult([text])

    def start() -> Callable[[Batch, dict[str, Any]], CallResult]:
        llama.reset()
        return call

    return Way("llama.cpp", start, is_plain=True)


def drafter_way(
    name: str,
    target: BenchTarget,
    make: Callable[[], Drafter],
    max_nodes: int | Literal["auto"],
    datastore: Datastore | None = None,
) -> Way:
    start = partial(own_calls, target, make, max_nodes)
    return Way(name, start, is_ours=True, max_nodes=max_nodes, datastore=datastore)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        imported("torch").cuda.synchronize(device)

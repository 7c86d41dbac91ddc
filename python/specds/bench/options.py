"""Options of the benchmarks: one record each, passed whole from the command line to `run`.

The command line derives an option and its help from each field. Imports are fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MODES = ("greedy", "sampled")
BASELINES = ("generate", "static", "compiled", "plain", "transformers-prompt-lookup")
"""Baselines of drafters: see docs/measuring.md."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of both benchmarks.

    Attributes:
        transcripts (FILE): A file of recorded answers, JSONL of `prompt` and `completion`.
        datastores (FOLDER,...): A folder made by `specds build`, or several.
        drafters: Names of drafters; each is measured with each number of nodes.
        max_nodes (NODES,...): Maximum nodes of a draft; `bench generate` also takes `auto`.
        tokenizer: Tokenizer of the transcripts; by default the model's or the datastore's.
        model: The target: a name on the hub, a local folder, or `demo`. `bench acceptance` needs it
            only for drafters that use its weights.
        limit: Maximum requests of a file.
        warm_memory: Use one drafter for all requests of a run, or a new one for each.
    """

    transcripts: Sequence[Path] = ()
    datastores: Sequence[Path] = ()
    drafters: Sequence[str] = ("fused",)
    max_nodes: Sequence[int | Literal["auto"]] = ("auto",)
    tokenizer: str | None = None
    model: str | None = None
    limit: int | None = None
    warm_memory: bool = True

    def __post_init__(self) -> None:
        least = min((each for each in self.max_nodes if each != "auto"), default=1)
        if least < 1:
            raise ValueError(f"max_nodes `{least}` is not a valid node count: try 8,16,32,64")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}")


@dataclass(frozen=True, kw_only=True)
class AcceptanceOptions(BenchOptions):
    """Options of `specds bench acceptance`.

    Attributes:
        shape: Shape of drafts; vLLM and llama.cpp verify chains.
        memory_tokens: Tokens of the datastore in the request cache of `fused` at the start, as on a
            server that has run for a while.
    """

    max_nodes: Sequence[int | Literal["auto"]] = (64,)
    shape: Literal["tree", "chain"] = "tree"
    memory_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if "auto" in self.max_nodes:
            raise ValueError("max_nodes `auto` is not a valid node count: try 8,16,32,64")


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(BenchOptions):
    """Options of `specds bench generate`, which completes the prompts of transcripts.

    Attributes:
        baselines: Baselines among `generate`, `static`, `compiled`, `plain`,
            `transformers-prompt-lookup`; by default all, on a CPU without `compiled`.
        modes: `greedy`, `sampled`.
        temperature: Temperature of the sampled mode.
        max_new_tokens: Maximum new tokens for each prompt.
        seed: Seed of sampling and of the demo's prompts.
        runs: Number of runs.
        batches (PROMPTS,...): Prompts in one call.
        verification: Verification backend.
        activations: `float32` or `int8`, of a GGUF file on a CPU.
        threads: Threads of a forward pass on a CPU. [default: `OMP_NUM_THREADS`, or one for each
            core]
        device: `auto`, `cpu`, `cuda`, ...
        dtype: `auto`, `float32`, `bf16`, ...
    """

    model: str = field()
    baselines: Sequence[str] | None = None
    modes: Sequence[str] = MODES
    temperature: float = 0.7
    max_new_tokens: int = 128
    seed: int = 0
    runs: int = 3
    batches: Sequence[int] = (1,)
    verification: Literal["auto", "native", "packed", "model"] = "auto"
    activations: Literal["float32", "int8"] = "float32"
    threads: int | None = None
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        most = max(self.batches, default=1)
        for name, given, least in (
            ("temperature", self.temperature, 0.01),
            ("max_new_tokens", self.max_new_tokens, 1),
            ("runs", self.runs, 1),
            ("batch", min(self.batches, default=1), 1),
        ):
            if given < least:
                raise ValueError(f"{name} must be at least {least}, got {given}")
        for kind, names, known in (
            ("baseline", self.baselines or (), BASELINES),
            ("mode", self.modes or ("",), MODES),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"unknown {kind} `{name}`: choose from {', '.join(known)}")
        if self.limit is not None and self.limit < most:
            raise ValueError(
                f"not enough prompts for a batch of {most}: got {self.limit}; use a larger --limit "
                "or a smaller --batch"
            )

    @property
    def is_demo(self) -> bool:
        """Return whether to complete the demo's own prompts, which need no datastore."""
        return self.model == "demo" and not self.transcripts

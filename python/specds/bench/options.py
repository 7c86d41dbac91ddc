"""The options of each benchmark: one record, passed whole from the command line to `run`.

The command line has an option for each field, with the text that stands here. Nothing is imported
that takes long.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MODES = ("greedy", "sampled")
BASELINES = ("generate", "static", "compiled", "plain", "transformers-prompt-lookup")
"""What drafters are held against: see docs/measuring.md."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What both benchmarks are asked for.

    Attributes:
        transcripts (FILE): A file of recorded answers, JSONL of `prompt` and `completion`.
        datastores (FOLDER,...): A folder made by `specds build`, or several.
        drafters: Drafters by name; each runs with each number of nodes.
        max_nodes (NODES,...): The most nodes of a draft; `auto`, for `generate`: what pays.
        tokenizer: Of the transcripts; by default the model's or the datastore's.
        model: The target: a name on the hub, a local folder, or `demo`. A replay needs it for
            drafters that are made of its weights.
        limit: Requests of a file at most.
        warm_memory: Whether one drafter serves all requests of a run and keeps what they taught it.
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
            raise ValueError(f"max_nodes `{least}` is no number of nodes: try 8,16,32,64")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}")


@dataclass(frozen=True, kw_only=True)
class AcceptanceOptions(Options):
    """What to replay.

    Attributes:
        shape: Of a draft: chains are what vLLM and llama.cpp verify.
        memory_tokens: Tokens of the datastore that are in the memory of `fused` at first, so that
            its time is that of a server which has run for a while.
    """

    max_nodes: Sequence[int | Literal["auto"]] = (64,)
    shape: Literal["tree", "chain"] = "tree"
    memory_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if "auto" in self.max_nodes:
            raise ValueError("max_nodes `auto` is no number of nodes: try 8,16,32,64")


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Options):
    """What to measure: the prompts of transcripts are completed.

    Attributes:
        baselines: Of `generate`, `static`, `compiled`, `plain`, `transformers-prompt-lookup`; by
            default all, on a CPU without `compiled`.
        modes: `greedy`, `sampled`.
        temperature: Of the sampled mode.
        max_new_tokens: For each prompt.
        seed: Of the samples, and of the demo's prompts.
        runs: How often all is measured.
        batches (PROMPTS,...): Prompts a call.
        verification: How drafts are verified.
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
    verification: Literal["auto", "packed", "model"] = "auto"
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
                    raise ValueError(f"no {kind} `{name}`: choose of {', '.join(known)}")
        if self.limit is not None and self.limit < most:
            raise ValueError(
                f"{self.limit} prompts make no batch of {most}: give a larger --limit, or a "
                "smaller --batch"
            )

    @property
    def is_demo(self) -> bool:
        """Whether the demo's own prompts are completed; they need no datastore either."""
        return self.model == "demo" and not self.transcripts

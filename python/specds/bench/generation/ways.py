"""Ways to generate: `model.generate` with several settings, and our loop with each drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from transformers import CompileConfig, PreTrainedModel

from specds._core import Datastore
from specds.drafters import Drafter, PromptLookupDrafter
from specds.generation import generate
from specds.stats import GenerationStats

PLAIN, PROMPT_LOOKUP = "plain", "transformers-prompt-lookup"
Batch: TypeAlias = "Sequence[list[int]]"
"""Prompts that are completed in one call, as token ids."""


class Result(NamedTuple):
    """The new tokens of each prompt, and if our loop ran its statistics, and what was drafted."""

    token_ids: list[list[int]]
    stats: GenerationStats | None = None
    drafted: Sequence[list[bool]] = ()


@dataclass(frozen=True, eq=False)
class Way:
    """A way to generate.

    Attributes:
        start: Starts a run with a new drafter; returns the function that does its calls, which
            takes a batch and arguments of `model.generate`.
        is_plain: Whether it makes one token a forward.
        is_ours: Whether it is our loop, which reports its phases.
        budget: Nodes of a draft; None for `model.generate`.
    """

    name: str
    start: Callable[[], Callable[[Batch, dict[str, Any]], Result]]
    is_plain: bool = False
    is_ours: bool = False
    budget: int | Literal["auto"] | None = None
    datastore: Datastore | None = None


@dataclass(frozen=True)
class Target:
    """The model, and how drafts are verified on it."""

    model: PreTrainedModel
    verification: str = "auto"

    def inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompts padded on the left, int64 `(num_rows, length)`, and their mask."""
        length = max(map(len, batch))
        ids = [[0] * (length - len(prompt)) + prompt for prompt in batch]
        mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in batch]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def emitted(self, sequences: torch.Tensor, prompt_length: int) -> list[list[int]]:
        """The new tokens of each row, up to its end of sequence."""
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        ends = [eos] if isinstance(eos, int) else eos or []
        rows = sequences[:, prompt_length:].tolist()
        lengths = [
            next((n for n, token in enumerate(row, 1) if token in ends), None) for row in rows
        ]
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def own_calls(
    target: Target, make: Callable[[], Drafter], budget: int | Literal["auto"]
) -> Callable[[Batch, dict[str, Any]], Result]:
    """Calls of our `generate` with a new drafter."""
    drafter = make()

    def call(batch: Batch, settings: dict[str, Any]) -> Result:
        ids, mask = target.inputs(batch)
        output = generate(
            target.model,
            ids,
            drafter,
            budget=budget,
            verification=target.verification,
            attention_mask=mask,
            pad_token_id=0,
            **settings,
        )
        emitted = target.emitted(output.sequences, ids.shape[1])
        return Result(emitted, output.stats, output.drafted_by_row)

    return call


def baseline_way(name: str, target: Target) -> Way:
    if name == PLAIN:
        start = partial(own_calls, target, PromptLookupDrafter, 0)
        return Way(name, start, is_plain=True, is_ours=True, budget=0)
    static, compilation = {"cache_implementation": "static"}, CompileConfig()
    # Transformers compiles on a GPU alone unless it is asked so.
    compilation._compile_all_devices = target.model.device.type == "cpu"  # type: ignore[assignment]
    arguments: dict[str, dict[str, Any]] = {
        "generate": {},
        "static": static | {"disable_compile": True},
        "compiled": static | {"compile_config": compilation},
        PROMPT_LOOKUP: {"prompt_lookup_num_tokens": 10},
    }
    run: Any = target.model.generate

    def call(batch: Batch, settings: dict[str, Any]) -> Result:
        ids, mask = target.inputs(batch)
        given = arguments[name] | settings
        sequences = run(ids, attention_mask=mask, pad_token_id=0, **given)
        return Result(target.emitted(sequences, ids.shape[1]))

    return Way(name, lambda: call, is_plain=name != PROMPT_LOOKUP)

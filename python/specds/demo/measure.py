"""Completes prompts with `model.generate` and with specds, and compares text and time."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from specds.generation import generate
from specds.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.demo.held_out import Prompt
    from specds.drafters import Drafter

MODES: dict[str, dict[str, Any]] = {
    "sampled, T = 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
    "greedy": {"do_sample": False},
}
"""How the demo chooses tokens, by the name of the mode."""


_WINDOW = 8
_LOOPING = 0.1


@dataclass(frozen=True)
class Completion:
    """One prompt completed both ways.

    Attributes:
        token_ids: The tokens that specds emitted after the prompt.
        drafted: For each of them, whether it was drafted and accepted.
        identical: Whether `model.generate` wrote the same tokens.
        plain_s: Seconds that `model.generate` took.
        specds_s: Seconds that specds took.
    """

    prompt: Prompt
    token_ids: list[int]
    drafted: list[bool]
    identical: bool
    plain_s: float
    specds_s: float

    @property
    def repetition(self) -> float:
        """The share of its tokens that end 8 tokens which it has written before."""
        seen: set[tuple[int, ...]] = set()
        repeated = 0
        for end in range(_WINDOW, len(self.token_ids) + 1):
            window = tuple(self.token_ids[end - _WINDOW : end])
            repeated += window in seen
            seen.add(window)
        return repeated / max(len(self.token_ids), 1)


@dataclass
class Comparison:
    """`model.generate` against specds over some prompts, with the same settings."""

    mode: str
    completions: list[Completion] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)

    @property
    def identical(self) -> bool:
        """Whether every completion was the same, token for token."""
        return all(completion.identical for completion in self.completions)

    @property
    def num_tokens(self) -> int:
        """New tokens over all prompts."""
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def plain_tokens_per_s(self) -> float:
        """New tokens a second with `model.generate`, prefill included."""
        return self.num_tokens / sum(completion.plain_s for completion in self.completions)

    @property
    def specds_tokens_per_s(self) -> float:
        """New tokens a second with specds, prefill included."""
        return self.num_tokens / sum(completion.specds_s for completion in self.completions)

    @property
    def speed_up(self) -> float:
        """How many times faster specds was, whole run against whole run."""
        return self.specds_tokens_per_s / self.plain_tokens_per_s

    @property
    def repetition(self) -> float:
        """The share of all tokens that repeat what their text says already, as in a loop."""
        repeated = sum(each.repetition * len(each.token_ids) for each in self.completions)
        return repeated / max(self.num_tokens, 1)

    @property
    def fresh(self) -> list[Completion]:
        """The completions that hardly repeat themselves, the least first."""
        ordered = sorted(self.completions, key=lambda completion: completion.repetition)
        return [completion for completion in ordered if completion.repetition < _LOOPING]

    @property
    def fresh_speed_up(self) -> float | None:
        """The speed-up over these completions; None where there are none."""
        of_specds = sum(completion.specds_s for completion in self.fresh)
        return sum(each.plain_s for each in self.fresh) / of_specds if of_specds else None

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, as plain values."""
        return {
            "mode": self.mode,
            "identical": self.identical,
            "num_prompts": len(self.completions),
            "num_tokens": self.num_tokens,
            "plain_tokens_per_s": self.plain_tokens_per_s,
            "specds_tokens_per_s": self.specds_tokens_per_s,
            "speed_up": self.speed_up,
            "repetition": self.repetition,
            "num_fresh": len(self.fresh),
            "fresh_speed_up": self.fresh_speed_up,
            "stats": self.stats.to_dict(),
            "prompts": [
                {
                    "name": c.prompt.name,
                    "identical": c.identical,
                    "num_tokens": len(c.token_ids),
                    "speed_up": c.plain_s / c.specds_s,
                }
                for c in self.completions
            ],
        }


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    make: Callable[[], Drafter],
    prompts: Sequence[Prompt],
    *,
    mode: str,
    drafting: dict[str, Any] | None = None,
    on_completion: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Comparison:
    """Runs every prompt both ways in turn, so that a drift of the machine's speed hits both.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        make: Makes the drafter that proposes the token trees: one that has seen none of this yet.
        prompts: What to complete.
        mode: The name of these settings in the report.
        drafting: What `specds.generate` alone is given: `budget`, `verification`.
        on_completion: Called after each prompt.
        settings: Passed to `model.generate` and to `specds.generate` alike.
    """
    comparison = Comparison(mode)
    plain_generate: Any = model.generate
    # What warms up keeps the prompt in mind, and must not draft for it again.
    drafters = [make(), make()]
    for number, prompt in enumerate([prompts[0], *prompts]):
        warming = number == 0
        ids = tokenizer(prompt.text, return_tensors="pt")["input_ids"].to(model.device)
        arguments = {**settings, "attention_mask": torch.ones_like(ids)}
        if warming:
            arguments["max_new_tokens"] = 8
        drafter = drafters[not warming]
        place = (number, model.device)  # both begin in one state of the random generator
        plain, plain_s = timed(*place, plain_generate, ids, **arguments)
        output, specds_s = timed(
            *place, generate, model, ids, drafter, **(arguments | (drafting or {}))
        )
        if warming:
            continue
        length = ids.shape[1]
        comparison.stats += output.stats
        comparison.completions.append(
            Completion(
                prompt,
                output.sequences[0, length:].tolist(),
                list(output.drafted),
                plain.tolist() == output.sequences.tolist(),
                plain_s,
                specds_s,
            )
        )
        on_completion()
    return comparison


def timed(
    seed: int, device: torch.device, run: Callable[..., Any], *arguments: Any, **settings: Any
) -> tuple[Any, float]:
    """What a call gives, and its seconds until the device has nothing left to do.

    Args:
        seed: The state of torch's random generator in which the call starts.
        device: That of the model.
        run: What is called.
        *arguments: Its arguments.
        **settings: Those that have names.
    """
    torch.manual_seed(seed)
    synchronise(device)
    started = perf_counter()
    result = run(*arguments, **settings)
    synchronise(device)
    return result, perf_counter() - started


def synchronise(device: torch.device) -> None:
    """Waits until the device has done what is in its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

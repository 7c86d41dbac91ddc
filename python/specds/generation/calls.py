"""What `model.generate` does, by drafts: one call, and the same as a loop for transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from transformers import (
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput
from typing_extensions import Unpack

from specds.generation.arguments import UnsupportedRequestError
from specds.generation.request import DraftOptions, Drafts, GenerationOutput, Options, run
from specds.verify.cache import CACHE_NAME
from specds.verify.support import Verification

if TYPE_CHECKING:
    import torch


def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor | None = None,
    drafter: Drafts = None,
    *,
    inputs: torch.Tensor | None = None,
    budget: int | Literal["auto"] = "auto",
    verification: Verification = "auto",
    self_check: bool = True,
    profile: bool = False,
    stream_every: int | None = None,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | list[str] | None = None,
    **kwargs: Any,
) -> GenerationOutput:
    """Generates what ``model.generate(input_ids, **kwargs)`` would, in fewer target forwards.

    Greedy decoding gives the same tokens, and sampling the same tokens from the same seed, up to
    the model's own rounding: a model that computes in half precision may break near-ties
    differently in passes of different shape, with or without this package.

    Args:
        model: A decoder-only transformers model in eval mode.
        input_ids: int64 `(num_rows, prompt_length)`, prompts padded on the left; `attention_mask`
            tells where. Each has a tree and an acceptance of its own, and leaves when it is
            finished. Logits processors and stopping criteria are called for each by itself.
        drafter: Drafts the trees; it gets one session per sequence. A datastore or the path of one
            makes a `FusedDrafter`, None one that drafts from the request alone.
        inputs: Another name of `input_ids`, that of `model.generate`.
        budget: How many nodes of a draft are verified. `auto` is the drafter's own `max_nodes`
            where it names one. Elsewhere each step verifies what pays, up to 63 nodes or none, by
            what the drafter expects to gain and by the time of a step, which is measured before a
            model's first draft (about a second, once in a process). A number is the most nodes of
            every draft, 0 plain decoding. Acceptance lengths can only be repeated with a number;
            what is emitted never depends on it.
        verification: `fast` and `tree` check every node of a draft once, by a tree mask; `tree` has
            the model attend as it does, `fast` by an attention that reads the states of the context
            once. `auto` is `fast`, or `tree` for models whose attention cannot be exchanged: a
            warning and `stats.reason` then say why. What is emitted is the same. A class of a
            runner may be given too, such as `specds.papers.path_rows.PathRows`.
        self_check: Before the model's first use, compare a small tree with plain forward passes
            (see `specds.verify.check_model`).
        profile: Wait for a CUDA device at each reading of the clock, so that the times in `stats`
            are true. That costs speed; without it `accept_s` takes the blame for queued work.
        stream_every: Hides how many tokens a step emitted, which would tell texts apart to anyone
            who sees the stream: the streamer gets this many tokens at once (of each sequence),
            fewer at the end alone, and each step computes for exactly `budget` nodes, which must be
            a number. The time between two releases still depends on the steps that they took.
        streamer: Gets the prompts and each token, as from `model.generate`; of several sequences a
            token of each at a time.
        tokenizer: Needed for `stop_strings`.
        stop_strings: Ends the text at any of these.
        **kwargs: All else that `model.generate` takes for greedy decoding and sampling, such as
            `max_new_tokens`, `do_sample`, `temperature`, `logits_processor`, `stopping_criteria`,
            `generation_config`, `prefill_chunk_size`, and `cache` (or `past_key_values`, its name
            before transformers 5.24): a `DynamicCache` with the states of the beginning of the only
            prompt, which is not read again then; it gets the states of all that follows but the
            last token.

    Raises:
        UnsupportedModelError: A tree cannot be verified on `model`.
        UnsupportedRequestError: An argument asks for what a tree cannot do, such as beams.
        ValueError: The drafter drafts tokens that the model does not have.
    """
    if inputs is not None:
        if input_ids is not None:
            raise ValueError("input_ids and inputs are the same: give one of them")
        input_ids = inputs
    if kwargs.get("custom_generate") is not None:
        raise UnsupportedRequestError(
            "custom_generate cannot be used here: this is a decoding loop of its own"
        )
    options = Options.of(
        drafter,
        budget=budget,
        verification=verification,
        self_check=self_check,
        profile=profile,
        stream_every=stream_every,
    )
    kwargs |= {"streamer": streamer, "tokenizer": tokenizer, "stop_strings": stop_strings}
    call: Any = model.generate
    output: GenerationOutput = through(model, call, options, inputs=input_ids, **kwargs)
    return output


def through(
    model: PreTrainedModel,
    generate: Callable[..., Any],
    options: Options,
    result: Callable[[GenerationOutput, GenerationConfig], Any] = lambda output, _: output,
    *,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | list[str] | None = None,
    **arguments: Any,
) -> Any:
    """Calls the `generate` of transformers with our loop in place of its own.

    `result` turns the output into what is returned; the other arguments are those of
    `specds.generate`.
    """
    for name, why_not in _DROPPED.items():
        if arguments.pop(name, None):
            raise UnsupportedRequestError(f"{name} cannot be used: {why_not}")
    for name in {"cache", "past_key_values"} & arguments.keys():
        arguments[CACHE_NAME] = arguments.pop(name)
    _resolve_stop_strings(model, tokenizer, stop_strings, arguments)

    def loop(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        generation_config: GenerationConfig,
        **prepared: Any,
    ) -> Any:
        prepared |= {"generation_config": generation_config}
        return result(run(options, streamer, model, input_ids, **prepared), generation_config)

    return generate(custom_generate=loop, **arguments)


# What transformers would drop without a word.
_DROPPED = {
    "assistant_model": "the drafter takes its place",
    "synced_gpus": "each process drafts by itself",
}


def as_transformers(
    output: GenerationOutput, config: GenerationConfig
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """What `model.generate` returns."""
    if not config.return_dict_in_generate:
        return output.sequences
    states: dict[str, Any] = {CACHE_NAME: output.cache}
    return GenerateDecoderOnlyOutput(
        sequences=output.sequences,  # type: ignore[arg-type]
        scores=output.scores,  # type: ignore[arg-type]
        logits=output.logits,  # type: ignore[arg-type]
        **states,
    )


def custom_generate(
    drafter: Drafts = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **options: Unpack[DraftOptions],
) -> Callable[..., torch.Tensor | GenerateDecoderOnlyOutput]:
    """The decoding loop as a value for ``model.generate(..., custom_generate=...)``.

    `model.generate` then returns what it always does.

    Args:
        drafter: As in `generate`.
        tokenizer: Needed for the `stop_strings` of `model.generate`, which drops its own.
        **options: `budget`, `verification`, `self_check` and `stream_every`, as in `generate`.
    """
    drafts = Options.of(drafter, **options)

    def loop(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        generation_config: GenerationConfig,
        stopping_criteria: StoppingCriteriaList,
        # Transformers hands over what its own loop has no parameter for, and reads it no more.
        stop_strings: str | list[str] | None = None,
        **prepared: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        prepared |= {"generation_config": generation_config, "prompt_is_put": True}
        if stop_strings is not None:
            stopping_criteria.append(_stop_at(stop_strings, tokenizer))
        output = run(
            drafts,
            _streamer_of_caller(),
            model,
            input_ids,
            stopping_criteria=stopping_criteria,
            **prepared,
        )
        return as_transformers(output, generation_config)

    return loop


_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def _streamer_of_caller() -> BaseStreamer | None:
    """The streamer that `model.generate` was given: it hands none to a custom loop."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["streamer"]


def _resolve_stop_strings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    stop_strings: str | list[str] | None,
    kwargs: dict[str, Any],
) -> None:
    """Turns stop strings, wherever they were set, into a stopping criterion in `kwargs`.

    Transformers drops the tokenizer on the way to a custom loop and then fails for lack of it.
    """
    configs = (kwargs.get("generation_config"), model.generation_config)
    in_configs = (getattr(config, "stop_strings", None) for config in configs)
    stop_strings = stop_strings or next(filter(None, in_configs), None)
    if stop_strings is None:
        return
    criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or [])
    criteria.append(_stop_at(stop_strings, tokenizer))
    kwargs |= {"stopping_criteria": criteria, "stop_strings": None}


def _stop_at(
    stop_strings: str | list[str], tokenizer: PreTrainedTokenizerBase | None
) -> StopStringCriteria:
    if tokenizer is None:
        raise ValueError("stop_strings needs tokenizer: pass the tokenizer of the model")
    return StopStringCriteria(tokenizer, stop_strings)

"""`generate`, and the way by which all calls reach our loop."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specds._core import Session
from specds.drafters.step import Step
from specds.generation.arguments import UnsupportedRequestError, require_inputs
from specds.generation.options import Drafts, Options
from specds.generation.request import GenerationOutput, run
from specds.verify.cache import CACHE_NAME
from specds.verify.support import Verification


def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor | None = None,
    drafter: Drafts = None,
    *,
    inputs: torch.Tensor | None = None,
    max_nodes: int | Literal["auto"] = "auto",
    verification: Verification = "auto",
    check_model: bool = True,
    synchronize_timings: bool = False,
    stream_interval: int | None = None,
    shape_invariant: bool = False,
    on_step: Callable[[Step], object] | None = None,
    session: Session | None = None,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | list[str] | None = None,
    **kwargs: Any,
) -> GenerationOutput:
    """Generates what ``model.generate(input_ids, **kwargs)`` would, in fewer target forwards.

    Greedy decoding gives the same tokens, and sampling the same tokens from the same seed. Only in
    half precision may near-ties break differently, because rounding depends on the shape of a pass.

    Args:
        model: A decoder-only transformers model in eval mode.
        input_ids: int64 `(num_rows, prompt_length)`, padded on the left, as `attention_mask` says.
            Each row has a tree of its own, and processors and criteria are called for each alone.
        drafter: Drafts the trees, with one session a row. A datastore or its path makes a
            `FusedDrafter`; None makes one that drafts from the request alone.
        inputs: Another name of `input_ids`, that of `model.generate`.
        max_nodes: The most nodes of a draft to verify; 0 is plain decoding. `auto` is the drafter's
            own `max_nodes`, if it has one. Otherwise each step verifies the number that pays, up to
            63, by the expected gain and the time of a step, which is measured before a model's
            first draft (about a second, or eight passes where these take longer; once a process).
            The text does not depend on it; acceptance lengths do.
        verification: `packed` verifies all rows as one sequence, by attention of our own; `model`
            by the model as transformers computes it, with a tree mask. `auto` is `packed` on a
            CPU, and `model` on other devices until `packed` has passed its tests there, or where
            the model's attention cannot be replaced; `stats.reason` says why. A class of a runner
            is accepted too, such as `specds.papers.path_rows.PathRows`.
        check_model: Before the model's first use, compare one forward pass over a small tree with
            forward passes over its paths (see `specds.verify.check_model`).
        synchronize_timings: Synchronize with a CUDA device at each reading of the clock, so that
            the times in `stats` are exact. This costs speed.
        stream_interval: Hide how many tokens each step emitted, from which an observer can tell
            texts apart. The streamer gets this many tokens at once (fewer at the end), and each
            step computes exactly `max_nodes`, an integer below `stream_interval`. The time between
            releases still varies.
        shape_invariant: Make the text of a single row independent of the drafts in half precision
            too. All forward passes have one shape, `max_nodes` (an integer) by `max_length` slots,
            and drafts are chains. This is slower, and near-ties may break differently from the
            baseline. Tested on a CPU; other devices verify with `model`.
        on_step: Called with each `Step` of each row, the prefill included: the draft, its accepted
            nodes, and the emitted tokens with their sources.
        session: A session of the drafter that has observed the only prompt. It takes what is
            emitted and is not finished, so that another request can go on with it. By default each
            row has a session of its own.
        streamer: Gets the prompts and each token, as from `model.generate`; of several rows, a
            token of each at a time.
        tokenizer: Needed for `stop_strings`.
        stop_strings: Ends the text at any of these.
        **kwargs: The other arguments of `model.generate` for greedy decoding and sampling, such as
            `max_new_tokens`, `do_sample`, `logits_processor`, `generation_config`. `cache` (or
            `past_key_values`) is a `DynamicCache` with the states of the beginning of the only
            prompt: they are not computed again, and the states of all tokens but the last are added
            to it.

    Raises:
        UnsupportedModelError: A tree cannot be verified on `model`.
        UnsupportedRequestError: An argument asks for what a tree cannot do, such as beams.
        TypeError: `model` is no model, or `input_ids` no tensor of token ids.
        ValueError: An argument cannot be used.
    """
    if inputs is not None:
        if input_ids is not None:
            raise ValueError("input_ids and inputs are the same: give one of them")
        input_ids = inputs
    require_inputs(model, input_ids)
    if kwargs.get("custom_generate") is not None:
        raise UnsupportedRequestError(
            "custom_generate cannot be used here: this is a decoding loop of its own"
        )
    options = Options.of(
        drafter,
        max_nodes=max_nodes,
        verification=verification,
        check_model=check_model,
        synchronize_timings=synchronize_timings,
        stream_interval=stream_interval,
        shape_invariant=shape_invariant,
        on_step=on_step,
        session=session,
    )
    kwargs |= {"streamer": streamer, "tokenizer": tokenizer, "stop_strings": stop_strings}
    call: Any = model.generate
    output: GenerationOutput = run_custom_loop(model, call, options, inputs=input_ids, **kwargs)
    return output


def run_custom_loop(
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
    """Calls the `generate` of transformers with our loop; `result` converts its output."""
    for name, why_not in _DROPPED.items():
        if arguments.pop(name, None):
            raise UnsupportedRequestError(f"{name} cannot be used: {why_not}")
    for name in {"cache", "past_key_values"} & arguments.keys():
        arguments[CACHE_NAME] = arguments.pop(name)
    _resolve_what_needs_a_tokenizer(model, tokenizer, stop_strings, arguments)

    def loop(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        generation_config: GenerationConfig,
        **prepared: Any,
    ) -> Any:
        prepared |= {"generation_config": generation_config}
        return result(run(options, streamer, model, input_ids, **prepared), generation_config)

    return generate(custom_generate=loop, **arguments)


# What transformers would drop silently.
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


def _resolve_what_needs_a_tokenizer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    stop_strings: str | list[str] | None,
    kwargs: dict[str, Any],
) -> None:
    """Makes a criterion of stop strings: transformers passes a loop no tokenizer."""
    configs = (kwargs.get("generation_config"), model.generation_config)
    if any([kwargs.get("token_healing"), *(getattr(each, "token_healing", 0) for each in configs)]):
        raise UnsupportedRequestError(
            "token_healing cannot be used: pass `model.heal_tokens(input_ids, tokenizer)` as prompt"
        )
    in_configs = (getattr(config, "stop_strings", None) for config in configs)
    stop_strings = stop_strings or next(filter(None, in_configs), None)
    if stop_strings is None:
        return
    if tokenizer is None:
        raise ValueError("stop_strings needs tokenizer: pass the tokenizer of the model")
    criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or [])
    criteria.append(StopStringCriteria(tokenizer, stop_strings))
    kwargs |= {"stopping_criteria": criteria, "stop_strings": None}

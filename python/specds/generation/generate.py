"""`generate`, and the custom decoding loop that transformers calls."""

from collections.abc import Callable
from dataclasses import replace
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
from specds.generation.arguments import (
    UnsupportedRequestError,
    require_inputs,
    require_tokens_only,
)
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
    """Generate what ``model.generate(input_ids, **kwargs)`` would, in fewer target forward passes.

    Greedy decoding gives the same tokens, and sampling the same tokens from the same seed. Only in
    half precision may near-ties break differently, because rounding depends on the shape of a
    forward pass.

    Args:
        model: A decoder-only transformers model in eval mode.
        input_ids: int64 `(num_rows, prompt_length)`, padded on the left with an `attention_mask`.
            Each row has its own tree, and processors and criteria are called for each row alone.
        drafter: Drafts the trees, with one session a row. A datastore or its path makes a
            `FusedDrafter`; None makes one that drafts from the request alone.
        inputs: Another name of `input_ids`, as in `model.generate`.
        max_nodes: Maximum nodes of a draft to verify; 0 decodes without drafts. `auto` uses the
            drafter's own `max_nodes`, if it has one. Otherwise each step verifies as many nodes as
            pay off, up to 63, by the expected gain and the times of the steps so far, which all
            requests of the model share. The text does not depend on it; acceptance lengths do.
        verification: The verification backend. `packed` runs all rows as one sequence with our own
            attention; `model` runs the model as transformers does, with a tree mask. `auto` is
            `packed` on a CPU and on CUDA devices of capability 9.0 (H100), and `model` on other
            devices or if the model's attention cannot be replaced; `stats.reason` says why. Models
            that keep a recurrent state are verified by `chain`: drafts without branches, through
            the model's own cache. A class of a runner, such as
            `specds.papers.path_rows.PathRows`, is accepted too.
        check_model: Before the model's first use, compare one forward pass over a small tree with
            forward passes over its paths (see `specds.verify.check_model`).
        synchronize_timings: Synchronize with a CUDA device at each reading of the clock, so that
            the times in `stats` are exact. This costs speed.
        stream_interval: Hide how many tokens each step emitted, from which an observer can
            learn about the text. The streamer gets this many tokens at once (fewer at the end), and
            each step computes exactly `max_nodes`, an integer below `stream_interval`. The time
            between releases still varies.
        shape_invariant: Make the text of a single row independent of the drafts in half precision
            too. All forward passes have one shape, `max_nodes` (an integer) by `max_length` slots,
            and drafts are chains. This is slower, and near-ties may break differently from the
            baseline. Tested on a CPU; other devices verify with `model`.
        on_step: Called with each `Step` of each row, including the prefill: the draft, its accepted
            nodes, and the emitted tokens with their sources.
        session: A session of the drafter that has observed the only prompt. It observes the emitted
            tokens and is not finished, so that another request can continue it. By default each
            row has its own session.
        streamer: Receives the prompts and each token, as from `model.generate`; with several rows,
            one token of each row at a time.
        tokenizer: Needed for `stop_strings`; a notebook shows the output's text by it.
        stop_strings: Ends the text at any of these.
        **kwargs: The other arguments of `model.generate` for greedy decoding and sampling, such as
            `max_new_tokens`, `do_sample`, `logits_processor`, `generation_config`. `cache` (or
            `past_key_values`) is a `DynamicCache` with the states of the beginning of the only
            prompt. These are not computed again, and the states of all tokens but the last are
            added to it.

    Raises:
        UnsupportedModelError: A tree cannot be verified on `model`.
        UnsupportedRequestError: An argument cannot be served with drafts, such as beams.
        TypeError: `model` is not a model, or `input_ids` is not a tensor of token ids.
        ValueError: An argument is invalid.
    """
    if inputs is not None:
        if input_ids is not None:
            raise ValueError("input_ids and inputs are the same: give one of them")
        input_ids = inputs
    require_inputs(model, input_ids)
    if kwargs.get("custom_generate") is not None:
        raise UnsupportedRequestError(
            "custom_generate cannot be used: specds is itself a decoding loop"
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
    return replace(output, tokenizer=tokenizer)


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
    """Call `generate` of transformers with our decoding loop; `result` converts its output."""
    for name, reason in _DROPPED.items():
        if arguments.pop(name, None):
            raise UnsupportedRequestError(f"{name} cannot be used: {reason}")
    require_tokens_only(model, arguments)
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


# Arguments that transformers would drop silently.
_DROPPED = {
    "assistant_model": "the drafter takes its place",
    "synced_gpus": "each process drafts by itself",
}


def as_transformers(
    output: GenerationOutput, config: GenerationConfig
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Return the output as `model.generate` does."""
    if not config.return_dict_in_generate:
        return output.sequences
    states: dict[str, Any] = {CACHE_NAME: output.cache}
    return GenerateDecoderOnlyOutput(
        sequences=output.sequences,  # type: ignore[arg-type]
        scores=output.scores,  # type: ignore[arg-type]
        logits=output.logits,  # type: ignore[arg-type]
        **states,
    )


def _resolve_stop_strings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    stop_strings: str | list[str] | None,
    kwargs: dict[str, Any],
) -> None:
    """Replace stop strings by a criterion: transformers passes no tokenizer to custom loops."""
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

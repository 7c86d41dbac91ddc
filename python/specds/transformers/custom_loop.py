"""The custom decoding loop that transformers calls, and its arguments."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specds.generation.decode import GenerationOutput
from specds.generation.options import Options, UnsupportedRequestError
from specds.transformers.arguments import require_tokens_only
from specds.transformers.request import run
from specds.transformers.verify.cache import CACHE_NAME


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
    if arguments.get("logits_processor") is not None:
        arguments["logits_processor"] = LogitsProcessorList(arguments["logits_processor"])
    if arguments.get("stopping_criteria") is not None:
        arguments["stopping_criteria"] = StoppingCriteriaList(arguments["stopping_criteria"])
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
        sequences: torch.Tensor = output.sequences
        return sequences
    states: dict[str, Any] = {CACHE_NAME: output.cache}
    made: GenerateDecoderOnlyOutput = GenerateDecoderOnlyOutput(
        sequences=output.sequences, scores=output.scores, logits=output.logits, **states
    )
    return made


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
    criteria = kwargs.get("stopping_criteria") or StoppingCriteriaList()
    criteria.append(StopStringCriteria(tokenizer, stop_strings))
    kwargs |= {"stopping_criteria": criteria, "stop_strings": None}

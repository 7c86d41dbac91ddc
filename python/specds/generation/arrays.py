"""One request of a model without torch: its arguments, sampler and output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds._core import Datastore, TokenTree
from specds.constraints import processor_of_row
from specds.drafters.session import RequestRules
from specds.generation.budget import MAX_NODES
from specds.generation.decode import GenerationOutput, Request
from specds.generation.native import require_native, runner_of
from specds.generation.options import DrafterLike, Options, UnsupportedRequestError
from specds.generation.processors import Processing, Scores
from specds.generation.runner import Verification
from specds.generation.sampling import (
    ArrayEmitter,
    ArrayNoise,
    ArraySampler,
    Sampling,
    StopStrings,
)
from specds.generation.streams import BatchStreamer
from specds.models.context import require_room
from specds.models.gguf_model import GgufCache, GgufModel
from specds.models.tokenization import check_vocabulary

# As in transformers, for a request without a length.
_NEW_TOKENS = 20
_SAMPLING = {each.name for each in fields(Sampling)}
_PROCESSING = {each.name for each in fields(Processing)}
_LENGTHS = {"max_length", "max_new_tokens"}
_OUTPUTS = {"output_logits", "output_scores", "num_return_sequences"}
_OTHERS = {"eos_token_id", "pad_token_id", "prefill_chunk_size"}
_SETTINGS = _SAMPLING | _PROCESSING | _LENGTHS | _OUTPUTS | _OTHERS
# What a single prompt and a text without beams leave unused.
_UNUSED = {"attention_mask", "bos_token_id", "use_cache"}
# The arguments of `specds.generate` that are not settings.
_ARGUMENTS = {each.name for each in fields(Options)} - {"on_unsupported"} | {
    *("cache", "input_ids", "logits_processor", "past_key_values", "return_dict_in_generate"),
    *("seed", "stop_strings", "stopping_criteria", "streamer", "tokenizer"),
}
_OF_TRANSFORMERS = {
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
    "assistant_lookbehind", "assistant_model", "cache_config", "cache_implementation",
    "compile_config", "constraints", "continuous_batching_config", "custom_generate",
    "decoder_start_token_id", "disable_compile", "diversity_penalty", "dola_layers",
    "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
    "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "force_words_ids",
    "forced_bos_token_id", "forced_eos_token_id", "generation_config", "guidance_scale",
    "inputs_embeds", "is_assistant", "length_penalty", "low_memory", "max_cache_len",
    "max_matching_ngram_size", "max_time", "negative_prompt_attention_mask",
    "negative_prompt_ids", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "num_beam_groups", "num_beams", "output_attentions", "output_hidden_states",
    "penalty_alpha", "position_ids", "prefix_allowed_tokens_fn", "prompt_lookup_num_tokens",
    "remove_invalid_values", "renormalize_logits", "speculation_type", "synced_gpus",
    "target_lookbehind", "token_healing", "token_type_ids", "top_h", "typical_p", "use_mtp",
    "watermarking_config",
}  # fmt: skip


class ArrayTarget:
    """A model without torch; see `Target`."""

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self.vocab_size, self.settings = model.vocab_size, model.settings

    def seed(self, number: int) -> None:
        self.model.seed(number)

    def prompt(self, token_ids: Sequence[int]) -> NDArray[np.int64]:
        return np.array([token_ids], dtype=np.int64)

    def new_cache(self) -> GgufCache:
        return self.model.new_cache()

    def require_settings(self, names: Iterable[str]) -> None:
        require_settings(names)

    def generate(
        self, input_ids: Any, options: Options, seed: int | None = None, **settings: Any
    ) -> GenerationOutput:
        if seed is not None:
            self.seed(seed)
        return generate_from_arrays(self.model, input_ids, options, **settings)

    def warm_up(
        self, _: DrafterLike, max_context: int, rows: Sequence[int], verification: Verification
    ) -> None:
        require_native(verification)
        with closing(runner_of(self.model)(self.model)) as runner:
            runner.prefill_rows([np.zeros((1, 2), dtype=np.int64)])
            for num_nodes in (0, MAX_NODES):
                runner.rehearse([0], [TokenTree([0] * num_nodes, range(-1, num_nodes - 1))])


def generate_from_arrays(
    model: GgufModel,
    input_ids: Any,
    options: Options,
    *,
    streamer: Any = None,
    tokenizer: Any = None,
    stop_strings: str | list[str] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    logits_processor: Sequence[Any] | None = None,
    cache: GgufCache | None = None,
    past_key_values: GgufCache | None = None,
    return_dict_in_generate: bool = False,
    **settings: Any,
) -> GenerationOutput:
    """Generate as `specds.generate` does, from one prompt, with a model without torch."""
    require_native(options.verification)
    given = {name: value for name, value in settings.items() if value is not None}
    require_settings(given)
    given = {**model.settings, **given}
    ids = _prompt(input_ids, model.vocab_size)
    require_room(ids.shape[1], model.context_length)
    sampling = Sampling(**{name: given[name] for name in _SAMPLING & given.keys()})
    num_rows = _num_rows(given, sampling)
    datastore = getattr(options.drafter, "datastore", None)
    if isinstance(datastore, Datastore):
        check_vocabulary(datastore, model.vocab_size)
    past = _past(past_key_values if cache is None else cache, ids)
    if num_rows > 1 and not (past is None and options.session is None):
        raise UnsupportedRequestError("num_return_sequences above 1 cannot continue from a cache")
    criteria = [*(stopping_criteria or ())]
    if stop_strings:
        if tokenizer is None:
            raise ValueError("stop_strings needs tokenizer: pass the tokenizer of the model")
        strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
        criteria.append(StopStrings(tokenizer.decode, strings))
    max_length = min(_max_length(given, ids.shape[1]), model.context_length)
    eos = given.get("eos_token_id")
    ends = [eos] if isinstance(eos, int) else [*(eos or ())]
    eos_ids, padding_id = frozenset(ends), int(given.get("pad_token_id", [*ends, 0][0]))
    puts = None
    if streamer is not None:
        streamer.put(ids.repeat(num_rows, axis=0))
        puts = BatchStreamer(streamer, padding_id, options.stream_interval or 1, np.array)
    own = Processing(**{name: given[name] for name in _PROCESSING & given.keys()})
    keeps = {f"keep_{kind}": bool(given.get(f"output_{kind}")) for kind in ("scores", "logits")}
    request = Request(options, model, model.vocab_size, max_length, eos_ids)
    samplers, emitters = [], []
    try:
        for row in range(num_rows):
            processors: list[Any] = own.processors(ids.shape[1], eos_ids, model.vocab_size)
            processors += (processor_of_row(each, row, num_rows) for each in logits_processor or ())
            sampler = ArraySampler(sampling, model.random, processors, **keeps)
            emitter = ArrayEmitter(
                ids, max_length, eos_ids, criteria, None if puts is None else puts.put
            )
            if puts is not None:
                puts.rows.append(emitter)
            samplers.append(sampler)
            emitters.append(emitter)
            rules: Any = (model, processors, sampling.do_sample, max_length, eos_ids)
            request.open_row(ids, sampler, emitter, RequestRules(*rules))
        if num_rows > 1:
            request.noise = ArrayNoise(model.random, num_rows, model.vocab_size)
        stats, kept = request.decode(
            runner_of(model)
            if options.verification in ("auto", "native")
            else options.verification,  # type: ignore[arg-type]
            past,
            chunk_size=given.get("prefill_chunk_size"),
            keeps_cache=return_dict_in_generate,
        )
    finally:
        request.finish()
    if puts is not None:
        puts.end()
    stats.verification = "native"
    sequences = np.full((num_rows, max(each.length for each in emitters)), padding_id)
    for tokens, emitter in zip(sequences, emitters, strict=True):
        tokens[: emitter.length] = emitter.token_ids[0]
    return GenerationOutput(
        sequences,
        stats,
        [row.drafted for row in request.rows],
        request.finish_reasons(),
        scores=_steps([sampler.scores for sampler in samplers]),
        logits=_steps([sampler.logits for sampler in samplers]),
        cache=kept,
        tokenizer=tokenizer,
    )


def require_settings(names: Iterable[str]) -> None:
    """Check the names of the settings of a request.

    Raises:
        UnsupportedRequestError: A setting needs transformers.
        TypeError: There is no such setting; the message has the nearest name.
    """
    for name in sorted({*names} - _SETTINGS - _UNUSED - _ARGUMENTS):
        if name in _OF_TRANSFORMERS:
            raise UnsupportedRequestError(
                f"{name} cannot be used without transformers: load the file by "
                "`load_gguf(path, framework='transformers')`"
            )
        known = _SETTINGS | _UNUSED | _ARGUMENTS | _OF_TRANSFORMERS
        near = get_close_matches(name, known, n=1)
        meant = f": did you mean `{near[0]}`?" if near else ""
        raise TypeError(f"no argument `{name}`{meant}")


def _num_rows(given: dict[str, Any], sampling: Sampling) -> int:
    number = given.get("num_return_sequences", 1)
    if not (isinstance(number, int) and number >= 1):
        raise ValueError(f"num_return_sequences must be at least 1, got {number!r}")
    if number > 1 and not sampling.do_sample:
        raise ValueError(
            "num_return_sequences above 1 needs do_sample=True: greedy texts are equal"
        )
    return number


def _steps(rows: Sequence[list[Scores] | None]) -> tuple[Scores, ...] | None:
    """Return what was stored of each step, `(num_rows, vocab_size)`, zeros for finished rows."""
    kept = [row for row in rows if row is not None]
    if not kept:
        return None
    steps = range(max(map(len, kept)))
    nothing = np.zeros_like(kept[0][0])
    return tuple(
        np.stack([row[step] if step < len(row) else nothing for row in kept]) for step in steps
    )


def _prompt(input_ids: Any, vocab_size: int) -> NDArray[np.int64]:
    """Return a prompt as int64 `(1, length)`.

    Raises:
        TypeError: It is not token ids of one prompt.
        ValueError: It is empty, or a token is outside the vocabulary.
    """
    ids = np.asarray([] if input_ids is None else input_ids)
    if ids.ndim == 1:
        ids = ids[None]
    is_whole = ids.size == 0 or np.issubdtype(ids.dtype, np.integer)
    if not (is_whole and ids.ndim == 2 and len(ids) == 1):
        raise TypeError(
            "input_ids must be the token ids of one prompt, such as `tokenizer.encode(text)`, got "
            f"{ids.dtype} of shape {ids.shape}"
        )
    if ids.size == 0:
        raise UnsupportedRequestError(f"input_ids must not be empty, got shape {ids.shape}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(f"input_ids holds an id outside the vocabulary of {vocab_size:,} tokens")
    return ids.astype(np.int64)


def _max_length(given: dict[str, Any], prompt_length: int) -> int:
    if "max_new_tokens" not in given and "max_length" in given:
        most = int(given["max_length"])
        if most <= prompt_length:
            raise ValueError(f"max_length={most} leaves no room after {prompt_length} tokens")
        return most
    new = int(given.get("max_new_tokens", _NEW_TOKENS))
    if new < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {new}")
    return prompt_length + new


def _past(cache: Any, ids: NDArray[np.int64]) -> GgufCache | None:
    """Return the caller's cache of the beginning of the prompt.

    Raises:
        UnsupportedRequestError: It cannot be used; the message says why.
    """
    if cache is None:
        return None
    if not isinstance(cache, GgufCache):
        raise UnsupportedRequestError("cache cannot be used: drafts continue from a `GgufCache`")
    if cache.get_seq_length() >= ids.shape[1]:
        raise UnsupportedRequestError(
            f"cache cannot be used: it holds {cache.get_seq_length()} tokens, and input_ids must "
            f"begin with these and have more, got {ids.shape[1]}"
        )
    return cache

"""One request of a model without torch: its arguments, sampler and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds._core import Datastore
from specds.accept.on_arrays import ArrayEmitter, ArraySampler, Sampling, StopStrings
from specds.drafters.session import RequestRules
from specds.generation.decode import GenerationOutput, Request
from specds.generation.options import Options, UnsupportedRequestError
from specds.generation.streams import BatchStreamer
from specds.models.context import require_room
from specds.models.gguf_model import GgufCache, GgufModel
from specds.models.tokenization import check_vocabulary
from specds.verify.native import require_native, runner_of

# As in transformers, for a request without a length.
_NEW_TOKENS = 20
_SAMPLING = {each.name for each in fields(Sampling)}
_SETTINGS = _SAMPLING | {"max_length", "max_new_tokens", "eos_token_id", "prefill_chunk_size"}
# What a single prompt and a text without beams leave unused.
_UNUSED = {"attention_mask", "bos_token_id", "pad_token_id", "use_cache"}


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
    if unknown := sorted(given.keys() - _SETTINGS - _UNUSED):
        raise UnsupportedRequestError(
            f"{unknown[0]} cannot be used without transformers: load the file by "
            "`load_gguf(path, framework='transformers')`"
        )
    given = {**model.settings, **given}
    ids = _prompt(input_ids, model.vocab_size)
    require_room(ids.shape[1], model.context_length)
    sampling = Sampling(**{name: given[name] for name in _SAMPLING & given.keys()})
    datastore = getattr(options.drafter, "datastore", None)
    if isinstance(datastore, Datastore):
        check_vocabulary(datastore, model.vocab_size)
    past = _past(past_key_values if cache is None else cache, ids)
    criteria = [*(stopping_criteria or ())]
    if stop_strings:
        if tokenizer is None:
            raise ValueError("stop_strings needs tokenizer: pass the tokenizer of the model")
        strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
        criteria.append(StopStrings(tokenizer.decode, strings))
    puts = None
    if streamer is not None:
        streamer.put(ids)
        puts = BatchStreamer(streamer, 0, options.stream_interval or 1, np.array)
    max_length = min(_max_length(given, ids.shape[1]), model.context_length)
    eos = given.get("eos_token_id")
    eos_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
    emitter = ArrayEmitter(ids, max_length, eos_ids, criteria, None if puts is None else puts.put)
    if puts is not None:
        puts.rows.append(emitter)
    sampler = ArraySampler(sampling, model.random, logits_processor or ())
    request = Request(options, model, model.vocab_size, max_length, eos_ids)
    rules: Any = (model, logits_processor or (), sampling.do_sample, max_length, eos_ids)
    try:
        request.open_row(ids, sampler, emitter, RequestRules(*rules))
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
    drafted = [row.drafted for row in request.rows]
    return GenerationOutput(
        emitter.token_ids,
        stats,
        drafted,
        request.finish_reasons(),
        cache=kept,
        tokenizer=tokenizer,
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

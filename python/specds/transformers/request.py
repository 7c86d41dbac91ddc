"""One request that transformers has prepared: its checks, processors and output."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from specds._core import Datastore
from specds.drafters.session import RequestRules
from specds.generation.decode import GenerationOutput, Request
from specds.generation.options import Options, UnsupportedRequestError
from specds.generation.runner import Verifier
from specds.generation.streams import BatchStreamer, stack_steps
from specds.models.tokenization import check_vocabulary, model_vocab_size
from specds.transformers.accept.draws import Noise
from specds.transformers.accept.on_host import Emitter, Sampler, processors_of_row
from specds.transformers.arguments import (
    require_padding,
    require_past,
    require_request,
    require_rowwise,
    require_usual_inputs,
)
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.generic import Runner
from specds.transformers.verify.support import log_once, require_support


def run(
    options: Options,
    streamer: BaseStreamer | None,
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **model_kwargs: Any,
) -> GenerationOutput:
    """Run a request that transformers has prepared for a custom decoding loop."""
    runner_class, reason = _choose_backend(options, model, len(input_ids))
    shown = require_request(model, input_ids, generation_config, model_kwargs)
    if not runner_class.takes_trees and not bool(shown.all()) and options.check_model:
        require_padding(model, generation_config.prefill_chunk_size)
    past = require_past(model, shown, model_kwargs.get(CACHE_NAME))
    require_usual_inputs(model, input_ids, shown, model_kwargs)
    vocab_size = model_vocab_size(model)
    # A model may lack tokens of its own tokenizer: Gemma 3's 1B model has none for images.
    datastore = getattr(options.drafter, "datastore", None)
    if isinstance(datastore, Datastore):
        check_vocabulary(datastore, vocab_size)
    if len(input_ids) > 1:
        if options.session is not None:
            raise UnsupportedRequestError(
                "session cannot be used: it has the context of one prompt"
            )
        require_rowwise(logits_processor, stopping_criteria, len(input_ids))
    pad_token = generation_config._pad_token_tensor
    padding_id = 0 if pad_token is None else int(pad_token)
    puts = None
    if streamer is not None:
        streamer.put(input_ids.cpu())  # type: ignore[no-untyped-call]
        puts = BatchStreamer(streamer, padding_id, options.stream_interval or 1, torch.tensor)
    config, device = generation_config, model.device
    eos = config.eos_token_id
    eos_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
    request = Request(options, model, vocab_size, config.max_length, eos_ids)
    rows = []
    try:
        for row in range(len(input_ids)):
            ids = input_ids[row : row + 1].long()
            processors = processors_of_row(logits_processor, row, len(input_ids))
            rules = processors, stopping_criteria
            rows.append(_open_row(request, config, ids, shown[row], *rules, puts))
        if config.do_sample:
            request.noise = Noise(len(input_ids), vocab_size, input_ids.device)
        synchronizes = options.synchronize_timings and device.type == "cuda"
        stats, cache = request.decode(
            runner_class,
            past,
            chunk_size=config.prefill_chunk_size,
            keeps_cache=config.return_dict_in_generate,
            synchronize=partial(torch.cuda.synchronize, device) if synchronizes else None,
        )
    finally:
        request.finish()
    if puts is not None:
        puts.end()
    stats.verification, stats.reason = runner_class.name, reason or stats.reason
    if stats.reason:
        log_once(
            model, f"{type(model).__name__} is verified by {stats.verification!r}: {stats.reason}"
        )
    return GenerationOutput(
        # Padded like the output of `model.generate`.
        sequences=torch.nn.utils.rnn.pad_sequence(
            [emitter.token_ids[0] for _, emitter in rows],
            batch_first=True,
            padding_value=padding_id,
        ),
        stats=stats,
        drafted_by_row=[row.drafted for row in request.rows],
        finish_reasons=request.finish_reasons(),
        scores=stack_steps([sampler.scores for sampler, _ in rows]),
        logits=stack_steps([sampler.logits for sampler, _ in rows]),
        cache=cache,
    )


def _choose_backend(
    options: Options, model: PreTrainedModel, num_rows: int
) -> tuple[type[Verifier], str]:
    """Choose the verification backend; see `require_support` for the result.

    `shape_invariant` requires one whose rounding does not depend on the length of a sequence.
    """
    verification = options.verification
    if options.shape_invariant and verification == "auto" and model.device.type != "cpu":
        verification = Runner
    backend = require_support(model, verification=verification, check_model=options.check_model)
    if not backend[0].takes_trees and (options.stream_interval or options.shape_invariant):
        raise UnsupportedRequestError(
            "stream_interval and shape_invariant cannot be used with recurrent states: the width "
            "of a pass depends on what was accepted before: leave them out"
        )
    is_fixed = num_rows == 1 and backend[0].is_shape_invariant(model)
    if options.shape_invariant and not is_fixed:
        raise UnsupportedRequestError(
            "shape_invariant needs one row, and verification 'model' on other devices than a CPU"
        )
    return backend


def _open_row(
    request: Request,
    config: GenerationConfig,
    ids: torch.Tensor,
    shown: torch.Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    streamer: BatchStreamer | None,
) -> tuple[Sampler, Emitter]:
    """Add a row with the prompt `ids`, int64 `(1, length)`."""
    keeps = config.return_dict_in_generate
    sampler = Sampler(
        processors,
        do_sample=config.do_sample,
        keep_scores=keeps and config.output_scores,
        keep_logits=keeps and config.output_logits,
    )
    emitter = Emitter(ids, criteria, streamer, sampler.scores)
    if streamer is not None:
        streamer.rows.append(emitter)
    # Sessions see a prompt without its padding.
    prompt_ids = ids[:, shown]
    max_length = config.max_length - ids.shape[1] + prompt_ids.shape[1]
    rules = RequestRules(
        request.model, processors, config.do_sample, max_length, request.eos_token_ids
    )
    request.open_row(prompt_ids, sampler, emitter, rules)
    return sampler, emitter

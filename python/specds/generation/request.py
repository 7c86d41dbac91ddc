"""One request: its rows, the loop over them, and the output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from specds._core import Datastore, Session
from specds.accept.draws import Noise
from specds.accept.on_host import Emitter, Sampler, processors_of_row
from specds.decoding.budget import (
    MAX_NODES,
    MIN_CHAIN_PROB,
    AutoBudget,
    FixedBudget,
    draft_stats_of,
    step_times_of,
)
from specds.decoding.loop import Decoding, Row
from specds.decoding.stats import GenerationStats
from specds.drafters.session import Drafter, RequestRules
from specds.generation.arguments import (
    UnsupportedRequestError,
    require_padding,
    require_past,
    require_request,
    require_rowwise,
    require_usual_inputs,
)
from specds.generation.kv_cache import extend, load
from specds.generation.options import Options
from specds.generation.streams import BatchStreamer, stack_steps
from specds.models.html import text
from specds.models.render import Spelling
from specds.models.tokenization import check_vocabulary, model_vocab_size
from specds.verify.cache import CACHE_NAME
from specds.verify.generic import Runner
from specds.verify.support import log_once, require_support


@dataclass(frozen=True)
class GenerationOutput:
    """The result of `generate`.

    Attributes:
        sequences: int64 `(num_rows, length)`, prompts and generated tokens, padded on the right.
        stats: Counts and times of the request, all rows together.
        drafted_by_row: Whether each generated token of each row was drafted.
        scores: With `output_scores`, for each generated token the processed scores of all rows,
            float32 `(num_rows, vocab_size)`; zeros for a finished row.
        logits: With `output_logits`, the logits likewise.
        tokenizer: The tokenizer that was passed; notebooks show texts by it.
        cache: With `return_dict_in_generate` and one row, the states of all tokens but the last: in
            the cache that was passed, if there was one.
    """

    sequences: torch.Tensor
    stats: GenerationStats
    drafted_by_row: list[list[bool]]
    scores: tuple[torch.Tensor, ...] | None
    logits: tuple[torch.Tensor, ...] | None
    cache: DynamicCache | None
    tokenizer: Any = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """Return the generated texts, drafted tokens in color, and the figures."""
        texts = ""
        for row, drafted in zip(self.sequences, self.drafted_by_row, strict=True):
            start = len(row) - max(map(len, self.drafted_by_row))
            tokens = row[start : start + len(drafted)].tolist()
            texts += text(zip(self._spelled(tokens), drafted, strict=True))
        return texts + self.stats._repr_html_()

    def _spelled(self, token_ids: list[int]) -> list[str]:
        if self.tokenizer is None:
            return [f"{token} " for token in token_ids]
        spelling = Spelling(self.tokenizer)
        return [spelling.of(token) for token in token_ids]

    @property
    def past_key_values(self) -> DynamicCache | None:
        """The cache, by its name in transformers before 5.24."""
        return self.cache


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
    runner_class, name, reason = _choose_backend(options, model, len(input_ids))
    shown = require_request(model, input_ids, generation_config, model_kwargs)
    if not runner_class.takes_trees and not bool(shown.all()) and options.check_model:
        require_padding(model)
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
        require_rowwise(logits_processor, stopping_criteria)
    pad_token = generation_config._pad_token_tensor
    padding_id = 0 if pad_token is None else int(pad_token)
    puts = None
    if streamer is not None:
        streamer.put(input_ids.cpu())  # type: ignore[no-untyped-call]
        puts = BatchStreamer(streamer, padding_id, options.stream_interval or 1)
    request = _Request(options, model, generation_config, vocab_size, puts)
    try:
        for row in range(len(input_ids)):
            ids = input_ids[row : row + 1].long()
            processors = processors_of_row(logits_processor, row)
            request.open_row(ids, shown[row], processors, stopping_criteria)
        if generation_config.do_sample:
            request.noise = Noise(len(input_ids), vocab_size, input_ids.device)
        stats, cache = request.decode(runner_class, past)
    finally:
        request.finish()
    if puts is not None:
        puts.end()
    stats.verification, stats.reason = name, reason or stats.reason
    if stats.reason:
        log_once(model, f"{type(model).__name__} is verified by {name!r}: {stats.reason}")
    rows = request.rows
    return GenerationOutput(
        # Padded like the output of `model.generate`.
        sequences=torch.nn.utils.rnn.pad_sequence(
            [row.emitter.token_ids[0] for row in rows], batch_first=True, padding_value=padding_id
        ),
        stats=stats,
        drafted_by_row=[row.drafted for row in rows],
        scores=stack_steps([row.sampler.scores for row in rows]),
        logits=stack_steps([row.sampler.logits for row in rows]),
        cache=cache,
    )


def _choose_backend(
    options: Options, model: PreTrainedModel, num_rows: int
) -> tuple[type[Runner], str, str]:
    """Choose the verification backend; see `require_support` for the result.

    `shape_invariant` requires one whose rounding does not depend on the length of a sequence.
    """
    verification, is_cpu = options.verification, model.device.type == "cpu"
    if options.shape_invariant and verification == "auto" and not is_cpu:
        verification = "model"
    backend = require_support(model, verification=verification, check_model=options.check_model)
    if not backend[0].takes_trees and (options.stream_interval or options.shape_invariant):
        raise UnsupportedRequestError(
            "stream_interval and shape_invariant cannot be used with recurrent states: the width "
            "of a pass depends on what was accepted before"
        )
    is_fixed = backend[1] in ("model", "native") or (backend[1] == "packed" and is_cpu)
    if options.shape_invariant and not (is_fixed and num_rows == 1):
        raise UnsupportedRequestError(
            "shape_invariant needs one row, and verification 'model' on other devices than a CPU"
        )
    return backend


@dataclass
class _Request:
    """The rows of a request, what they share, and the loop over them."""

    options: Options
    model: PreTrainedModel
    config: GenerationConfig
    vocab_size: int
    streamer: BatchStreamer | None
    rows: list[Row] = field(default_factory=list)
    noise: Noise | None = None

    def open_row(
        self,
        ids: torch.Tensor,
        shown: torch.Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
    ) -> None:
        """Add a row with the prompt `ids`, int64 `(1, length)`, and start its session."""
        config, options = self.config, self.options
        keeps = config.return_dict_in_generate
        sampler = Sampler(
            processors,
            do_sample=config.do_sample,
            keep_scores=keeps and config.output_scores,
            keep_logits=keeps and config.output_logits,
        )
        emitter = Emitter(ids, criteria, self.streamer, sampler.scores)
        if self.streamer is not None:
            self.streamer.rows.append(emitter)
        # Sessions see a prompt without its padding.
        prompt_ids = ids[:, shown]
        max_length = config.max_length - ids.shape[1] + prompt_ids.shape[1]
        eos = config.eos_token_id
        eos_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
        rules = RequestRules(self.model, processors, config.do_sample, max_length, eos_ids)
        start = partial(_start_session, options.drafter, rules)
        known_tokens = min(options.drafter.vocab_size or self.vocab_size, self.vocab_size)
        row = Row(
            prompt_ids, sampler, emitter, start, known_tokens, len(self.rows), options.session
        )
        self.rows.append(row)
        if options.session is not None:
            options.session.begin(rules)

    def decode(
        self, runner_class: type[Runner], past: DynamicCache | None
    ) -> tuple[GenerationStats, DynamicCache | None]:
        """Decode all rows together, and return the cache that the caller asked for."""
        num_nodes, max_length = self.options.num_nodes, self.config.max_length
        runner = runner_class(
            self.model,
            prompt_length=max(row.prompt_ids.shape[1] for row in self.rows),
            max_length=max_length,
            max_nodes=MAX_NODES if num_nodes == "auto" else num_nodes,
            num_rows=len(self.rows),
        )
        # A single row that is accepted on the host draws one number after the other.
        if self.noise is not None and (len(self.rows) > 1 or runner.accepts):
            for row in self.rows:
                row.sampler.draw_by(self.noise, row.number)
        cache = None
        try:
            budget = self._budget(runner)
            if past is not None:
                load(past, runner)
            device = self.model.device
            synchronizes = self.options.synchronize_timings and device.type == "cuda"
            decoding = Decoding(
                runner,
                budget,
                max_length,
                device if synchronizes else None,
                self.noise,
                self.options.on_step,
            )
            decoding.run(self.rows, self.config.prefill_chunk_size)
            if past is not None:
                cache = extend(past, runner)
            elif self.config.return_dict_in_generate and len(self.rows) == 1:
                cache = runner.committed()
        finally:
            runner.close()
        decoding.stats.reason = runner.reason
        return decoding.stats, cache

    def _budget(self, runner: Runner) -> FixedBudget:
        """Return the budget of the request, and fix the shape of forward passes if it must be."""
        options, num_nodes = self.options, self.options.num_nodes
        if num_nodes == "auto":
            setting = *runner.setting, self.rows[0].sampler.is_argmax
            times = step_times_of(self.model, setting)
            stats = draft_stats_of(options.drafter)
            is_chain = not runner.takes_trees
            return AutoBudget(times, stats, self.vocab_size, len(self.rows), is_chain=is_chain)
        if not runner.takes_trees:
            return FixedBudget(num_nodes, self.vocab_size, is_chain=True, min_prob=MIN_CHAIN_PROB)
        if options.stream_interval is not None:
            runner.least_nodes = num_nodes
        if options.shape_invariant:
            runner.fix_shape(num_nodes, self.config.max_length + num_nodes)
        return FixedBudget(num_nodes, self.vocab_size, is_chain=options.shape_invariant)

    def finish(self) -> None:
        """Finish the sessions, and leave the random generator as the baseline would."""
        with ExitStack() as finishing:
            if self.noise is not None:
                num_emitted = max(len(row.emitter.emitted) for row in self.rows)
                finishing.callback(self.noise.close, num_emitted)
            for row in reversed(self.rows):
                finishing.callback(row.finish)


def _start_session(drafter: Drafter, rules: RequestRules, token_ids: Sequence[int]) -> Session:
    session = drafter.session(token_ids)
    if not isinstance(session, Session):
        name = type(session).__name__
        raise TypeError(f"a drafter's session must be a `specds.drafters.Session`, not {name}")
    with ExitStack() as on_failure:
        on_failure.callback(session.finish)
        session.begin(rules)
        on_failure.pop_all()
    return session

"""One request: its rows, the runner, the loop over them, and the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

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
from specds.accept.on_device import PassRequest
from specds.accept.on_host import Emitter, Sampler, processors_of_row
from specds.decoding.budget import AutoBudget, FixedBudget, draft_stats_of, require_max_nodes
from specds.decoding.loop import Decoding, Row
from specds.decoding.stats import GenerationStats
from specds.decoding.step_cost import MOST_NODES, step_costs
from specds.drafters.fused import FusedDrafter
from specds.drafters.registry import KINDS
from specds.drafters.session import Drafter, RequestRules, own_max_nodes
from specds.drafters.step import Step
from specds.generation.arguments import (
    UnsupportedRequestError,
    require_past,
    require_request,
    require_rowwise,
)
from specds.generation.kv_cache import extend, load
from specds.generation.streams import BatchStreamer, stack_steps
from specds.models.tokenization import check_vocabulary, model_vocab_size
from specds.verify.cache import CACHE_NAME
from specds.verify.generic import Runner
from specds.verify.support import Verification, require_support, require_verification

Drafts: TypeAlias = Drafter | Datastore | str | PathLike[str] | None
"""A drafter, or a datastore, its path or None for a `FusedDrafter`."""


class DraftOptions(TypedDict, total=False):
    """The options of every call; see `specds.generate`."""

    max_nodes: int | Literal["auto"]
    verification: Verification
    check_model: bool
    stream_interval: int | None
    shape_invariant: bool


@dataclass(frozen=True)
class Options:
    """How a caller wants requests to be drafted; see `specds.generate` and `accelerate`."""

    drafter: Drafter
    max_nodes: int | Literal["auto"] = "auto"
    verification: Verification = "auto"
    check_model: bool = True
    synchronize_timings: bool = False
    stream_interval: int | None = None
    shape_invariant: bool = False
    on_unsupported: str = "refuse"
    on_step: Callable[[Step], object] | None = None
    session: Session | None = None

    @classmethod
    def of(cls, drafter: Drafts, **options: Any) -> Options:
        """The options, with a drafter for a datastore or nothing."""
        if isinstance(drafter, str) and drafter in KINDS and not Path(drafter).exists():
            raise ValueError(
                f"drafter must be a drafter or a datastore, and `{drafter}` is a name that the "
                "command line knows: make one, such as `specds.FusedDrafter()`"
            )
        if drafter is None or isinstance(drafter, (str, PathLike, Datastore)):
            drafter = FusedDrafter(drafter)
        if not hasattr(drafter, "session"):
            kind = type(drafter).__name__
            raise TypeError(f"expected a drafter, a datastore or the path of one, got {kind}")
        return cls(drafter, **options)

    def __post_init__(self) -> None:
        require_max_nodes(self.max_nodes)
        require_verification(self.verification)
        if self.on_unsupported not in ("refuse", "baseline"):
            raise ValueError(
                f"on_unsupported must be 'refuse' or 'baseline', got {self.on_unsupported!r}"
            )
        if self.shape_invariant and own_max_nodes(self.drafter, self.max_nodes) == "auto":
            raise ValueError("shape_invariant=True requires an integer max_nodes")
        if self.stream_interval is None:
            return
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval must be at least 1, got {self.stream_interval}")
        if own_max_nodes(self.drafter, self.max_nodes) == "auto":
            raise ValueError(
                "stream_interval requires an integer max_nodes: 'auto' reveals how much of a text "
                "is drafted"
            )


@dataclass(frozen=True)
class GenerationOutput:
    """What `generate` returns.

    Attributes:
        sequences: int64 `(num_rows, length)`, prompts and emitted tokens, padded on the right.
        stats: Counts and times of the request, all rows together.
        drafted_by_row: For each emitted token of each row, whether it was drafted.
        scores: With `output_scores`, the processed scores `(num_rows, vocab_size)` of the first,
            second, ... token of the rows; zeros for a finished row.
        logits: With `output_logits`, the logits `(num_rows, vocab_size)` likewise.
        cache: With `return_dict_in_generate` and one row, the states of all tokens but the last: in
            the cache that was passed, if there was one.
    """

    sequences: torch.Tensor
    stats: GenerationStats
    drafted_by_row: list[list[bool]]
    scores: tuple[torch.Tensor, ...] | None
    logits: tuple[torch.Tensor, ...] | None
    cache: DynamicCache | None

    @property
    def past_key_values(self) -> DynamicCache | None:
        """The cache, as transformers before 5.24 calls it."""
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
    """Runs a request that transformers has prepared for a decoding loop."""
    verifies, name, reason = _way_to_verify(options, model, len(input_ids))
    shown = require_request(model, input_ids, generation_config, model_kwargs)
    past = require_past(model, shown, model_kwargs.get(CACHE_NAME))
    vocab_size = model_vocab_size(model)
    # A model may lack tokens of its own tokenizer: Gemma 3's 1B model has none for images.
    datastore = getattr(options.drafter, "datastore", None)
    if isinstance(datastore, Datastore):
        check_vocabulary(datastore, vocab_size)
    known_tokens = min(options.drafter.vocab_size or vocab_size, vocab_size)
    if len(input_ids) > 1:
        if options.session is not None:
            raise UnsupportedRequestError(
                "session cannot be used: it has the context of one prompt"
            )
        require_rowwise(logits_processor, stopping_criteria)
    padding = generation_config._pad_token_tensor
    padding_id = 0 if padding is None else int(padding)
    if streamer is not None:
        streamer.put(input_ids.cpu())  # type: ignore[no-untyped-call]
    every = options.stream_interval or 1
    puts = None if streamer is None else BatchStreamer(streamer, padding_id, every)
    rows: list[Row] = []
    noise = None
    try:
        for number in range(len(input_ids)):
            ids = input_ids[number : number + 1].long()
            processors = processors_of_row(logits_processor, number)
            keeps = generation_config.return_dict_in_generate
            sampler = Sampler(
                processors,
                do_sample=generation_config.do_sample,
                keep_scores=keeps and generation_config.output_scores,
                keep_logits=keeps and generation_config.output_logits,
            )
            emitter = Emitter(ids, stopping_criteria, puts, sampler.scores)
            if puts is not None:
                puts.rows.append(emitter)
            prompt_ids = ids[:, shown[number]]
            # Sessions see a prompt without its padding.
            max_length = generation_config.max_length - ids.shape[1] + prompt_ids.shape[1]
            do_sample, eos = generation_config.do_sample, generation_config.eos_token_id
            eos_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
            rules = RequestRules(model, processors, do_sample, max_length, eos_ids)
            opens, kept = partial(_open, options.drafter, rules), options.session
            rows.append(Row(prompt_ids, sampler, emitter, opens, known_tokens, number, kept))
            if kept is not None:
                kept.begin(rules)
        if generation_config.do_sample:
            noise = Noise(len(rows), vocab_size, input_ids.device)
        stats, cache = _decode(
            options, model, verifies, rows, noise, vocab_size, past, generation_config
        )
        stats.verification, stats.reason = name, reason or stats.reason
    finally:
        with ExitStack() as finishing:
            if noise is not None:
                finishing.callback(noise.close, max(len(row.emitter.emitted) for row in rows))
            for row in reversed(rows):
                finishing.callback(row.finish)
    if puts is not None:
        puts.end()
    return GenerationOutput(
        # Padded as `model.generate` does.
        sequences=torch.nn.utils.rnn.pad_sequence(
            [row.emitter.token_ids[0] for row in rows], batch_first=True, padding_value=padding_id
        ),
        stats=stats,
        drafted_by_row=[row.drafted for row in rows],
        scores=stack_steps([row.sampler.scores for row in rows]),
        logits=stack_steps([row.sampler.logits for row in rows]),
        cache=cache,
    )


def _way_to_verify(
    options: Options, model: PreTrainedModel, num_rows: int
) -> tuple[type[Runner], str, str]:
    """As `require_support` has it; what is exact needs passes that round alike at all lengths."""
    wanted, is_cpu = options.verification, model.device.type == "cpu"
    if options.shape_invariant and wanted == "auto" and not is_cpu:
        wanted = "model"
    way = require_support(model, verification=wanted, check_model=options.check_model)
    is_fixed = way[1] == "model" or (way[1] == "packed" and is_cpu)
    if options.shape_invariant and not (is_fixed and num_rows == 1):
        raise UnsupportedRequestError(
            "shape_invariant needs one row, and verification 'model' on other devices than a CPU"
        )
    return way


def _open(drafter: Drafter, rules: RequestRules, token_ids: Sequence[int]) -> Session:
    session = drafter.session(token_ids)
    if not isinstance(session, Session):
        name = type(session).__name__
        raise TypeError(f"a drafter's session must be a `specds.drafters.Session`, not {name}")
    with ExitStack() as on_failure:
        on_failure.callback(session.finish)
        session.begin(rules)
        on_failure.pop_all()
    return session


def _measured(runner: Runner, rows: Sequence[Row], vocab_size: int) -> PassRequest | None:
    """What is asked of the passes whose time is measured; None where the host accepts."""
    if not (runner.accepts and rows[0].logits_only):
        return None
    sampler, most = rows[0].sampler, max(row.session.num_predictions for row in rows)
    like = rows[0].prompt_ids
    noise = None if sampler.is_argmax else torch.ones((1, 2, vocab_size), device=like.device)
    return PassRequest(sampler, most, rows[0].known_tokens, noise)


def _decode(
    options: Options,
    model: PreTrainedModel,
    verifies: type[Runner],
    rows: list[Row],
    noise: Noise | None,
    vocab_size: int,
    past: DynamicCache | None,
    generation_config: GenerationConfig,
) -> tuple[GenerationStats, DynamicCache | None]:
    """Decodes all rows together."""
    num_nodes = own_max_nodes(options.drafter, options.max_nodes)
    runner = verifies(
        model,
        prompt_length=max(row.prompt_ids.shape[1] for row in rows),
        max_length=generation_config.max_length,
        max_nodes=MOST_NODES if num_nodes == "auto" else num_nodes,
        num_rows=len(rows),
    )
    # A single row that is followed on the host draws one number after the other.
    if noise is not None and (len(rows) > 1 or runner.accepts):
        for row in rows:
            row.sampler.draw_by(noise, row.number)
    cache = None
    try:
        budget: FixedBudget
        if num_nodes == "auto":
            costs = partial(step_costs, model, runner, _measured(runner, rows, vocab_size))
            budget = AutoBudget(costs, draft_stats_of(options.drafter), len(rows))
        else:
            budget = FixedBudget(num_nodes, is_chain=options.shape_invariant)
            if options.stream_interval is not None:
                runner.least_nodes = num_nodes
            if options.shape_invariant:
                runner.fix_shape(num_nodes, generation_config.max_length + num_nodes)
        if past is not None:
            load(past, runner.cache)
        waits_for = (
            model.device if options.synchronize_timings and model.device.type == "cuda" else None
        )
        max_length = generation_config.max_length
        decoding = Decoding(
            runner, budget, max_length, vocab_size, waits_for, noise, options.on_step
        )
        decoding.run(rows, generation_config.prefill_chunk_size)
        if past is not None:
            cache = extend(past, runner.cache)
        elif generation_config.return_dict_in_generate and len(rows) == 1:
            cache = runner.cache.committed()
    finally:
        runner.close()
    decoding.stats.reason = runner.reason
    return decoding.stats, cache

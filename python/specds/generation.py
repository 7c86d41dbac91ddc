"""What `model.generate` does, by drafts: one call, and the same as a loop for transformers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from transformers import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specds.accept.on_device import Chooser
from specds.accept.on_host import Emitter, Sampler, processors_of_row
from specds.budget.experience import experience_of
from specds.budget.policy import AutoBudget, Budget, FixedBudget, require_budget
from specds.budget.step_cost import MOST_NODES, StepCosts
from specds.decoding import Decoding, Limits, Row, clock_of, refuse_tokens_beyond
from specds.drafters.session import RequestRules, Session, node_budget
from specds.stats import GenerationStats
from specds.verify.runners import runner_class
from specds.verify.support import (
    require_arguments,
    require_rowwise,
    require_support,
    require_verification,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import (
        DynamicCache,
        GenerationConfig,
        LogitsProcessorList,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )
    from transformers.generation.streamers import BaseStreamer

    from specds.drafters.session import Drafter


@dataclass(frozen=True)
class GenerationOutput:
    """What `generate` returns.

    Attributes:
        sequences: int64 `(num_rows, length)`, the prompts and the emitted tokens; what is shorter
            than the longest is filled up with the padding token.
        stats: What the request did and where its time went, all sequences together.
        drafted_by_row: For each emitted token of each sequence, whether it had been drafted.
        scores: With `output_scores`, the processed scores `(1, vocab_size)` of each emitted token.
        logits: With `output_logits`, the logits `(1, vocab_size)` of each emitted token.
        past_key_values: With `return_dict_in_generate`, the states of all tokens but the last of
            the only sequence.
        step_seconds: With an automatic budget, the cost of a step as known at the end of the
            request: seconds by number of nodes verified.
    """

    sequences: torch.Tensor
    stats: GenerationStats
    drafted_by_row: list[list[bool]]
    scores: tuple[torch.Tensor, ...] | None
    logits: tuple[torch.Tensor, ...] | None
    past_key_values: DynamicCache | None
    step_seconds: dict[int, float] | None

    @property
    def drafted(self) -> list[bool]:
        """For each emitted token of the only sequence, whether it had been drafted.

        Raises:
            ValueError: There are several: see `drafted_by_row`.
        """
        if len(self.drafted_by_row) > 1:
            raise ValueError("there are several sequences: use drafted_by_row")
        return self.drafted_by_row[0]


def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    drafter: Drafter,
    *,
    budget: int | Literal["auto"] = "auto",
    verification: str = "auto",
    self_check: bool = True,
    profile: bool = False,
    forced_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
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
        drafter: Drafts the trees; it gets one session per sequence.
        budget: How many nodes of a draft are verified. `auto` is the drafter's own `max_nodes`
            where it names one. Elsewhere each step verifies what pays, up to 64 nodes or none, by
            what the drafter expects to gain and by the time of a step, which is measured before a
            model's first draft (about a second, once for a model and a machine) and followed from
            then on. A number is the most nodes of every draft, 0 plain decoding. Acceptance lengths
            can only be repeated with a number; what is emitted never depends on it.
        verification: `fast` and `tree` check every node of a draft once, by a tree mask; `tree` has
            the model attend as it does, `fast` by an attention that reads the states of the context
            once. `batched` makes each path of a draft a row of a batch, as N-Grammys do: more to
            compute. `auto` is `fast`, or `tree` for models whose attention cannot be exchanged.
            What is emitted is the same, but that `fast` draws samples on a CUDA device there: of
            the same distribution, not those of plain decoding from the same seed.
        self_check: Before the model's first use, compare a small tree with plain forward passes
            (see `specds.verify.check_model`).
        profile: Wait for a CUDA device at each reading of the clock, so that the times in `stats`
            are true. That costs speed; without it `accept_s` takes the blame for queued work.
        forced_ids: For benchmarks of models with random weights: emit these tokens, whatever the
            target chooses, and end with the last of them. All work is done as for its own text,
            and drafts are accepted where they agree with these. For all sequences, or for each.
        streamer: Gets the prompt and each token, as from `model.generate`.
        tokenizer: Needed for `stop_strings`.
        stop_strings: Ends the text at any of these.
        **kwargs: All else that `model.generate` takes for greedy decoding and sampling, such as
            `max_new_tokens`, `do_sample`, `temperature`, `logits_processor`, `stopping_criteria`,
            `generation_config`, `prefill_chunk_size`.

    Raises:
        UnsupportedModelError: A tree cannot be verified on `model`.
        ValueError: An argument asks for what a tree cannot do (beams, a cache from outside, scores
            of a batch), or the drafter drafts tokens that the model does not have.
    """
    if kwargs.pop("assistant_model", None) is not None:
        raise ValueError("assistant_model cannot be used here: the drafter takes its place")
    if kwargs.pop("custom_generate", None) is not None:
        raise ValueError("custom_generate cannot be used here: this is a decoding loop of its own")
    _resolve_stop_strings(model, tokenizer, stop_strings, kwargs)
    options = _Options(drafter, budget, verification, self_check, profile, streamer, forced_ids)
    if forced_ids is not None and kwargs.keys().isdisjoint({"max_new_tokens", "max_length"}):
        rows: Any = [forced_ids] if np.ndim(forced_ids[0]) == 0 else forced_ids
        kwargs["max_new_tokens"] = max(map(len, rows))
    output: GenerationOutput = model.generate(  # type: ignore[operator]
        input_ids, custom_generate=partial(_run, options), **kwargs
    )
    return output


def custom_generate(
    drafter: Drafter,
    *,
    budget: int | Literal["auto"] = "auto",
    verification: str = "auto",
    self_check: bool = True,
    streamer: BaseStreamer | None = None,
) -> Callable[..., torch.Tensor | GenerateDecoderOnlyOutput]:
    """The decoding loop as a value for ``model.generate(..., custom_generate=...)``.

    `model.generate` then returns what it always does. Give the streamer here and stop strings as a
    `StopStringCriteria`: transformers does not pass them on to a custom loop.

    Args:
        drafter: Drafts the trees; it gets one session per request.
        budget: As in `generate`.
        verification: As in `generate`.
        self_check: As in `generate`.
        streamer: As in `generate`.
    """
    options = _Options(drafter, budget, verification, self_check, False, streamer)

    def run(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        generation_config: GenerationConfig,
        **prepared: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        output = _run(options, model, input_ids, generation_config=generation_config, **prepared)
        if not generation_config.return_dict_in_generate:
            return output.sequences
        return GenerateDecoderOnlyOutput(
            sequences=output.sequences,  # type: ignore[arg-type]
            scores=output.scores,  # type: ignore[arg-type]
            logits=output.logits,  # type: ignore[arg-type]
            past_key_values=output.past_key_values,
        )

    return run


@dataclass(frozen=True)
class _Options:
    drafter: Drafter
    budget: int | Literal["auto"]
    verification: str
    self_check: bool
    profile: bool
    streamer: BaseStreamer | None
    forced_ids: Sequence[int] | Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        if self.forced_ids is not None and len(self.forced_ids) == 0:
            raise ValueError("forced_ids is empty: give at least one token")
        require_budget(self.budget)
        require_verification(self.verification)


def _run(
    options: _Options,
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **model_kwargs: Any,
) -> GenerationOutput:
    """One request, with everything that transformers prepares for a decoding loop."""
    verification = require_support(
        model, verification=options.verification, self_check=options.self_check
    )
    paddings = require_arguments(input_ids, generation_config, model_kwargs)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    known_tokens = options.drafter.vocab_size or vocab_size
    refuse_tokens_beyond(vocab_size, known_tokens - 1)
    forced = _forced_rows(options.forced_ids, len(input_ids), vocab_size)
    make_sampler = partial(
        Sampler,
        do_sample=generation_config.do_sample,
        keep_scores=generation_config.return_dict_in_generate and generation_config.output_scores,
        keep_logits=generation_config.return_dict_in_generate and generation_config.output_logits,
    )
    samplers = [make_sampler(logits_processor)]
    if len(input_ids) > 1:
        require_rowwise(logits_processor, options.streamer, samplers[0].keeps)
        processors = (processors_of_row(logits_processor, row) for row in range(len(input_ids)))
        samplers = [make_sampler(of_row) for of_row in processors]
    if options.streamer is not None:
        options.streamer.put(input_ids.cpu())  # type: ignore[no-untyped-call]
    rows: list[Row] = []
    try:
        for number, sampler in enumerate(samplers):
            ids = input_ids[number : number + 1]
            emitter = Emitter(
                ids, stopping_criteria, options.streamer, sampler.scores, forced[number]
            )
            prompt_ids = ids[:, paddings[number] :]
            session = options.drafter.session(prompt_ids[0].tolist())
            if not isinstance(session, Session):
                name = type(session).__name__
                raise TypeError(
                    f"a drafter's session must be a `specds.drafters.Session`, not {name}"
                )
            rows.append(Row(prompt_ids, sampler, emitter, session))
        limits = Limits(generation_config.max_length, vocab_size, known_tokens)
        chooser = None
        proposed = generation_config.do_sample and rows[0].session.proposes
        if not samplers[0].keeps and not proposed:
            chooser = Chooser.of(logits_processor, do_sample=generation_config.do_sample)
        stats, cache, step_seconds = _decode(
            options, model, verification, chooser, rows, limits, generation_config
        )
    finally:
        for row in rows:
            row.session.finish()
    if options.streamer is not None:
        options.streamer.end()  # type: ignore[no-untyped-call]
    scores, logits = samplers[0].scores, samplers[0].logits
    padding = generation_config._pad_token_tensor
    return GenerationOutput(
        # Shorter sequences are filled up as `model.generate` does.
        sequences=torch.nn.utils.rnn.pad_sequence(
            [row.emitter.token_ids[0] for row in rows],
            batch_first=True,
            padding_value=0 if padding is None else int(padding),
        ),
        stats=stats,
        drafted_by_row=[row.drafted for row in rows],
        scores=None if scores is None else tuple(scores),
        logits=None if logits is None else tuple(logits),
        past_key_values=cache,
        step_seconds=step_seconds,
    )


def _decode(
    options: _Options,
    model: PreTrainedModel,
    verification: str,
    chooser: Chooser | None,
    rows: list[Row],
    limits: Limits,
    generation_config: GenerationConfig,
) -> tuple[GenerationStats, DynamicCache | None, dict[int, float] | None]:
    """Decodes all rows together where the runner can, else one after the other."""
    stats = GenerationStats()
    cache = step_seconds = None
    num_nodes = node_budget(options.drafter, options.budget)
    eos = generation_config.eos_token_id
    runs = runner_class(verification, model.device)
    for batch in [rows] if runs.takes_rows else [[row] for row in rows]:
        runner = runs(
            model,
            prompt_length=max(row.prompt_ids.shape[1] for row in batch),
            max_length=limits.max_length,
            max_nodes=MOST_NODES if num_nodes == "auto" else num_nodes,
            num_rows=len(batch),
        )
        try:
            clock = clock_of(model.device, options.profile)
            costs = StepCosts(model, runner, verification)
            budget: Budget
            if num_nodes == "auto":
                budget = AutoBudget(costs.now, experience_of(options.drafter))
            else:
                budget = FixedBudget(num_nodes)
            for row in batch:
                # Sessions see a prompt without its padding.
                padding = row.emitter.length - row.prompt_ids.shape[1]
                rules = RequestRules(
                    model,
                    row.sampler.logits_processor,
                    generation_config.do_sample,
                    limits.max_length - padding,
                    frozenset([eos] if isinstance(eos, int) else eos or ()),
                )
                row.session.join(rules)
            decoding = Decoding(runner, limits, budget, chooser, clock)
            decoding.run(batch, generation_config.prefill_chunk_size)
            if generation_config.return_dict_in_generate and len(rows) == 1:
                cache = runner.cache.committed()
        finally:
            runner.close()
        stats.merge(decoding.stats)
        step_seconds = budget.step_seconds()
    return stats, cache, step_seconds


def _forced_rows(
    forced_ids: Sequence[int] | Sequence[Sequence[int]] | None, num_rows: int, vocab_size: int
) -> Sequence[Sequence[int] | None]:
    """What each sequence is forced to emit."""
    if forced_ids is None:
        return [None] * num_rows
    rows: list[Any] = [forced_ids] * num_rows if np.ndim(forced_ids[0]) == 0 else [*forced_ids]
    if len(rows) != num_rows or not all(len(row) for row in rows):
        raise ValueError(f"forced_ids must be tokens for each of {num_rows} sequences")
    unknown = [token for row in rows for token in row if not 0 <= token < vocab_size]
    if unknown:
        raise ValueError(f"forced_ids has token {unknown[0]}, the model has {vocab_size}")
    return rows


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
    if tokenizer is None:
        raise ValueError("stop_strings needs tokenizer: pass the tokenizer of the model")
    criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or [])
    criteria.append(StopStringCriteria(tokenizer, stop_strings))
    kwargs |= {"stopping_criteria": criteria, "stop_strings": None}

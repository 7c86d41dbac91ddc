"""The decoding loop: draft a tree, verify it in one target forward, accept, observe."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specds._core import TokenTree
from specds.drafters.protocol import RecyclingSession, node_budget
from specds.stats import GenerationStats
from specds.verify.accept import Emitter, Sampler, accept_greedy, walk
from specds.verify.batched import RUNNERS
from specds.verify.budget import make_budget, require_budget
from specds.verify.cost import MOST_NODES, StepCosts
from specds.verify.support import require_arguments, require_support, require_verification

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import (
        DynamicCache,
        GenerationConfig,
        LogitsProcessorList,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )
    from transformers.generation.streamers import BaseStreamer

    from specds.drafters import Drafter, Session
    from specds.verify.budget import Budget
    from specds.verify.runner import Runner


_EMPTY_TREE = TokenTree([], [])


@dataclass(frozen=True)
class GenerationOutput:
    """What `generate` returns.

    Attributes:
        sequences: int64 `(1, length)`, the prompt and the emitted tokens.
        stats: What the request did and where its time went.
        drafted: For each emitted token, whether it had been drafted.
        scores: With `output_scores`, the processed scores `(1, vocab_size)` of each emitted token.
        logits: With `output_logits`, the logits `(1, vocab_size)` of each emitted token.
        past_key_values: With `return_dict_in_generate`, the states of all tokens but the last.
        step_seconds: With an automatic budget, what a step is held to cost at the end of the
            request: seconds by number of nodes verified.
    """

    sequences: torch.Tensor
    stats: GenerationStats
    drafted: list[bool]
    scores: tuple[torch.Tensor, ...] | None
    logits: tuple[torch.Tensor, ...] | None
    past_key_values: DynamicCache | None
    step_seconds: dict[int, float] | None


def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    drafter: Drafter,
    *,
    budget: int | Literal["auto"] = "auto",
    verification: str = "tree",
    self_check: bool = True,
    profile: bool = False,
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
        input_ids: int64 `(1, prompt_length)`, one prompt without padding.
        drafter: Drafts the trees; it gets one session for this request.
        budget: How many nodes of a draft are verified. `auto` is the drafter's own `max_nodes`
            where it names one. Elsewhere each step verifies what pays, up to 64 nodes or none, by
            what the drafter expects to gain and by the time of a step, which is measured before a
            model's first draft (about a second, once for a model and a machine) and followed from
            then on. A number is the most nodes of every draft, 0 plain decoding. Acceptance lengths
            can only be repeated with a number; what is emitted never depends on it.
        verification: `tree` checks every node of a draft once, by a tree mask. `batched` makes each
            of its paths a row of a batch, as N-Grammys do: more to compute, and no prefix is
            copied. What is emitted is the same.
        self_check: Before the model's first use, compare a small tree with plain forward passes
            (see `specds.verify.check_model`).
        profile: Wait for a CUDA device at each reading of the clock, so that the times in `stats`
            are true. That costs speed; without it `accept_s` takes the blame for queued work.
        streamer: Gets the prompt and each token, as from `model.generate`.
        tokenizer: Needed for `stop_strings`.
        stop_strings: Ends the text at any of these.
        **kwargs: All else that `model.generate` takes for greedy decoding and sampling, such as
            `max_new_tokens`, `do_sample`, `temperature`, `logits_processor`, `stopping_criteria`,
            `generation_config`, `prefill_chunk_size`.

    Raises:
        UnsupportedModelError: A tree cannot be verified on `model`.
        ValueError: An argument asks for what a tree cannot do (beams, batches, padding, a cache
            from outside), or the drafter drafts tokens that the model does not have.
    """
    if kwargs.pop("assistant_model", None) is not None:
        raise ValueError("assistant_model cannot be used here: the drafter takes its place")
    if kwargs.pop("custom_generate", None) is not None:
        raise ValueError("custom_generate cannot be used here: this is a decoding loop of its own")
    _resolve_stop_strings(model, tokenizer, stop_strings, kwargs)
    options = _Options(drafter, budget, verification, self_check, profile, streamer)
    output: GenerationOutput = model.generate(  # type: ignore[operator]
        input_ids, custom_generate=partial(_run, options), **kwargs
    )
    return output


def custom_generate(
    drafter: Drafter,
    *,
    budget: int | Literal["auto"] = "auto",
    verification: str = "tree",
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

    def __post_init__(self) -> None:
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
    require_support(model, verification=options.verification, self_check=options.self_check)
    require_arguments(input_ids, generation_config, model_kwargs)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    _refuse_tokens_beyond(vocab_size, (options.drafter.vocab_size or 0) - 1)
    returns_dict = generation_config.return_dict_in_generate
    sampler = Sampler(
        logits_processor,
        do_sample=generation_config.do_sample,
        keep_scores=returns_dict and generation_config.output_scores,
        keep_logits=returns_dict and generation_config.output_logits,
    )
    max_length = generation_config.max_length
    emitter = Emitter(input_ids, stopping_criteria, options.streamer, sampler.scores)
    num_nodes = node_budget(options.drafter, options.budget)
    runner = RUNNERS[options.verification](
        model,
        prompt_length=input_ids.shape[1],
        max_length=max_length,
        max_nodes=MOST_NODES if num_nodes == "auto" else num_nodes,
    )
    costs = StepCosts(model, runner, options.verification)
    budget = make_budget(num_nodes, options.drafter, costs.now)
    if options.streamer is not None:
        options.streamer.put(input_ids.cpu())  # type: ignore[no-untyped-call]
    session = options.drafter.session(input_ids[0].tolist())
    try:
        request = _Request(
            runner,
            emitter,
            sampler,
            session,
            budget,
            max_length,
            vocab_size,
            options.drafter.vocab_size or vocab_size,
        )
        clock = _clock(model.device, options.profile)
        request.decode(input_ids, generation_config.prefill_chunk_size, clock)
    finally:
        session.finish()
    if options.streamer is not None:
        options.streamer.end()  # type: ignore[no-untyped-call]
    return GenerationOutput(
        sequences=emitter.token_ids,
        stats=request.stats,
        drafted=request.drafted,
        scores=None if sampler.scores is None else tuple(sampler.scores),
        logits=None if sampler.logits is None else tuple(sampler.logits),
        past_key_values=runner.cache.committed() if returns_dict else None,
        step_seconds=budget.step_seconds(),
    )


@dataclass
class _Request:
    """The loop over one request, and what it has come to so far.

    Token ids from `known_tokens` on are not in the drafter's vocabulary: models have spare ones.
    """

    runner: Runner
    emitter: Emitter
    sampler: Sampler
    session: Session
    budget: Budget
    max_length: int
    vocab_size: int
    known_tokens: int
    stats: GenerationStats = field(default_factory=GenerationStats)
    drafted: list[bool] = field(default_factory=list)

    def decode(
        self, input_ids: torch.Tensor, chunk_size: int | None, clock: Callable[[], float]
    ) -> None:
        """Emits tokens until a stopping criterion ends the request."""
        stats, emitter, watch = self.stats, self.emitter, _Stopwatch(self.stats, clock)
        logits = self.runner.prefill(input_ids, chunk_size)
        watch.lap("prefill_s")
        _, emitted = self._accept(logits, None)
        watch.lap("accept_s")
        self._recycle(logits, None)
        self.session.observe(emitted)
        watch.lap("observe_s")
        while not emitter.finished:
            # The deepest node that can still be emitted: the pass itself gives one token more.
            max_depth = self.max_length - emitter.length - 1
            if max_depth > 0:
                self.budget.prepare()
            watch.lap("measure_s")
            tree = self._draft(max_depth)
            watch.lap("draft_s")
            logits = self.runner.verify(emitted[-1], tree)
            watch.lap("forward_s")
            path, emitted = self._accept(logits, tree)
            watch.lap("accept_s")
            self.runner.commit(path[: len(emitted) - 1])
            watch.lap("compact_s")
            self._recycle(logits, tree)
            self.session.observe(emitted)
            watch.lap("observe_s")
            if not emitter.finished:
                self.budget.record([emitted])
            stats.record_draft(0 if tree is None else len(tree), len(path))
        watch.stop()
        stats.num_emitted_tokens = len(emitter.emitted)

    def _draft(self, max_depth: int) -> TokenTree | None:
        """A draft cut to the budget and to the tokens left; None where nothing can be gained."""
        (tree,) = self.budget.draft([self.session], [max_depth])
        if tree is not None:
            _refuse_tokens_beyond(self.vocab_size, int(tree.token_ids.max()))
        return tree

    def _recycle(self, logits: torch.Tensor, tree: TokenTree | None) -> None:
        """Tells the session what the target predicts at every node, where it wants to know."""
        session = self.session
        num_predictions = int(getattr(session, "num_predictions", 0))
        if num_predictions and isinstance(session, RecyclingSession):
            known = logits[:, : self.known_tokens]
            top = known.topk(min(num_predictions, known.shape[-1]), dim=-1).indices
            session.recycle(_EMPTY_TREE if tree is None else tree, top.cpu().numpy())

    def _accept(self, logits: torch.Tensor, tree: TokenTree | None) -> tuple[list[int], list[int]]:
        """Emits what the target chose; returns the accepted nodes and the emitted tokens."""
        num_before = len(self.emitter.emitted)
        if self.sampler.is_argmax:
            path = accept_greedy(logits, tree, self.emitter)
        else:
            path = walk(logits, tree, self.emitter, self.sampler)
        emitted = self.emitter.emitted[num_before:]
        self.drafted += [index < len(path) for index in range(len(emitted))]
        return path, emitted


class _Stopwatch:
    """Adds the time since its last lap to a phase of the statistics."""

    def __init__(self, stats: GenerationStats, clock: Callable[[], float]) -> None:
        self._stats = stats
        self._clock = clock
        self._start = self._last = clock()

    def lap(self, phase: str) -> None:
        now = self._clock()
        setattr(self._stats, phase, getattr(self._stats, phase) + now - self._last)
        self._last = now

    def stop(self) -> None:
        self._stats.total_s += self._clock() - self._start


def _clock(device: torch.device, profile: bool) -> Callable[[], float]:
    if not profile or device.type != "cuda":
        return perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return perf_counter()

    return synchronised


def _refuse_tokens_beyond(vocab_size: int, largest_token_id: int) -> None:
    if largest_token_id >= vocab_size:
        raise ValueError(
            f"the drafter drafts token {largest_token_id}, the model has {vocab_size}: "
            "use a drafter made with the model's own tokenizer"
        )


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

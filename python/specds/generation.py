"""The decoding loop: draft a tree, verify it in one target forward, accept, observe."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specds._core import TokenTree
from specds.drafters.protocol import RecyclingSession, node_budget, within
from specds.stats import GenerationStats
from specds.verify.accept import Emitter, Sampler, accept_greedy, walk
from specds.verify.runners import RUNNERS
from specds.verify.support import require_arguments, require_support, require_verification

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

    from specds.drafters import Drafter, Session
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
    """

    sequences: torch.Tensor
    stats: GenerationStats
    drafted: list[bool]
    scores: tuple[torch.Tensor, ...] | None
    logits: tuple[torch.Tensor, ...] | None
    past_key_values: DynamicCache | None


def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    drafter: Drafter,
    *,
    max_nodes: int | None = None,
    verification: str = "auto",
    self_check: bool = True,
    profile: bool = False,
    forced_ids: Sequence[int] | None = None,
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
        max_nodes: Most nodes of a draft; 0 is plain decoding. By default what the drafter names as
            its own `max_nodes`, and 64 where it names none.
        verification: `fast` and `tree` check every node of a draft once, by a tree mask; `tree` has
            the model attend as it does, `fast` by an attention that reads the states of the context
            once. `batched` makes each path of a draft a row of a batch, as N-Grammys do: more to
            compute. `auto` is `fast`, or `tree` for models whose attention cannot be exchanged.
            What is emitted is the same.
        self_check: Before the model's first use, compare a small tree with plain forward passes
            (see `specds.verify.check_model`).
        profile: Wait for a CUDA device at each reading of the clock, so that the times in `stats`
            are true. That costs speed; without it `accept_s` takes the blame for queued work.
        forced_ids: For benchmarks of models with random weights: emit these tokens, whatever the
            target chooses, and end with the last of them. All work is done as for its own text,
            and drafts are accepted where they agree with these.
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
    options = _Options(
        drafter,
        node_budget(drafter, max_nodes),
        verification,
        self_check,
        profile,
        streamer,
        forced_ids,
    )
    if forced_ids is not None and kwargs.keys().isdisjoint({"max_new_tokens", "max_length"}):
        kwargs["max_new_tokens"] = len(forced_ids)
    output: GenerationOutput = model.generate(  # type: ignore[operator]
        input_ids, custom_generate=partial(_run, options), **kwargs
    )
    return output


def custom_generate(
    drafter: Drafter,
    *,
    max_nodes: int | None = None,
    verification: str = "auto",
    self_check: bool = True,
    streamer: BaseStreamer | None = None,
) -> Callable[..., torch.Tensor | GenerateDecoderOnlyOutput]:
    """The decoding loop as a value for ``model.generate(..., custom_generate=...)``.

    `model.generate` then returns what it always does. Give the streamer here and stop strings as a
    `StopStringCriteria`: transformers does not pass them on to a custom loop.

    Args:
        drafter: Drafts the trees; it gets one session per request.
        max_nodes: As in `generate`.
        verification: As in `generate`.
        self_check: As in `generate`.
        streamer: As in `generate`.
    """
    options = _Options(
        drafter, node_budget(drafter, max_nodes), verification, self_check, False, streamer
    )

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
    max_nodes: int
    verification: str
    self_check: bool
    profile: bool
    streamer: BaseStreamer | None
    forced_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.forced_ids is not None and len(self.forced_ids) == 0:
            raise ValueError("forced_ids is empty: give at least one token")
        if self.max_nodes < 0:
            raise ValueError(f"max_nodes must not be negative, got {self.max_nodes}")
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
    require_arguments(input_ids, generation_config, model_kwargs)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    _refuse_tokens_beyond(vocab_size, (options.drafter.vocab_size or 0) - 1)
    _require_forced(options.forced_ids, vocab_size)
    returns_dict = generation_config.return_dict_in_generate
    sampler = Sampler(
        logits_processor,
        do_sample=generation_config.do_sample,
        keep_scores=returns_dict and generation_config.output_scores,
        keep_logits=returns_dict and generation_config.output_logits,
    )
    max_length = generation_config.max_length
    emitter = Emitter(
        input_ids, stopping_criteria, options.streamer, sampler.scores, options.forced_ids
    )
    runner = RUNNERS[verification](
        model,
        prompt_length=input_ids.shape[1],
        max_length=max_length,
        max_nodes=options.max_nodes,
    )
    if options.streamer is not None:
        options.streamer.put(input_ids.cpu())  # type: ignore[no-untyped-call]
    session = options.drafter.session(input_ids[0].tolist())
    try:
        request = _Request(
            runner,
            emitter,
            sampler,
            session,
            max_length,
            options.max_nodes,
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
    max_length: int
    max_nodes: int
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
            tree = self._draft()
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
            stats.record_draft(0 if tree is None else len(tree), len(path))
        watch.stop()
        stats.num_emitted_tokens = len(emitter.emitted)

    def _draft(self) -> TokenTree | None:
        """A draft cut to the budget and to the tokens left; None where nothing can be gained."""
        # The deepest node that can still be emitted: the pass itself gives one token more.
        max_depth = self.max_length - self.emitter.length - 1
        if self.max_nodes == 0 or max_depth <= 0:
            return None
        tree = within(self.session.draft(self.max_nodes), self.max_nodes, max_depth)
        if len(tree) == 0:
            return None
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


def _require_forced(forced_ids: Sequence[int] | None, vocab_size: int) -> None:
    unknown = [token for token in forced_ids or () if not 0 <= token < vocab_size]
    if unknown:
        raise ValueError(f"forced_ids has token {unknown[0]}, the model has {vocab_size}")


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

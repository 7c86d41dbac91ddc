"""One request over its verification backend: rows, budget, cache and output, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specds._core import Session
from specds.constraints import ConstrainedSession, Guide, constraint_of
from specds.drafters.session import Drafter, RequestRules
from specds.generation.acceptance import Chooses, Emits
from specds.generation.budget import (
    MAX_NODES,
    MIN_CHAIN_PROB,
    AutoBudget,
    FixedBudget,
    draft_stats_of,
    step_times_of,
)
from specds.generation.loop import Decoding, Row
from specds.generation.options import Options
from specds.generation.prompt_values import values_of
from specds.generation.runner import Verifier
from specds.generation.stats import GenerationStats
from specds.models.html import text
from specds.models.render import Spelling

FinishReason: TypeAlias = Literal["stop", "length", "context"]
"""Why a text ended: by an end token, a stop string or a criterion, by the requested length, or
because the context of the model is full."""


@dataclass(frozen=True)
class GenerationOutput:
    """The result of `generate`.

    Attributes:
        sequences: int64 `(num_rows, length)`, prompts and generated tokens, padded on the right; an
            array for a model without torch.
        stats: Counts and times of the request, all rows together.
        drafted_by_row: Whether each generated token of each row was drafted.
        finish_reasons: Why each row ended: `stop` by an end token, a stop string or a criterion,
            `length` by the requested length, `context` because the context of a GGUF file is full.
        scores: With `output_scores`, for each generated token the processed scores of all rows,
            float32 `(num_rows, vocab_size)`; zeros for a finished row.
        logits: With `output_logits`, the logits likewise.
        tokenizer: The tokenizer that was passed; notebooks show texts by it.
        cache: With `return_dict_in_generate` and one row, the states of all tokens but the last: in
            the cache that was passed, if there was one.
    """

    sequences: Any
    stats: GenerationStats
    drafted_by_row: list[list[bool]]
    finish_reasons: list[FinishReason]
    scores: tuple[Any, ...] | None = None
    logits: tuple[Any, ...] | None = None
    cache: Any = None
    tokenizer: Any = field(default=None, repr=False)

    @property
    def log_probs(self) -> list[NDArray[np.float32]] | None:
        """The natural logarithms of the model's probabilities of the generated tokens.

        For each row float32 `(num_generated,)`; None without `output_logits`.
        """
        if self.logits is None:
            return None
        start = len(self.sequences[0]) - max(map(len, self.drafted_by_row))
        found = []
        for row, drafted in enumerate(self.drafted_by_row):
            tokens = self.sequences[row, start : start + len(drafted)].tolist()
            found.append(np.zeros(len(tokens), dtype=np.float32))
            for step, token in enumerate(tokens):
                logits = self.logits[step][row]
                logits = np.asarray(logits.cpu() if hasattr(logits, "cpu") else logits)
                top = logits.max()
                total = np.exp(logits - top, dtype=np.float64).sum()
                found[row][step] = logits[token] - top - np.log(total)
        return found

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
    def past_key_values(self) -> Any:
        """The cache, by its name in transformers before 5.24."""
        return self.cache


@dataclass
class Request:
    """The rows of a request, what they share, and the loop over them.

    Attributes:
        max_length: Most tokens of a row, prompt and padding included.
        eos_token_ids: Tokens that end a row.
        noise: The random numbers of samples of several rows.
    """

    options: Options
    model: Any
    vocab_size: int
    max_length: int
    eos_token_ids: frozenset[int] = frozenset()
    rows: list[Row] = field(default_factory=list)
    noise: Any = None

    def open_row(
        self, prompt_ids: Any, sampler: Chooses, emitter: Emits, rules: RequestRules
    ) -> None:
        """Add a row with a prompt without padding, and start its session."""
        options = self.options
        known_tokens = min(options.drafter.vocab_size or self.vocab_size, self.vocab_size)
        constraint = constraint_of(rules.logits_processor, emitter.token_ids[0])
        guide = None
        if constraint is not None:
            guide = Guide(constraint, values_of(constraint, self.model, prompt_ids))
        start = partial(_start_session, options.drafter, rules, guide, known_tokens)
        number, session = len(self.rows), options.session
        if session is not None:
            session.begin(rules)
            session = _constrained(session, guide, known_tokens)
        opened = start, known_tokens, number, session, guide, self.max_length, options.on_step
        self.rows.append(Row(prompt_ids, sampler, emitter, *opened))

    def decode(
        self,
        runner_class: type[Verifier],
        past: Any = None,
        *,
        chunk_size: int | None = None,
        keeps_cache: bool | None = False,
        synchronize: Callable[[], object] | None = None,
    ) -> tuple[GenerationStats, Any]:
        """Decode all rows together, and return the cache that the caller asked for."""
        num_nodes = self.options.num_nodes
        runner = runner_class(
            self.model,
            prompt_length=max(row.prompt_ids.shape[1] for row in self.rows),
            max_length=self.max_length,
            max_nodes=MAX_NODES if num_nodes == "auto" else num_nodes,
            num_rows=len(self.rows),
        )
        # A single row that is accepted on the host draws one number after the other.
        if self.noise is not None and (len(self.rows) > 1 or runner.accepts):
            for row in self.rows:
                row.sampler.draw_by(self.noise, row.number)  # type: ignore[attr-defined]
        runner.on_prefill = self.options.on_prefill
        cache = None
        try:
            budget = self._budget(runner)
            if past is not None:
                runner.load(past)
            is_on_cpu = str(getattr(self.model, "device", "cpu")) == "cpu"
            decoding = Decoding(runner, budget, synchronize, self.noise, is_on_cpu)
            decoding.run(self.rows, chunk_size)
            if past is not None:
                cache = runner.extend(past)
            elif keeps_cache and len(self.rows) == 1:
                cache = runner.committed()
        finally:
            runner.close()
        decoding.stats.reason = runner.reason
        return decoding.stats, cache

    def finish_reasons(self) -> list[FinishReason]:
        """Return why each row ended."""
        context_length = getattr(self.model, "context_length", None)
        is_full = context_length is not None and self.max_length >= context_length
        by_length: FinishReason = "context" if is_full else "length"
        return [
            "stop"
            if row.emitter.emitted[-1] in self.eos_token_ids or row.emitter.length < self.max_length
            else by_length
            for row in self.rows
        ]

    def _budget(self, runner: Verifier) -> FixedBudget:
        """Return the budget of the request, and fix the shape of forward passes if it must be."""
        options, num_nodes = self.options, self.options.num_nodes
        if num_nodes == "auto":
            setting = *runner.setting, self.rows[0].sampler.is_argmax
            times = step_times_of(self.model, setting, runner)
            stats = draft_stats_of(options.drafter)
            is_chain = not runner.takes_trees
            return AutoBudget(times, stats, self.vocab_size, len(self.rows), is_chain=is_chain)
        if not runner.takes_trees:
            return FixedBudget(num_nodes, self.vocab_size, is_chain=True, min_prob=MIN_CHAIN_PROB)
        if options.stream_interval is not None:
            runner.least_nodes = num_nodes
        if options.shape_invariant:
            runner.fix_shape(num_nodes, self.max_length + num_nodes)
        return FixedBudget(num_nodes, self.vocab_size, is_chain=options.shape_invariant)

    def finish(self) -> None:
        """Finish the sessions, and leave the random generator as the baseline would."""
        with ExitStack() as finishing:
            if self.noise is not None:
                num_emitted = max(len(row.emitter.emitted) for row in self.rows)
                finishing.callback(self.noise.close, num_emitted)
            for row in reversed(self.rows):
                finishing.callback(row.finish)


def _start_session(
    drafter: Drafter,
    rules: RequestRules,
    guide: Guide | None,
    known_tokens: int,
    token_ids: Sequence[int],
) -> Session:
    session = drafter.session(token_ids)
    if not isinstance(session, Session):
        name = type(session).__name__
        raise TypeError(f"a drafter's session must be a `specds.drafters.Session`, not {name}")
    with ExitStack() as on_failure:
        on_failure.callback(session.finish)
        session.begin(rules)
        on_failure.pop_all()
    return _constrained(session, guide, known_tokens)


def _constrained(session: Session, guide: Guide | None, known_tokens: int) -> Session:
    # Removing nodes of a sampled draft would change the distribution of the text.
    if guide is None or session.proposes:
        return session
    return ConstrainedSession(session, guide, known_tokens)

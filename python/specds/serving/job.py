"""One text that the engine computes: its row of the decoding loop, and updates of its text."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specds.constraints.processor import GrammarProcessor
from specds.drafters.fused import FusedDrafter
from specds.drafters.session import RequestRules
from specds.drafters.step import Step
from specds.generation.decode import Request
from specds.generation.loop import Row
from specds.generation.options import Options
from specds.generation.processors import Processing, Scores
from specds.generation.sampling import ArrayEmitter, ArraySampler, Sampling
from specds.models.gguf_model import GgufModel, seeded
from specds.models.render import Spelling
from specds.serving.pieces import Piece, Splitter, Style, num_begun
from specds.serving.slots import TextSlot


@dataclass(frozen=True)
class Asked:
    """One text that a request asks for.

    Attributes:
        prompt: Token ids, int64 `(length,)`.
        sampling: The settings of samples.
        processing: Those of processors.
        max_new_tokens: The most new tokens; 0 to read the prompt alone.
        frequency_penalty: Is subtracted from the score of a token for each time it was written.
        presence_penalty: Is subtracted once.
        ignores_end: Whether end tokens do not end the text.
        stops: Texts that end the text, which lacks them.
        seed: The seed of its random numbers; None for any.
        top_logprobs: The number of likeliest tokens to report at each place; None for no
            probabilities.
        grammar: An `llguidance.LLMatcher` that the text must match.
        style: How the text is split.
        in_reasoning: Whether the prompt ends within reasoning.
        predicted: Tokens from which it is drafted.
        is_predicted: Whether the request brought them, so that `usage` counts them.
        tenant: Whose request it is.
        mark_at: Tokens of the prompt after which recurrent states are kept.
        ends: Tokens that end the text, like those of the model.
        max_s: Seconds from its first token after which the text ends.
    """

    prompt: NDArray[np.int64]
    sampling: Sampling
    processing: Processing
    max_new_tokens: int
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    ignores_end: bool = False
    stops: tuple[str, ...] = ()
    seed: int | None = None
    top_logprobs: int | None = None
    grammar: Any = None
    style: Style = field(default_factory=Style)
    in_reasoning: bool = False
    predicted: list[int] | None = None
    is_predicted: bool = False
    tenant: str = ""
    mark_at: int | None = None
    ends: frozenset[int] = frozenset()
    max_s: float = math.inf


@dataclass(frozen=True)
class LogProb:
    """The natural logarithm of a token's probability, and the likeliest tokens at its place."""

    token: int
    log_prob: float
    top: list[tuple[int, float]]


@dataclass
class Update:
    """New parts of a text."""

    pieces: list[Piece] = field(default_factory=list)
    log_probs: list[LogProb] = field(default_factory=list)
    sources: list[tuple[str, str | None]] = field(default_factory=list)
    finish: Literal["stop", "length", "tool_calls"] | None = None
    failure: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self.pieces or self.log_probs or self.finish or self.failure)


class TextJob:
    """A text of a request, from its prompt to its last token; only the engine calls its methods.

    Args:
        ends: Tokens that end texts of the model.
        deliver: Gets an update after each step, or with `is_streamed=False` once at the end.
        has_sources: Whether updates have the sources of tokens.

    Attributes:
        ends: Tokens that end this text.
        emitted: The tokens of the text.
        num_cached: Tokens of the prompt whose states were kept.
        num_steps: Passes that wrote tokens.
        accepted: Accepted tokens by source.
        is_left: Set when the client has left; the engine then ends the text.
    """

    def __init__(
        self,
        asked: Asked,
        tokenizer: Any,
        ends: frozenset[int],
        deliver: Callable[[Update], object],
        *,
        is_streamed: bool = True,
        has_sources: bool = False,
    ) -> None:
        self.asked, self._tokenizer = asked, tokenizer
        self._deliver, self._is_streamed, self._update = deliver, is_streamed, Update()
        self._has_sources = has_sources
        self.emitted: list[int] = []
        self.num_cached = self.num_steps = 0
        self.accepted: Counter[str] = Counter()
        self.is_left = self.is_stopped = False
        self.failure: Exception | None = None
        self._began = self._first = self._last = time.monotonic()
        self.ends = asked.ends if asked.ignores_end else ends | asked.ends
        self._hidden = {*tokenizer.all_special_ids, *ends, *asked.ends} - asked.style.shown_ids(
            tokenizer
        )
        self._spelling = Spelling(tokenizer)
        self._splitter = Splitter(asked.style, asked.in_reasoning)
        self._stop = _StopText(asked.stops)

    def rules(self, vocab_size: int) -> list[Any]:
        """Return the processors of the text's scores, a grammar last."""
        asked = self.asked
        made: list[Any] = asked.processing.processors(len(asked.prompt), self.ends, vocab_size)
        if self.has_penalties:
            made.append(self.penalized)
        return [*made, GrammarProcessor(asked.grammar)] if asked.grammar is not None else made

    @property
    def has_penalties(self) -> bool:
        return bool(self.asked.frequency_penalty or self.asked.presence_penalty)

    def bound(self, drafter: FusedDrafter, **options: Any) -> Options:
        """Return the options of the text's decoding."""
        given = self.asked.tenant, self.asked.predicted
        return Options.of(drafter.for_request(*given), on_step=self.record, **options)

    def send_update(self, *, is_end: bool = False) -> None:
        """Deliver an update."""
        if is_end:
            self._update.failure = self.failure
            if self.failure is None:
                self._update.finish = self._finish()
        if self._update and (is_end or self._is_streamed):
            update, self._update = self._update, Update()
            self._deliver(update)

    def close(self) -> None:
        """Finish the session, which may keep the text for later requests."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds until the first token, and from then to the last one."""
        return self._first - self._began, self._last - self._first

    def _finish(self) -> Literal["stop", "length", "tool_calls"]:
        is_whole = bool(self.emitted) and self.emitted[-1] in self.ends
        if not self.is_stopped:
            self._add(self._spelling.of(None), is_end=True)
        self._update.pieces += self._splitter.end()
        if self._splitter.num_calls:
            return "tool_calls"
        return "stop" if is_whole or self.is_stopped else "length"

    def take(self, token_ids: Any, _: Any = None) -> bool:
        """Take the last token, as a stopping criterion; return true if the text ends with it."""
        token, self._last = int(token_ids[0, -1]), time.monotonic()
        if not self.emitted:
            self._first = self._last
        self.emitted.append(token)
        if self.failure is None and token not in self._hidden:
            self._add(self._spelling.of(token))
        is_late = self._last - self._first > self.asked.max_s
        return is_late or self.is_stopped or self.is_left or self.failure is not None

    def _add(self, text: str, *, is_end: bool = False) -> None:
        certain, self.is_stopped = self._stop.after(text, is_end=is_end)
        self._update.pieces += self._splitter.add(certain)

    def record(self, step: Step) -> None:
        """Count a step."""
        self.num_steps += 1
        if not (step.path or self._has_sources):
            return
        sources = step.sources
        self.accepted.update(source for source in sources if source is not None)
        if self._has_sources:
            for token, source in zip(step.token_ids, sources, strict=True):
                if token not in self._hidden:
                    self._update.sources.append((str(self._tokenizer.decode([token])), source))

    def report(self, logits: Scores, token: int) -> None:
        """Add the probability of a token to the next update, if it was asked for."""
        if self.asked.top_logprobs is not None:
            self._update.log_probs.append(_log_prob(logits, token, self.asked.top_logprobs))

    def penalized(self, token_ids: NDArray[np.int64], scores: Scores) -> Scores:
        """Return scores without the penalties of the tokens that were written."""
        tokens, counts = np.unique(token_ids[0, len(self.asked.prompt) :], return_counts=True)
        penalty = self.asked.frequency_penalty * counts + self.asked.presence_penalty
        scores[0, tokens] -= penalty.astype(np.float32)
        return scores


class RowJob(TextJob):
    """A job that is a row of the decoding loop; making one opens its session.

    Attributes:
        slot: Where its keys and values are, while it is computed.
        is_argmax: As for samplers.
        logits_only: As for samplers.
    """

    logits_only = False

    def __init__(
        self, asked: Asked, model: GgufModel, tokenizer: Any, drafter: FusedDrafter, **about: Any
    ) -> None:
        super().__init__(asked, tokenizer, ends_of(model.settings), **about)
        self.slot: TextSlot | None = None
        length = len(asked.prompt)
        most = length + max(min(asked.max_new_tokens, model.context_length - length), 1)
        rules = self.rules(model.vocab_size)
        random = seeded(asked.seed) if asked.seed is not None else np.random.MT19937()
        self._sampler = ArraySampler(asked.sampling, random, rules)
        self.is_argmax = self._sampler.is_argmax
        ids = asked.prompt[None]
        self.emitter = ArrayEmitter(ids, most, self.ends, [self.take])
        self._request = Request(self.bound(drafter), model, model.vocab_size, most, self.ends)
        given: Any = (model, rules, asked.sampling.do_sample, most, self.ends)
        self._request.open_row(ids, self, self.emitter, RequestRules(*given))

    @property
    def row(self) -> Row:
        return self._request.rows[0]

    def __call__(self, emitter: ArrayEmitter, logits: Scores, proposal: Any = None) -> int:
        """Choose the next token; a failure ends this text alone."""
        try:
            token = self._sampler(emitter, logits)
        except Exception as error:  # a grammar or a setting of the request
            self.failure = error
            return 0
        self.report(logits, token)
        return token

    def close(self) -> None:
        self._request.finish()


def ends_of(settings: Mapping[str, Any]) -> frozenset[int]:
    """Return the tokens that end texts, by the settings of a model."""
    eos = settings.get("eos_token_id")
    return frozenset([eos] if isinstance(eos, int) else eos or ())


class _StopText:
    """Finds the first stop text, and holds back what may be the beginning of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops, self._held = stops, ""

    def after(self, text: str, *, is_end: bool = False) -> tuple[str, bool]:
        """Return what is certain of the text after more of it, and whether it stops there."""
        if not self._stops:
            return text, False
        whole = self._held + text
        places = [place for stop in self._stops if (place := whole.find(stop)) >= 0]
        if places:
            self._held = ""
            return whole[: min(places)], True
        held = 0 if is_end else max(num_begun(whole, stop) for stop in self._stops)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held], False


def _log_prob(logits: Scores, token: int, number: int) -> LogProb:
    top = float(logits.max())
    total = top + float(np.log(np.exp(logits - top, dtype=np.float64).sum()))
    likeliest = np.argpartition(logits, -number)[-number:] if number else np.zeros(0, dtype=int)
    order = sorted(likeliest.tolist(), key=lambda each: (-logits[each], each))
    found = [(each, float(logits[each]) - total) for each in order]
    return LogProb(token, float(logits[token]) - total, found)

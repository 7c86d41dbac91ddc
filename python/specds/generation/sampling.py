"""Choice of tokens from arrays, as the processors of transformers choose; without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds._core import draw
from specds.constraints.processor import last_grammar
from specds.drafters.session import Proposal
from specds.generation.noise import BatchNoise
from specds.generation.processors import Processor, Scores, require_number

_ROUNDING = 1e-4
"""More than the share by which the rounding of scores changes a probability."""


@dataclass(frozen=True)
class Sampling:
    """Settings of samples, by their names in `model.generate` and with its defaults.

    Raises:
        ValueError: One of them is out of range; the message names it.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, Real, 1e-9, inf, "above 0")
        require_number("top_k", self.top_k, Integral, 0, inf, "an integer of 0 or more")
        require_number("top_p", self.top_p, Real, 0, 1, "from 0 to 1")
        require_number("min_p", self.min_p, Real, 0, 1, "from 0 to 1")


class ArrayEmitter:
    """Append, test and stream each emitted token; an array where transformers has a tensor.

    Args:
        prompt_ids: int64 `(1, prompt_length)`.
        max_length: Most tokens, prompt included.
        eos_token_ids: Tokens that end a text.
        criteria: Called with all tokens, int64 `(1, length)`, and None after each token; a true
            result ends the text.
        put: Receives each token as int64 `(1,)`.
    """

    def __init__(
        self,
        prompt_ids: NDArray[np.int64],
        max_length: int,
        eos_token_ids: frozenset[int],
        criteria: Sequence[Callable[[Any, Any], Any]] = (),
        put: Callable[[Any], object] | None = None,
    ) -> None:
        self.emitted: list[int] = []
        self.finished = False
        self._prompt_length = int(prompt_ids.shape[1])
        # Has room for later tokens, so that a token does not cost a copy of the text.
        self._ids = prompt_ids.copy()
        self._max_length, self._eos, self._criteria = max_length, eos_token_ids, criteria
        self._put = put

    @property
    def length(self) -> int:
        return self._prompt_length + len(self.emitted)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """All tokens, int64 `(1, length)`, which are only read."""
        return self._ids[:, : self.length]

    def emit(self, token: int) -> int:
        if self.length == self._ids.shape[1]:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)], axis=1)
        self._ids[0, self.length] = token
        self.emitted.append(token)
        self.finished = token in self._eos or self.length >= self._max_length
        if self._criteria:
            ids = self.token_ids
            # Each of them is called, as one may count the tokens.
            ends = [bool(np.all(criterion(ids, None))) for criterion in self._criteria]
            self.finished |= any(ends)
        if self._put is not None:
            self._put(np.array([token], dtype=np.int64))
        return token


class ArrayNoise(BatchNoise):
    """The random numbers of a batch of samples, float64 `(num_rows, vocab_size)`."""

    def __init__(self, random: np.random.MT19937, num_rows: int, vocab_size: int) -> None:
        super().__init__()
        self._random, self._shape = random, (num_rows, vocab_size)

    def sample(self) -> NDArray[np.float64]:
        return _uniforms(self._random, self._shape[0] * self._shape[1]).reshape(self._shape)

    @property
    def state(self) -> Any:
        return self._random.state

    @state.setter
    def state(self, state: Any) -> None:
        self._random.state = state


class ArraySampler:
    """Choose a next token by the processed scores, in the order of transformers' processors.

    The random numbers of a sample are those of torch on a CPU, so that a seed gives the same text
    as there, up to the rounding of probabilities.

    Args:
        sampling: The settings of samples.
        random: The source of random numbers.
        processors: Called in this order, before the temperature.
        keep_scores: Store the processed scores.
        keep_logits: Store the logits.

    Attributes:
        scores: With `keep_scores`, the processed scores of each call, `(vocab_size,)`.
        logits: With `keep_logits`, the logits of each call.
    """

    logits_only = False

    def __init__(
        self,
        sampling: Sampling,
        random: np.random.MT19937,
        processors: Sequence[Processor] = (),
        *,
        keep_scores: bool = False,
        keep_logits: bool = False,
    ) -> None:
        self._sampling, self._random, self._processors = sampling, random, processors
        self.scores: list[Scores] | None = [] if keep_scores else None
        self.logits: list[Scores] | None = [] if keep_logits else None
        chooses_top = not (sampling.do_sample or keep_scores or keep_logits)
        is_whole = sampling.top_p == 1 and sampling.min_p == 0
        skips_masks = chooses_top or (is_whole and not (keep_scores or keep_logits))
        self._grammar = last_grammar(processors) if skips_masks else None
        self.is_argmax = chooses_top and not processors
        self._noise: tuple[ArrayNoise, int] | None = None

    def draw_by(self, noise: ArrayNoise, row: int) -> None:
        self._noise = noise, row

    def __call__(
        self, emitter: ArrayEmitter, logits: Scores, proposal: Proposal | None = None
    ) -> int:
        """Return the token after those of the emitter, given `logits`, `(vocab_size,)`."""
        if self.is_argmax:
            return int(logits.argmax())
        rows = logits[None].copy()
        for process in self._processors[: -1 if self._grammar else None]:
            rows = process(emitter.token_ids, rows)
        is_drawn, uniforms = self._sampling.do_sample, None
        if self._grammar is not None:
            if is_drawn:
                uniforms = self._uniforms(emitter, rows.shape[1])
            choose = partial(self._chosen_by_all, rows[0], uniforms)
            token = self._grammar.known_token(emitter.token_ids, rows, choose)
            if token is not None:
                return token
            rows = self._grammar(emitter.token_ids, rows)
        scores = rows[0]
        if is_drawn:
            scores = self._warped(scores)
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(logits.copy())
        if not is_drawn:
            return int(scores.argmax())
        with np.errstate(all="ignore"):
            probs = _softmax(scores)
        if not probs.sum() > 0:
            raise ValueError(
                "probabilities are not numbers: raise the temperature, or check the model"
            )
        uniforms = self._uniforms(emitter, len(probs)) if uniforms is None else uniforms
        token = draw(probs, uniforms)
        # The two likeliest are too close for the core's check.
        return int((probs / _exponentials(uniforms)).argmax()) if token is None else token

    def _chosen_by_all(self, scores: Scores, uniforms: NDArray[np.float64] | None) -> int | None:
        """Return the token that is chosen by these scores and by any mask of them that has it.

        The token of the largest p / -ln(1 - u) among all is that among any of them too, and what is
        among the first `top_k` of all is so among fewer. A mask changes the rounding of p, so None
        is returned where another token is close.
        """
        if uniforms is None:
            return int(scores.argmax())
        of = self._sampling
        with np.errstate(all="ignore"):
            probs = _softmax(scores / np.float32(of.temperature))
        token = draw(probs, uniforms)
        if token is None or probs[token] < _ROUNDING:
            return None
        if 0 < of.top_k <= np.count_nonzero(scores > scores[token]):
            return None
        probs[token] *= np.float32(1 - _ROUNDING)
        return token if draw(probs, uniforms) == token else None

    def _uniforms(self, emitter: ArrayEmitter, number: int) -> NDArray[np.float64]:
        if self._noise is None:
            return _uniforms(self._random, number)
        noise, row = self._noise
        drawn: NDArray[np.float64] = noise.draw_at(len(emitter.emitted))[row]
        return drawn

    def _warped(self, scores: Scores) -> Scores:
        of = self._sampling
        if of.temperature != 1:
            scores /= np.float32(of.temperature)
        if 0 < of.top_k < len(scores):
            scores[scores < np.partition(scores, -of.top_k)[-of.top_k]] = -np.inf
        if of.top_p < 1:
            order = np.argsort(scores, kind="stable")
            unlikely = _softmax(scores[order]).cumsum(dtype=np.float32) <= 1 - of.top_p
            unlikely[-1] = False
            scores[order[unlikely]] = -np.inf
        if of.min_p > 0:
            probs = _softmax(scores)
            least = np.float32(of.min_p) * probs.max()
            scores[probs < least] = -np.inf
        return scores


def _softmax(scores: Scores) -> Scores:
    exponentials = np.exp(scores - scores.max())
    probs: Scores = exponentials / exponentials.sum()
    return probs


def _uniforms(random: np.random.MT19937, number: int) -> NDArray[np.float64]:
    """Return the numbers of `torch.empty(number, dtype=torch.float64).uniform_()`."""
    halves = random.random_raw(2 * number)
    whole = (halves[::2] << np.uint64(32) | halves[1::2]) & np.uint64(2**53 - 1)
    return whole.astype(np.float64) * 2.0**-53


def _exponentials(uniforms: NDArray[np.float64]) -> Scores:
    return (-np.log1p(-uniforms)).astype(np.float32)


class StopStrings:
    """Stopping criterion: a text ends with the token that completes one of these strings.

    Args:
        decode: Returns the text of token ids.
        strings: The strings.

    Raises:
        ValueError: There is no string, or an empty one.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], strings: Sequence[str]) -> None:
        if not strings or not all(isinstance(each, str) and each for each in strings):
            raise ValueError(f"stop_strings must be texts of a character or more, got {strings!r}")
        self._decode, self._strings = decode, strings
        # A token has at least a byte. The last bytes of one before these may be a character's.
        self._num_tokens = max(len(each.encode()) for each in strings) + 4

    def __call__(self, token_ids: Any, _: Any) -> bool:
        ids = token_ids[0, -self._num_tokens :].tolist()
        text, before = self._decode(ids), self._decode(ids[:-1])
        if not text.startswith(before):  # the last token completes a character
            before = before.rstrip("\N{REPLACEMENT CHARACTER}")
        return any(
            text.find(each, max(len(before) - len(each) + 1, 0)) >= 0 for each in self._strings
        )

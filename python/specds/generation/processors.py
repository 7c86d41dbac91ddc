"""Processors of scores from arrays, by their settings in `model.generate`; without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
Processor: TypeAlias = "Callable[[NDArray[np.int64], Scores], Scores]"
"""A function of all tokens, int64 `(1, length)`, and of scores, float32 `(1, vocab_size)`.

It may write to the scores, and returns scores."""


def require_number(name: str, value: Any, kind: type, least: float, most: float, what: str) -> None:
    """Raise ValueError, which names the setting, for a value that is out of range."""
    number: Any = value
    if not (isinstance(value, kind) and least <= number <= most):
        raise ValueError(f"{name} must be {what}, got {value!r}")


@dataclass(frozen=True)
class Processing:
    """Settings of processors, by their names in `model.generate` and with its defaults.

    Raises:
        ValueError: One of them is out of range; the message names it.
    """

    sequence_bias: Any = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] | None = None
    min_length: int = 0
    min_new_tokens: int = 0
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = None

    def __post_init__(self) -> None:
        penalty = self.repetition_penalty
        require_number("repetition_penalty", penalty, Real, 1e-9, inf, "above 0")
        for name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            value = getattr(self, name)
            require_number(name, value, Integral, 0, inf, "an integer of 0 or more")

    def processors(
        self, prompt_length: int, eos_token_ids: Iterable[int], vocab_size: int
    ) -> list[Processor]:
        """Return the processors of a text, in the order of transformers.

        Args:
            prompt_length: Tokens of its prompt.
            eos_token_ids: Tokens that end it.
            vocab_size: Size of the model's vocabulary.
        """
        ends = [*eos_token_ids]
        made: list[Processor] = []
        if self.sequence_bias is not None:
            made.append(_biased(_biases(self.sequence_bias), "sequence_bias", vocab_size))
        if self.repetition_penalty != 1:
            made.append(_penalized(np.float32(self.repetition_penalty)))
        if self.no_repeat_ngram_size:
            made.append(_without_repeats(self.no_repeat_ngram_size))
        if self.bad_words_ids is not None:
            words = [word for word in self.bad_words_ids if [*word] not in [[end] for end in ends]]
            biases = {tuple(word): -inf for word in words}
            made.append(_biased(biases, "bad_words_ids", vocab_size))
        least = max(self.min_length, prompt_length + self.min_new_tokens)
        if ends and least > prompt_length:
            made.append(_suppressed(ends, "eos_token_id", vocab_size, before=least))
        if self.suppress_tokens is not None:
            made.append(_suppressed(self.suppress_tokens, "suppress_tokens", vocab_size))
        if self.begin_suppress_tokens is not None:
            first = {"before": prompt_length + 1}
            tokens = self.begin_suppress_tokens
            made.append(_suppressed(tokens, "begin_suppress_tokens", vocab_size, **first))
        return made


def _penalized(penalty: np.float32) -> Processor:
    def process(token_ids: NDArray[np.int64], scores: Scores) -> Scores:
        ids = np.unique(token_ids)
        seen = scores[0, ids]
        scores[0, ids] = np.where(seen < 0, seen * penalty, seen / penalty)
        return scores

    return process


def _without_repeats(size: int) -> Processor:
    def process(token_ids: NDArray[np.int64], scores: Scores) -> Scores:
        ids = token_ids[0]
        if len(ids) >= size:
            windows = np.lib.stride_tricks.sliding_window_view(ids, size)
            is_repeat = (windows[:, :-1] == ids[len(ids) + 1 - size :]).all(axis=1)
            scores[0, windows[is_repeat, -1]] = -inf
        return scores

    return process


def _biased(biases: Mapping[tuple[int, ...], float], name: str, vocab_size: int) -> Processor:
    _require_tokens(name, (token for sequence in biases for token in sequence), vocab_size)
    # In the order in which transformers adds them: single tokens first.
    ordered = sorted(biases.items(), key=lambda item: len(item[0]) > 1)

    def process(token_ids: NDArray[np.int64], scores: Scores) -> Scores:
        # A token may end several sequences.
        total: dict[int, np.float32] = {}
        for (*before, last), bias in ordered:
            ended = token_ids[0, max(token_ids.shape[1] - len(before), 0) :] if before else ()
            if [*ended] == before:
                total[last] = np.float32(total.get(last, 0) + np.float32(bias))
        for token, added in total.items():
            scores[0, token] += added
        return scores

    return process


def _suppressed(
    tokens: Sequence[int], name: str, vocab_size: int, before: float = inf
) -> Processor:
    """Forbid tokens, in texts of less than `before` tokens."""
    _require_tokens(name, tokens, vocab_size)
    forbidden = np.array(tokens, dtype=np.int64)

    def process(token_ids: NDArray[np.int64], scores: Scores) -> Scores:
        if token_ids.shape[1] < before:
            scores[0, forbidden] = -inf
        return scores

    return process


def _biases(given: Any) -> dict[tuple[int, ...], float]:
    """Read biases of sequences: a dictionary, or a list of pairs."""
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        return {tuple(sequence): float(bias) for sequence, bias in pairs}
    except (TypeError, ValueError):
        raise ValueError(
            "sequence_bias must be a dictionary from tuples of token ids to numbers, or a list of "
            f"such pairs, got {given!r}"
        ) from None


def _require_tokens(name: str, tokens: Iterable[Any], vocab_size: int) -> None:
    for token in tokens:
        if not (isinstance(token, (int, np.integer)) and 0 <= token < vocab_size):
            raise ValueError(
                f"{name} must hold ids of the vocabulary of {vocab_size:,} tokens, got {token!r}"
            )

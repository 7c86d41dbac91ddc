"""Enforcement of a grammar: a logits processor for transformers and for specds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.constraints.constraint import MaskingConstraint, MatcherConstraint

_LEAST_SHARE = 0.9
"""The least share of the model's tokens that its tokenizer has; models pad their vocabularies."""


def start_of(grammar: Any) -> Callable[[], MaskingConstraint]:
    """Return what makes a constraint at the start of a text.

    Raises:
        TypeError: The object is not a grammar.
    """
    library = type(grammar).__module__.partition(".")[0]
    if library == "xgrammar" and type(grammar).__name__ == "CompiledGrammar":
        from specds.constraints.of_xgrammar import XgrammarConstraint

        return lambda: XgrammarConstraint(grammar)
    if library in ("llguidance", "builtins") and type(grammar).__name__ == "LLMatcher":
        from specds.constraints.of_llguidance import LlguidanceConstraint

        return lambda: LlguidanceConstraint(grammar)
    if callable(grammar):
        return grammar  # type: ignore[no-any-return]
    raise TypeError(
        f"grammar must be an xgrammar.CompiledGrammar, an llguidance.LLMatcher, or a function that "
        f"returns a specds.constraints.MaskingConstraint, got {type(grammar).__name__}"
    )


class GrammarProcessor:
    """Mask the tokens that a grammar forbids, in one call of `generate`.

    Args:
        grammar: An `xgrammar.CompiledGrammar`, an `llguidance.LLMatcher`, or a function that
            returns a `MaskingConstraint`; or a list of these, one for each row, and None for a row
            without a grammar.

    Raises:
        TypeError: The object is not a grammar.
    """

    def __init__(self, grammar: Any) -> None:
        several = grammar if isinstance(grammar, (list, tuple)) else [grammar]
        self.starts = [None if one is None else start_of(one) for one in several]
        self._rows = list[_Text | None]()
        self._start = 0

    def start(self, row: int) -> Callable[[], MaskingConstraint] | None:
        """Return what makes the constraint of a row, None if it has none."""
        return self.starts[row if len(self.starts) > 1 else 0]

    def of_row(self, row: int) -> "GrammarProcessor":
        return GrammarProcessor(self.start(row))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the scores, -inf for forbidden tokens.

        Args:
            input_ids: Integers `(num_rows, length)`, one more in each call.
            scores: Floats `(num_rows, vocab_size)`, of torch or numpy.
        """
        forbidden = np.zeros(scores.shape, dtype=bool)
        for row, text in zip(forbidden, self._texts(input_ids), strict=True):
            if text is not None and not text.constraint.ended:
                mask = text.constraint.mask()[: len(row)]
                _require_same_tokenizer(mask, len(row))
                row[: len(mask)], row[len(mask) :] = ~mask, True
        if isinstance(scores, np.ndarray):
            return np.where(forbidden, -np.inf, scores)
        import torch

        return scores.masked_fill(torch.from_numpy(forbidden).to(scores.device), -torch.inf)

    def known_token(
        self, input_ids: Any, scores: Any, choose: Callable[[], int | None]
    ) -> int | None:
        """Return what is chosen by the scores of a call if it is known without the mask, or None.

        A mask takes 0.3 to 0.45 ms. Most tokens need none: forced ones, and those that would be
        chosen without the mask, if the grammar allows them.

        Args:
            input_ids: As in a call, `(1, length)`.
            scores: As in a call, `(1, vocab_size)`.
            choose: Returns a token that is chosen whatever else a mask allows, None if none is
                clear.
        """
        [text] = self._texts(input_ids)
        if text is None or text.constraint.ended:
            return choose()
        of_matcher = text.constraint if isinstance(text.constraint, MatcherConstraint) else None
        token = None if of_matcher is None else of_matcher.forced_token()
        if token is not None:
            return token if token < scores.shape[1] and math.isfinite(scores[0, token]) else None
        token = choose()
        if token is None or not math.isfinite(scores[0, token]):
            return None
        if of_matcher is not None:
            return token if of_matcher.allows(token) else None
        if not text.constraint.push(token):
            return None
        text.constraint.pop(1)
        return token

    def _texts(self, input_ids: Any) -> "list[_Text | None]":
        """Return the text of each row, None for one without a grammar."""
        if not self._rows:
            starts = map(self.start, range(len(input_ids)))
            self._rows = [None if start is None else _Text(start()) for start in starts]
            self._start = input_ids.shape[1]
        for text, ids in zip(self._rows, input_ids, strict=True):
            if text is not None:
                text.become(ids[self._start :].tolist())
        return self._rows


def _require_same_tokenizer(mask: NDArray[np.bool_], vocab_size: int) -> None:
    """Reject masks of which the first forbidden token would be generated for ever.

    Raises:
        ValueError: The grammar has far fewer tokens than the model, which may have some that its
            tokenizer lacks; or none is allowed.
    """
    if len(mask) < _LEAST_SHARE * vocab_size:
        fault = f"has {len(mask)} tokens, the model {vocab_size}"
    elif not mask.any():
        fault = "allows no token after this text"
    else:
        return
    raise ValueError(f"the grammar {fault}: compile it with the model's tokenizer")


@dataclass
class _Text:
    """A text and its constraint. Beams replace texts, so a text may become another one."""

    constraint: MaskingConstraint
    tokens: list[int] = field(default_factory=list)

    def become(self, tokens: list[int]) -> None:
        pairs = zip(self.tokens, tokens, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.constraint.pop(len(self.tokens) - shared)
        # A forbidden token is the padding of a text that has ended otherwise.
        allowed = takewhile(self.constraint.push, tokens[shared:])
        self.tokens[shared:] = list(allowed)


def add_grammar(grammar: Any, arguments: dict[str, Any]) -> None:
    """Add the processor that enforces a grammar, if there is one, to arguments of `generate`."""
    if grammar is not None:
        given = arguments.get("logits_processor") or ()
        arguments["logits_processor"] = [*given, GrammarProcessor(grammar)]


def last_grammar(processors: Sequence[Any]) -> GrammarProcessor | None:
    """Return the grammar that the last processor enforces, None if it is another."""
    last = processors[-1] if len(processors) else None
    return last if isinstance(last, GrammarProcessor) else None

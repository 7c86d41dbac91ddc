"""Constraint of a text that begins with given characters, whichever tokens spell them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specds.models.healing import Spellings


class BeginningConstraint:
    """Constraint of a text that begins with a spelling, in any tokens; then all is allowed.

    Args:
        spellings: Those of the model's tokenizer.
        beginning: What the spelling of the text begins with.
        vocab_size: The number of tokens of a mask.
    """

    def __init__(self, spellings: Spellings, beginning: str, vocab_size: int) -> None:
        self._spellings, self._vocab_size = spellings, vocab_size
        # What the text has to begin with after each number of tokens.
        self._left = [beginning]

    @property
    def ended(self) -> bool:
        return not self._left[-1]

    def push(self, token: int) -> bool:
        left = self._left[-1]
        if left:
            text = self._spellings.by_token.get(token)
            if not text or not (text.startswith(left) or left.startswith(text)):
                return False
            left = left[len(text) :]
        self._left.append(left)
        return True

    def pop(self, count: int) -> None:
        del self._left[len(self._left) - count :]

    def ahead(self) -> Sequence[Sequence[int]]:
        return []

    def mask(self) -> NDArray[np.bool_]:
        allowed = np.full(self._vocab_size, self.ended)
        if left := self._left[-1]:
            tokens = self._spellings.beginning_with(left)
            starts = {left[:end] for end in range(1, len(left))}
            tokens += [each for each, text in self._spellings.by_token.items() if text in starts]
            allowed[[token for token in tokens if token < self._vocab_size]] = True
        return allowed

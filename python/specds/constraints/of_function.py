"""Constraints of pure functions `prefix_allowed_tokens_fn`, which map a text to allowed tokens."""

from collections.abc import Callable, Sequence
from typing import Any

from specds.constraints.constraint import MAX_FORCED, Path

_MAX_BRANCHES = 8
"""The most allowed tokens that are followed: each one calls the function again."""


class FunctionConstraint:
    """Constraint of one row by a pure function, which drafts call for texts that are never emitted.

    Where it raises, nothing is drafted.

    Args:
        allowed: The function of transformers, with the number of its row.
        prompt_ids: int64 `(prompt_length,)`, as the processors of the row see it.
    """

    ended = False

    def __init__(self, allowed: Callable[[Any], Sequence[int]], prompt_ids: Any) -> None:
        self._allowed, self._prompt = allowed, prompt_ids
        self._tokens = list[int]()
        # The answers after each number of pushed tokens.
        self._answers = list[frozenset[int] | None]([None])

    def push(self, token: int) -> bool:
        if token not in self._next():
            return False
        self._tokens.append(token)
        self._answers.append(None)
        return True

    def pop(self, count: int) -> None:
        del self._tokens[len(self._tokens) - count :], self._answers[len(self._answers) - count :]

    def ahead(self) -> Sequence[Path]:
        forced, start = list[int](), len(self._tokens)
        while len(forced) < MAX_FORCED and len(self._next()) == 1:
            forced += self._next()
            self.push(forced[-1])
        few = sorted(self._next()) if len(self._next()) <= _MAX_BRANCHES else []
        self.pop(len(self._tokens) - start)
        if few:
            return [[*forced, token] for token in few]
        return [forced] if forced else []

    def _next(self) -> frozenset[int]:
        answer = self._answers[-1]
        if answer is None:
            ids = self._prompt.new_tensor([*self._prompt.tolist(), *self._tokens])
            try:
                answer = frozenset(token for token in map(int, self._allowed(ids)) if token >= 0)
            except Exception:  # it may know no text beyond its end
                answer = frozenset()
            self._answers[-1] = answer
        return answer

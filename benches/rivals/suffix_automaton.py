"""The suffix structure that engines build: an automaton of the request, and one of all answers.

Plain code: the longest suffix of the context that came before, in the request or in an earlier
answer, and a chain of what followed it the last time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specds._core import TokenTree
from specds.drafters import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np


BOUNDARY = -1


class SuffixAutomaton:
    """All substrings of a text that grows: a state for each set of places where some end.

    Attributes:
        text: The tokens.
        match: The longest suffix of the text that occurs before: its length, and where it last
            ended.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self.match = (0, -1)
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._end = [-1], [0], [-1]
        self._last = 0

    def append(self, token: int) -> None:
        """Adds a token: Blumer's construction, and the last end of each state on the way."""
        here, before = self._add({}, self._length[self._last] + 1, 0, -1), self._last
        while before != -1 and token not in self._next[before]:
            self._next[before][token] = here
            before = self._link[before]
        if before != -1:
            self._link[here] = self._split(before, token)
        self._last, link = here, self._link[here]
        self.match = (self._length[link], self._end[link])
        while here > 0:
            self._end[here] = len(self.text)
            here = self._link[here]
        self.text.append(token)

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """From the longest suffix of a text that occurs here to that with one more token."""
        while state and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        state = self._next[state].get(token, 0)
        return state, length + 1 if state else 0

    def after(self, end: int, number: int) -> list[int]:
        """What follows a place, up to a boundary."""
        following = self.text[end + 1 : end + 1 + number]
        return following[: following.index(BOUNDARY)] if BOUNDARY in following else following

    def end(self, state: int) -> int:
        """Where the substrings of a state last ended."""
        return self._end[state]

    def _add(self, following: dict[int, int], length: int, link: int, end: int) -> int:
        self._next.append(following)
        self._length.append(length)
        self._link.append(link)
        self._end.append(end)
        return len(self._next) - 1

    def _split(self, before: int, token: int) -> int:
        """The state that `token` leads to, with no longer substrings than through `before`."""
        found, length = self._next[before][token], self._length[before] + 1
        if self._length[found] == length:
            return found
        made = self._add(self._next[found].copy(), length, self._link[found], self._end[found])
        while before != -1 and self._next[before].get(token) == found:
            self._next[before][token] = made
            before = self._link[before]
        self._link[found] = made
        return made


class SuffixAutomatonDrafter:
    """One automaton of all answers, for all requests."""

    vocab_size = None

    def __init__(self) -> None:
        self.answers = SuffixAutomaton()

    def session(self, prompt_ids: Sequence[int] | np.ndarray) -> SuffixAutomatonSession:
        """Starts a request."""
        return SuffixAutomatonSession(self.answers, prompt_ids)


class SuffixAutomatonSession(Session):
    """One request; its answer is remembered when it finishes."""

    def __init__(self, answers: SuffixAutomaton, prompt_ids: Iterable[int]) -> None:
        self._answers, self._request = answers, SuffixAutomaton()
        self._state = (0, 0)
        self._take(prompt_ids)
        self._prompt_length = len(self._request.text)

    def draft(self, max_nodes: int, *_: Any) -> TokenTree:
        """A chain of at most `max_nodes` tokens, of the longer match; the request's if alike."""
        own, end = self._request.match
        state, length = self._state
        drafted: list[int] = []
        if length > own:
            drafted = self._answers.after(self._answers.end(state), max_nodes)
        elif own:
            drafted = self._request.after(end, max_nodes)
        return TokenTree(drafted, range(-1, len(drafted) - 1))

    def observe(
        self, token_ids: Sequence[int] | np.ndarray, num_verified: int | None = None
    ) -> None:
        """Appends tokens."""
        self._take(token_ids)

    def finish(self) -> None:
        """Remembers the answer."""
        for token in [*self._request.text[self._prompt_length :], BOUNDARY]:
            self._answers.append(token)

    def _take(self, token_ids: Iterable[int]) -> None:
        for token in map(int, token_ids):
            self._request.append(token)
            self._state = self._answers.step(*self._state, token)


@contextmanager
def open_suffix_automaton(*_: Any) -> Iterator[Callable[[], SuffixAutomatonDrafter]]:
    """Yields what makes a new drafter; a test holds its drafts against naive ones."""
    yield SuffixAutomatonDrafter

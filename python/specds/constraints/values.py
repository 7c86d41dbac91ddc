"""Values of a prompt where a grammar leaves the text free: names, quoted spans and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, takewhile
from typing import Any, Protocol

from specds.constraints.constraint import Path, Spells
from specds.models.render import text_after

_MAX_VALUES = 10
"""The most values that are drafted at once."""
_MAX_COPIES = 3
"""The most places of the prompt whose text is drafted after the same characters."""
_MATCHED_CHARS = (24, 12, 8, 5, 3)
"""Numbers of characters that are looked for in the prompt, the first that occurs counts."""
_MAX_CHARS = 8192
"""The most last characters of the text in which values count as used."""
_PROMPT_TOKENS = 4096
"""The most last tokens of the prompt that are read."""

_NAMES = re.compile(
    r"[^\W_a-z][\w./@-]*(?: [^\W_a-z][\w./@-]*)*|(?<=['\"`])[^'\"`\n]{2,60}(?=['\"`])"
)
"""Words that begin with a capital letter or a digit, and quoted text."""
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_DIGITS = re.compile(r"\d\D*\d\D*\d")
_REST = re.compile(r"[^.,;:()\"'\n]{1,40}")
"""What is copied after characters of the prompt."""
_BEFORE_NUMBER = frozenset(":[,")
_CLOSING = ",]}"
"""What may follow a value."""
_DEPTH = 3
"""The most of these that are tried after each other."""


class ForcesText(Protocol):
    """A constraint that knows what text must follow."""

    def text_after(self, path: Path) -> str | None:
        """Return the text that must follow a path, None if the path is forbidden."""
        ...


class TokenizerSpells:
    """The spelling of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.cut: Callable[[str], list[int]] = lru_cache(1 << 12)(self._cut)
        self._text: Callable[[tuple[int, ...]], str] = lru_cache(1 << 12)(self._text_of)
        self._line_end = self._encode("\n")

    def decode(self, token_ids: Any) -> str:
        return self._text(tuple(token_ids))

    def _text_of(self, token_ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode([*token_ids]))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _cut(self, text: str) -> list[int]:
        # No tokenizer joins a line end with the word after it; some join a quote.
        before, found = self._line_end, self._encode("\n" + text)
        return found[len(before) :] if found[: len(before)] == before else self._encode(text)


@dataclass(frozen=True)
class _TextPlace:
    """Position of a text in its strings and numbers.

    Attributes:
        quote: The quote that opened the string here; empty outside of strings.
        value: The characters of the string or of the number so far.
        is_escaped: Whether a backslash precedes.
        mark: The last character outside of strings and numbers, without spaces.
    """

    quote: str = ""
    value: str = ""
    is_escaped: bool = False
    mark: str = ""

    def after(self, text: str) -> _TextPlace:
        quote, value, is_escaped, mark = self.quote, self.value, self.is_escaped, self.mark
        for char in text:
            if quote and (is_escaped or char != quote):
                value += char
                is_escaped = char == "\\" and not is_escaped
            elif quote:
                quote, value, mark = "", "", quote
            elif char in "\"'":
                quote, value = char, ""
            elif char.isdigit() or char in "-.":
                value += char
            else:
                value, mark = "", mark if char.isspace() else char
        return _TextPlace(quote, value, is_escaped, mark)


class PromptValues:
    """Values that a structured text may copy from its prompt, whichever tokens spell them there.

    The token of a word after a quote is another one than that of the word after a space, so copies
    of tokens alone do not find it.

    Args:
        spells: The spelling of the model's tokenizer.
        prompt_ids: The tokens of the prompt.
    """

    def __init__(self, spells: Spells, prompt_ids: Sequence[int]) -> None:
        self._spells, self._prompt_ids = spells, prompt_ids
        self._tokens = list[int]()
        self._place, self._written = _TextPlace(), ""
        # Where the last value began, and how it may end.
        self._ends: tuple[int, list[str]] = (-1, [])

    def follow(self, token_ids: Sequence[int]) -> None:
        """Add emitted tokens."""
        new = text_after(self._spells, self._tokens, token_ids)  # type: ignore[arg-type]
        self._tokens += token_ids
        self._place = self._place.after(new)
        self._written += new.lower()

    def ahead(self, constraint: ForcesText, paths: Sequence[Path]) -> Sequence[Path]:
        """Return likely continuations: those that are known, and values where the grammar is free.

        Args:
            constraint: The grammar.
            paths: What it forces, or a few choices.
        """
        if len(paths) <= 1:
            return self._values_after(constraint, paths[0] if paths else ()) or paths
        same = takewhile(lambda of: len({*of}) == 1, zip(*paths, strict=False))
        forced = [of[0] for of in same]
        first = self._spells.decode([path[len(forced)] for path in paths if path[len(forced) :]])
        if not _DIGITS.search(first):
            return paths
        return [*self._values_after(constraint, forced), *paths]

    def _values_after(self, constraint: ForcesText, forced: Path) -> list[Path]:
        pending = constraint.text_after(forced)
        if pending is None:
            return []
        certain = (self._spells.decode(forced) if forced else "") + pending
        place = self._place.after(certain) if certain else self._place
        if not place.quote and place.mark not in _BEFORE_NUMBER:
            return [[*forced, *self._spells.cut(pending)]] if pending else []
        begun = len(self._written) + len(certain) - len(place.value)
        if place.quote:
            texts = self._copies(place.value) if place.value else self._names()
        else:
            texts = self._numbers(place.value)
        if begun != self._ends[0]:
            sample = "" if place.value else next(iter(texts), "0")
            self._ends = begun, self._ends_of(constraint, forced, pending, sample, place.quote)
        ends = self._ends[1]
        found = [text + end for text in texts for end in ends[:1] or [place.quote]]
        found += ends if place.value else ()
        found = found or [""]
        cut = self._spells.cut
        return [[*forced, *tokens] for text in found if (tokens := cut(pending + text))]

    def _ends_of(
        self, constraint: ForcesText, forced: Path, pending: str, sample: str, quote: str
    ) -> list[str]:
        """Return what may follow a value, its quote included."""

        def closed(text: str, depth: int) -> list[str]:
            tokens = [*forced, *self._spells.cut(pending + sample + text)]
            after = constraint.text_after(tokens) if text else ""
            if after is None:
                return []
            if after or depth == 0:
                return [text + after]
            found = [end for mark in _CLOSING for end in closed(text + mark, depth - 1)]
            return found or [text]

        return [end for end in closed(quote, _DEPTH) if end]

    @cached_property
    def _prompt(self) -> str:
        return self._spells.decode([*self._prompt_ids[-_PROMPT_TOKENS:]])

    @cached_property
    def _lower_prompt(self) -> str:
        return self._prompt.lower()

    @cached_property
    def _all_names(self) -> list[str]:
        found = (match[0].rstrip(".,;:") for match in _NAMES.finditer(self._prompt))
        return [*dict.fromkeys(name for name in found if len(name) > 1)]

    @cached_property
    def _all_numbers(self) -> list[str]:
        return [*dict.fromkeys(match[0] for match in _NUMBERS.finditer(self._prompt))]

    def _names(self) -> list[str]:
        written = self._written[-_MAX_CHARS:]
        unused = (name for name in self._all_names if name.lower() not in written)
        return [*islice(unused, _MAX_VALUES)]

    def _numbers(self, begun: str) -> list[str]:
        used = {*_NUMBERS.findall(self._written[-_MAX_CHARS:])} - {begun}
        found = (number for number in self._all_numbers if number not in used)
        rests = (number[len(begun) :] for number in found if number.startswith(begun))
        return [*islice(filter(None, rests), _MAX_VALUES)]

    def _copies(self, value: str) -> list[str]:
        """Return what follows the end of a value where it occurs in the prompt."""
        value = value[-_MATCHED_CHARS[0] :].lower().lstrip()
        for number in _MATCHED_CHARS:
            tail = value[-number:]
            if len(tail) < min(number, _MATCHED_CHARS[-1]):
                continue
            places = [*islice(_places_from_end(self._lower_prompt, tail), _MAX_COPIES)]
            if places:
                rests = (_REST.match(self._prompt, at + len(tail)) for at in reversed(places))
                return [*dict.fromkeys(rest[0] for rest in rests if rest)]
        return []


def _places_from_end(text: str, part: str) -> Iterator[int]:
    """Yield where a part is in a text, the last place first."""
    place = text.rfind(part)
    while place >= 0:
        yield place
        place = text.rfind(part, 0, place)

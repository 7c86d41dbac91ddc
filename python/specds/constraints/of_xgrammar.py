"""Constraints of xgrammar, which forces strings rather than tokens."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from specds.constraints.constraint import (
    MAX_BRANCHES,
    MAX_FORCED,
    MatcherConstraint,
    Path,
    Spells,
    few_of,
)

_BYTES_PER_TOKEN = 4
"""The bytes of forced strings that are looked up for each token that may be drafted."""
_MAX_CHARS = 8
"""The most characters that are followed where the next one is not forced."""
_FREE = ("012", "xqz", "XQZ")
"""A place that allows all of one of these has a number or free text, of which nothing is known."""
_MIN_SHARE = 0.25
"""The least probability of a text that is followed, if characters are equally likely."""
_SHARE_LEFT = 0.9
"""The share that is left of a text after each character, which ends what might not end."""
_NO_SPACE_BEFORE = frozenset(" :,]}")
"""Where a grammar allows spaces, few texts have one before these characters, or two."""
_WORDS = re.compile(r"(?<=\S)(?=\s)|(?<=\s)(?= \S)|(?<=[\n\t])(?=\S)")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_SPACES = re.compile(r"([{[,:])(\s*)(?=\S)")
"""A mark of JSON outside strings, and the whitespace before what follows it."""
_MAX_TAIL = 2048
"""The most last tokens whose whitespace is looked at."""


class XgrammarConstraint(MatcherConstraint):
    """A matcher of a `CompiledGrammar`.

    Args:
        compiled: The grammar.
        matcher: A matcher of it; a new one by default.
        max_forced: The most tokens of a forced string that are drafted.
    """

    def __init__(self, compiled: Any, matcher: Any = None, max_forced: int = MAX_FORCED) -> None:
        import xgrammar

        self._cutter = Cutter.of(compiled.tokenizer_info)
        matcher = xgrammar.GrammarMatcher(compiled) if matcher is None else matcher
        super().__init__(matcher, self._cutter.vocab_size)
        self._words = np.zeros((1, -(-self._cutter.vocab_size // 32)), np.int32)
        self._num_beyond = int(matcher.is_terminated())
        self._stops = frozenset(matcher.stop_token_ids)
        self._tokens = list[int]()
        self._before: str | None = None
        self._forced = _ForcedBytes(0, b"")
        self._max_forced, self._max_bytes = max_forced, _BYTES_PER_TOKEN * max_forced
        self._num_bytes_left = 0

    def push(self, token: int) -> bool:
        if not self._num_beyond and not self._matcher.accept_token(token):
            return False
        if self._num_beyond or token in self._stops:
            # A matcher that has accepted a stop token warns of each token that follows.
            self._matcher.rollback(int(not self._num_beyond))
            self._num_beyond += 1
        self._tokens.append(token)
        return True

    def pop(self, count: int) -> None:
        super().pop(count)
        del self._tokens[len(self._tokens) - count :]
        if len(self._tokens) < self._forced.num_tokens:
            self._forced = _ForcedBytes(0, b"")

    def ahead(self) -> Sequence[Path]:
        if self.ended:
            return []
        self._before, self._num_bytes_left, self._spent_s = None, self._max_bytes, 0.0
        known = self._forced.after(self._tokens, self._cutter.bytes_of)
        self._forced = _ForcedBytes(len(self._tokens), self._forced_bytes(known))
        found = self._texts(forced=self._forced.text)
        paths = ([*self._cutter.cut(text), *end][: self._max_forced] for text, end in found)
        return [path for path in paths if path]

    @property
    def spells(self) -> Spells:
        return self._cutter

    def _written(self) -> str:
        """Return the text without its strings. What it has as whitespace is likely below."""
        if self._before is None:
            text = _STRINGS.sub("0", self._cutter.decode(self._tokens[-_MAX_TAIL:]))
            if spaces := _SPACES.findall(text):
                self._cutter.spaces = dict(reversed(spaces))
            self._before = text
        return self._before

    def _forced_text(self) -> str:
        # Within the limits of the last `ahead`.
        return "" if self._is_free() else self._forced_bytes().decode(errors="ignore")

    def _bits_of_matcher(self) -> bytes:
        self._matcher.fill_next_token_bitmask(self._words, 0)
        return self._words.tobytes()

    def _is_free(self) -> bool:
        """Return whether much may come; a mask of some texts takes milliseconds."""
        return any(all(map(self._allows, chars)) for chars in _FREE)

    def _allows(self, char: str) -> bool:
        if is_allowed := self._matcher.accept_string(char):
            self._matcher.rollback(1)
        return bool(is_allowed)

    def _forced_bytes(self, known: bytes = b"") -> bytes:
        """Return the first bytes that must come next.

        The matcher's own search for them ends only where the forced string does: `"ab"` repeated
        without an end would keep it for ever.

        Args:
            known: The first of them that are known.
        """
        if self._matcher.is_terminated() or (known and not self._matcher.accept_string(known)):
            return b""
        found = bytearray(known)
        while len(found) < self._max_bytes and self._num_bytes_left > 0:
            byte = self._cutter.only_byte_of(self.bits())
            if self._spent_s > self.max_s:
                self._num_bytes_left = 0
                break
            if byte is None or not self._matcher.accept_string(byte):
                break
            found += byte
            self._num_bytes_left -= 1
        if found:
            self._matcher.rollback(len(found) - len(known) + bool(known))
        return bytes(found)

    def _texts(
        self, share: float = 1.0, before: str = "", forced: bytes | None = None
    ) -> list[tuple[str, list[int]]]:
        """Return the likely continuations, each with the stop token that must follow, if any."""
        if self._is_free():
            return [("", [])]
        forced = self._forced_bytes() if forced is None else forced
        return self._continued(share, before, forced.decode(errors="ignore"))

    def _continued(self, share: float, before: str, forced: str) -> list[tuple[str, list[int]]]:
        if forced and not self._matcher.accept_string(forced):
            return [(forced, [])]
        is_long = self._num_bytes_left <= 0 or len(forced) >= self._max_bytes
        is_last = share <= _MIN_SHARE or is_long or (forced and self._is_free())
        below = [] if is_last else self._branches(share, before + forced)
        if forced:
            self._matcher.rollback(1)
        if not 0 < len(below) <= MAX_BRANCHES:
            return [(forced, [])]
        return [(forced + text, end) for text, end in below]

    def _branches(self, share: float, before: str) -> list[tuple[str, list[int]]]:
        bits = self.bits()
        chars = self._cutter.chars_of(bits)
        if not chars:
            # If no character may come, only a stop token may.
            few = few_of(bits) or []
            return [("", [few[0]])] if 0 < len(few) <= _MAX_CHARS else []
        if len(chars) > _MAX_CHARS:
            return []
        if " " in chars:
            text = self._written() + before
            space = self._cutter.space_after(text, chars)
            if space and self._matcher.accept_string(space):
                below = self._texts(share, before + space)
                self._matcher.rollback(1)
                return [(space + text, end) for text, end in below]
            if len(chars) > 1 and (text.endswith(" ") or _NO_SPACE_BEFORE.issuperset(chars)):
                chars.remove(" ")
        found = []
        for char in chars:
            if self._matcher.accept_string(char):
                below = self._texts(_SHARE_LEFT * share / len(chars), before + char)
                found += [(char + text, end) for text, end in below]
                self._matcher.rollback(1)
        return found


@dataclass
class _ForcedBytes:
    """The first bytes that must follow a number of tokens."""

    num_tokens: int
    text: bytes

    def after(self, tokens: Sequence[int], bytes_of: Callable[[Sequence[int]], bytes]) -> bytes:
        """Return what must follow all of the tokens; nothing if it is not known."""
        new = bytes_of(tokens[self.num_tokens :])
        return self.text[len(new) :] if self.text.startswith(new) else b""


class Cutter:
    """Tokenize forced strings as byte pair encoding does, by the order of a vocabulary.

    Vocabularies list merged tokens in the order of their merges, so ids are ranks. Elsewhere tokens
    may differ from the tokenizer's, which costs acceptance alone.
    """

    _made: dict[str, "Cutter"] = {}  # noqa: RUF012  (one for each tokenizer of the process)

    @classmethod
    def of(cls, info: Any) -> "Cutter":
        """Return the cutter of a `TokenizerInfo`; a new one takes 0.2 s for 50,000 tokens."""
        key = f"{info.vocab_size} {info.dump_metadata()}"
        if key not in cls._made:
            cls._made[key] = cls(info.decoded_vocab)
        return cls._made[key]

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        self.vocab_size = len(vocabulary)
        self._ids: dict[bytes, int] = {}
        for token, text in enumerate(vocabulary):
            self._ids.setdefault(text, token)
        # Requests with one schema have the same forced strings.
        self.cut: Callable[[str], list[int]] = lru_cache(1 << 12)(self._cut)
        self._cut_word = lru_cache(1 << 14)(self._merged)
        self._vocabulary = vocabulary
        # The whitespace that the last text had first after each mark of JSON.
        self.spaces: dict[str, str] = {}
        chars = [chr(code) for code in range(32, 127) if bytes([code]) in self._ids]
        tokens = (self._ids[char.encode()] for char in chars)
        self._chars = [
            (char, token >> 3, 1 << (token & 7)) for char, token in zip(chars, tokens, strict=True)
        ]

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self._vocabulary[token] for token in token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.bytes_of(token_ids).decode("utf-8", errors="replace")

    def space_after(self, text: str, chars: Sequence[str]) -> str | None:
        """Return the rest of the whitespace that usually follows, None where it is not known.

        Args:
            text: The text so far.
            chars: The characters that may follow.
        """
        text = _STRINGS.sub("0", text)
        before, indent = text.rstrip(), self.spaces.get("{")
        is_json = before[:1] in ("{", "[") and '"' not in text
        if indent is None or not is_json:
            return None
        depth = sum(map(before.count, "{[")) - sum(map(before.count, "}]"))
        mark = before[-1:]
        if mark == ":" or "\n" not in indent:
            usual = self.spaces.get(mark)
        elif mark in "{[,":
            usual = "\n" + indent[1:] * depth
        else:
            usual = None if {",", ":"} & {*chars} else "\n" + indent[1:] * (depth - 1)
        is_in = text[len(before) :]
        return usual[len(is_in) :] if usual is not None and usual.startswith(is_in) else None

    def only_byte_of(self, bits: bytes) -> bytes | None:
        """Return the byte with which all tokens of a bit mask begin, None if they differ."""
        few = few_of(bits)
        if few is None:  # such as forced spaces, of which each number may be a token
            firsts = {char.encode() for char in self.chars_of(bits)}
        else:
            firsts = {self._vocabulary[token][:1] for token in few}
        return (firsts.pop() or None) if len(firsts) == 1 else None

    def chars_of(self, bits: bytes) -> list[str]:
        """Return the ASCII characters that a bit mask allows."""
        return [char for char, at, bit in self._chars if bits[at] & bit]

    def _cut(self, text: str) -> list[int]:
        """Return the first tokens of a string; none if a byte of it is unknown."""
        tokens = list[int]()
        # A token begins with a space or has none, unless it has several.
        for word in _WORDS.split(text):
            if len(tokens) >= MAX_FORCED:
                break
            tokens += self._cut_word(word)
        return tokens[:MAX_FORCED]

    def _merged(self, text: str) -> list[int]:
        word, rank = text.encode(), self._ids.get
        if (whole := rank(word)) is not None:
            return [whole]
        unknown = self.vocab_size
        parts = [word[index : index + 1] for index in range(min(len(word), 4 * MAX_FORCED))]
        ranks = [rank(left + right, unknown) for left, right in pairwise(parts)]
        while ranks and (best := min(ranks)) < unknown:
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del ranks[at]
            for near in range(max(at - 1, 0), min(at + 1, len(ranks))):
                ranks[near] = rank(parts[near] + parts[near + 1], unknown)
        return [self._ids[part] for part in parts if part in self._ids]

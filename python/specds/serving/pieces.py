"""Texts of models split, as they are written, into reasoning, content and calls of tools."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Piece:
    """A part of a text.

    Attributes:
        kind: What it is of.
        text: The text; of a call, its arguments as JSON.
        name: The function of a call.
    """

    kind: Literal["content", "reasoning", "call"]
    text: str
    name: str = ""


@dataclass(frozen=True)
class Marks:
    """Marks around the calls of some families of models.

    Attributes:
        opening: Begins a call, or several.
        closing: Ends them; empty if the end of the text does.
        read: Returns the calls of what is between them; raises ValueError if there are none.
    """

    opening: str
    closing: str
    read: Callable[[str], list[Piece]]


def call_of(value: Any) -> Piece:
    """Read a call from what JSON spells; raise ValueError if it is none."""
    if isinstance(value, dict):
        value = value.get("function") if isinstance(value.get("function"), dict) else value
        name = value.get("name", value.get("tool_name"))
        given = value.get("arguments", value.get("parameters", {}))
        if isinstance(name, str) and name:
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            return Piece("call", text, name)
    raise ValueError("no call")


def calls_of_json(text: str) -> list[Piece]:
    """Read objects, or lists of them, that follow each other."""
    found, decoder, rest = list[Piece](), json.JSONDecoder(), text.strip().strip("`").strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found += map(call_of, value if isinstance(value, list) else [value])
        rest = rest[end:].lstrip(" \t\r\n;,")
    if not found:
        raise ValueError("no call")
    return found


def _called(name: str, arguments: dict[str, Any]) -> Piece:
    return Piece("call", json.dumps(arguments, ensure_ascii=False), name)


def _value(text: str) -> Any:
    """Read an argument that is JSON, or a text without quotes."""
    text = text.removeprefix("\n").removesuffix("\n")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _named(text: str, opening: str, middle: str, closing: str) -> Iterator[tuple[str, str]]:
    """Yield names and what follows them, in a time that grows with the text alone."""
    place = text.find(opening)
    while place >= 0:
        start = place + len(opening)
        end = text.find(middle, start)
        if end < 0:
            return
        place = text.find(closing, end + len(middle))
        yield text[start:end], text[end + len(middle) : place if place >= 0 else len(text)]
        place = text.find(opening, place) if place >= 0 else -1


def _pairs(text: str, *marks: str) -> dict[str, Any]:
    return {name: _value(value) for name, value in _named(text, *marks)}


def _tagged(text: str) -> list[Piece]:
    """Read Hermes's JSON, the parameters of Qwen's coders, or the keys and values of GLM."""
    if "<function=" in text:
        return [
            _called(name.strip(), _pairs(body, "<parameter=", ">", "</parameter>"))
            for name, body in _named(text, "<function=", ">", "</function>")
        ]
    if "<arg_key>" in text or not text.lstrip().startswith(("{", "[")):
        name = text.partition("<arg_key>")[0].strip()
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError("no call")
        spelled = re.sub(r"</arg_key>\s*<arg_value>", "</arg_key>", text)
        return [_called(name, _pairs(spelled, "<arg_key>", "</arg_key>", "</arg_value>"))]
    return calls_of_json(text)


def _pythonic(text: str) -> list[Piece]:
    """Read calls as Python spells them, such as ``[weather(city="Oslo")]``."""
    try:
        if len(text) > _MOST_PYTHON:
            raise ValueError("no call")
        body = ast.parse(text.strip(), mode="eval").body
        calls: Any = body.elts if isinstance(body, ast.List) else [body]
        return [
            _called(
                ast.unparse(call.func),
                {str(each.arg): ast.literal_eval(each.value) for each in call.keywords},
            )
            for call in calls
        ]
    except (AttributeError, SyntaxError, RecursionError, MemoryError) as error:
        return calls_of_json(text) if text.strip()[:1] in ("{", "[") else _refuse(error)


def _refuse(error: Exception) -> list[Piece]:
    raise ValueError("no call") from error


def _mistral(text: str) -> list[Piece]:
    """Read a list, or names that are followed by arguments."""
    if "[ARGS]" not in text:
        return calls_of_json(text)
    _, *parts = re.split(r"(?<![\w.-])([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]", text)
    bodies = (body.replace("[TOOL_CALLS]", "") for body in parts[1::2])
    return [_called(name, json.loads(body)) for name, body in zip(parts[::2], bodies, strict=True)]


def _deepseek(text: str) -> list[Piece]:
    found = re.findall(r"<｜tool▁call▁begin｜>(.*?)(?=<｜tool▁call▁end｜>|$)", text, re.DOTALL)
    calls = []
    for each in found:
        head, _, rest = each.partition("<｜tool▁sep｜>")
        # Later releases name the function first, and earlier ones the kind.
        name, body = (head, rest) if head != "function" else rest.partition("\n")[::2]
        body = re.sub(r"^\s*```(?:json)?|```\s*$", "", body.strip())
        calls.append(_called(name.strip(), json.loads(body)))
    return calls or _refuse(ValueError(text))


def _kimi(text: str) -> list[Piece]:
    found = re.findall(
        r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>(.*?)(?=<\|tool_call_end\|>|$)",
        text,
        re.DOTALL,
    )
    return [_called(name, json.loads(body)) for name, body in found] or _refuse(ValueError(text))


def _gemma(text: str) -> list[Piece]:
    """Read ``call:weather{city:<escape>Oslo<escape>,days:3}``."""
    found = re.fullmatch(r"\s*call:([\w.-]+)\{(.*)\}\s*", text, re.DOTALL)
    if found is None:
        raise ValueError("no call")
    arguments, name = dict[str, Any](), ""
    for number, part in enumerate(found[2].split("<escape>")):
        if number % 2 == 1:
            arguments[name] = part
            continue
        for pair in part.split(","):
            name, _, value = pair.partition(":")
            if value:
                arguments[name] = _value(value)
    return [_called(found[1], arguments)]


USUAL = Marks("<tool_call>", "</tool_call>", _tagged)
"""The marks of calls for templates that have none."""

CALLS = (
    USUAL,
    Marks("<function=", "</function>", lambda text: _tagged(f"<function={text}")),
    Marks("<|tool_call_start|>", "<|tool_call_end|>", _pythonic),
    Marks("<|tool_call|>", "<|/tool_call|>", calls_of_json),
    Marks("<tool_calls>", "</tool_calls>", calls_of_json),
    Marks("[TOOL_CALLS]", "", _mistral),
    Marks("<|python_tag|>", "", calls_of_json),
    Marks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _deepseek),
    Marks("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _kimi),
    Marks("<start_function_call>", "<end_function_call>", _gemma),
)
_MOST_PYTHON = 1 << 15
"""Characters from which calls that Python spells take too long to read."""
_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<reasoning>", "</reasoning>"))
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_ENDS_OF_MESSAGES = ("<|end|>", "<|call|>", "<|return|>")
_INNER = (
    *("[ARGS]", "[CALL_ID]", "<|constrain|>", "<|start|>", "<escape>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)


@dataclass(frozen=True)
class Style:
    """Parts of the texts of a request; by default they are content alone.

    Attributes:
        calls: The marks of calls.
        reasoning: Marks around reasoning.
        has_channels: Whether messages name channels, as gpt-oss does.
        is_bare: Whether calls are JSON without marks.
        is_forced: Whether the whole text is one call as JSON.
    """

    calls: tuple[Marks, ...] = ()
    reasoning: tuple[tuple[str, str], ...] = ()
    has_channels: bool = False
    is_bare: bool = False
    is_forced: bool = False

    @classmethod
    def of(cls, template: str, *, has_tools: bool, is_forced: bool = False) -> Style:
        """Return the style of a chat template."""
        calls = tuple(marks for marks in CALLS if marks.opening in template) if has_tools else ()
        is_bare = has_tools and ("<|python_tag|>" in template or "ipython" in template.lower())
        if has_tools and not calls and not is_bare:
            calls = (USUAL,)
        reasoning = tuple(pair for pair in _REASONING if pair[1] in template)
        return cls(calls, reasoning, _CHANNEL in template, is_bare, is_forced)

    def shown_ids(self, tokenizer: Any) -> set[int]:
        """Return the special tokens that mark parts of a text."""
        names = {each for pair in self.reasoning for each in pair}
        if self.calls:
            names |= {each for marks in self.calls for each in (marks.opening, marks.closing)}
            names |= {*_INNER}
        if self.has_channels:
            names |= {_CHANNEL, _MESSAGE, *_ENDS_OF_MESSAGES, *_INNER}
        named = {name: tokenizer.backend_tokenizer.token_to_id(name) for name in names if name}
        return {number for number in named.values() if number is not None}


class Splitter:
    """Splits one text.

    Args:
        style: How.
        in_reasoning: Whether the text begins within reasoning.

    Attributes:
        num_calls: The calls so far.
    """

    def __init__(self, style: Style, in_reasoning: bool = False) -> None:
        self._style = style
        self.num_calls = 0
        self._held = ""
        self._closing = style.reasoning[0][1] if in_reasoning and style.reasoning else ""
        self._read: Callable[[str], list[Piece]] | None = None
        self._opening, self._is_begun = "", False
        if style.is_forced:
            self._read = calls_of_json

    def add(self, text: str) -> list[Piece]:
        """Return the parts that are certain after more of the text."""
        style = self._style
        if not (
            style.calls or style.reasoning or style.has_channels or style.is_bare or style.is_forced
        ):
            return [Piece("content", text)] if text else []
        self._held += text
        return [*self._split()]

    def end(self) -> list[Piece]:
        """Return the rest of a text that has ended."""
        pieces = [*self._split(is_end=True)]
        rest, self._held = self._held, ""
        if self._read is not None:
            pieces += self._call(rest)
        elif rest:
            pieces += self._plain(rest)
        return pieces

    def _split(self, *, is_end: bool = False) -> Iterator[Piece]:
        while True:
            if self._read is not None or self._closing:
                ends = self._closings()
                place, mark = _first(self._held, ends)
                if not mark:
                    if self._read is None:
                        yield from self._plain(self._certain(ends, is_end))
                    return
                body, self._held = self._held[:place], self._held[place + len(mark) :]
                yield from self._call(body) if self._read else self._plain(body)
                if mark == _CHANNEL:
                    self._held = mark + self._held
                self._closing, self._read, self._is_begun = "", None, False
                continue
            if self._style.is_bare and not self._is_begun and self._held.lstrip()[:1] in ("{", "["):
                self._opening, self._read = "", calls_of_json
                continue
            openings = self._openings()
            place, mark = _first(self._held, [*openings])
            if not mark:
                yield from self._plain(self._certain([*openings], is_end))
                return
            yield from self._plain(self._held[:place])
            rest = self._held[place + len(mark) :]
            if mark == _CHANNEL:
                header, found, rest = rest.partition(_MESSAGE)
                if not found:
                    self._held = self._held[place:]
                    return
                self._open_channel(header)
            elif isinstance(found_marks := openings[mark], Marks):
                self._opening, self._closing = mark, found_marks.closing
                self._read = found_marks.read
            else:
                self._closing = str(found_marks)
            self._held = rest

    def _openings(self) -> dict[str, Any]:
        openings: dict[str, Any] = {marks.opening: marks for marks in self._style.calls}
        openings |= dict(self._style.reasoning)
        if self._style.has_channels:
            openings[_CHANNEL] = ""
            openings |= dict.fromkeys(("<|start|>assistant", *_ENDS_OF_MESSAGES), "")
        return openings

    def _closings(self) -> list[str]:
        return [_CHANNEL, *_ENDS_OF_MESSAGES] if self._closing == _MESSAGE else [self._closing]

    def _open_channel(self, header: str) -> None:
        called = re.search(r"to=functions\.([\w.-]+)", header)
        if called:
            name = called[1]
            self._opening, self._closing = "", _MESSAGE
            self._read = lambda text: [_called(name, json.loads(text))]
        elif "final" not in header:
            self._closing = _MESSAGE

    def _certain(self, marks: list[str], is_end: bool) -> str:
        """Return what cannot be the beginning of a mark, and hold the rest."""
        held = 0 if is_end else max((num_begun(self._held, mark) for mark in marks), default=0)
        certain, self._held = (
            self._held[: len(self._held) - held],
            self._held[len(self._held) - held :],
        )
        return certain

    def _plain(self, text: str) -> Iterator[Piece]:
        kind: Any = "reasoning" if self._closing else "content"
        if not self._is_begun:  # templates put line breaks between the parts
            text = text.lstrip("\n")
        if text and (kind == "reasoning" or text.strip() or self._is_begun):
            self._is_begun = True
            yield Piece(kind, text)

    def _call(self, text: str) -> Iterator[Piece]:
        """Return the calls of a text, or the text if it has none."""
        assert self._read is not None
        try:
            found = self._read(text)
        except (ValueError, TypeError, RecursionError):
            yield Piece("content", self._opening + text)
            return
        self.num_calls += len(found)
        yield from found


def num_begun(text: str, mark: str) -> int:
    """Return how many of the last characters of a text begin a mark without ending it."""
    most = min(len(mark) - 1, len(text))
    return next((size for size in range(most, 0, -1) if text.endswith(mark[:size])), 0)


def _first(text: str, marks: list[str]) -> tuple[int, str]:
    """Return the first mark in a text and its place; no mark if there is none."""
    found = [(place, mark) for mark in marks if mark and (place := text.find(mark)) >= 0]
    return min(found, key=lambda of: (of[0], -len(of[1])), default=(0, ""))

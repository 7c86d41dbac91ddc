"""The rows of a JSON file, as a stream: one object a line, or one list of objects."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass, field
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TypeAlias

from specds.corpora.rows import BadRowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from gzip import GzipFile
    from io import BufferedReader

    from specds.corpora.rows import Row

_CHUNK_BYTES = 1 << 18
_LARGEST_ROW = 1 << 26
"""Characters; where so much is not one row, a bracket is missing."""

Spent: TypeAlias = "Callable[[], int]"
"""Says how many bytes were read since it was last asked."""

_WHITESPACE = " \t\r\n"


def line_rows(file: Iterable[bytes], spent: Spent) -> Iterator[Row]:
    """Yields the row of each line; blank lines are numbered, but no rows."""
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, _parsed(line), spent()


def document_rows(file: BufferedReader | GzipFile, spent: Spent) -> Iterator[Row]:
    """Yields the rows of a `.json` file, whichever way it holds them.

    They may be a list, read as it streams in; the list `data` of one object; or, misnamed, one
    object a line.
    """
    start = file.peek(_CHUNK_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"["):
        yield from _list_rows(_Text(file), spent)
        return
    first = file.readline()
    lines = [first] if _is_object(first) else [first, *file]
    second = next((line for line in file if line.strip()), b"")
    whole = None if second else _parsed(b"".join(lines))
    listed = whole.get("data") if isinstance(whole, dict) else None
    if isinstance(listed, list) and all(isinstance(row, dict) for row in listed):
        yield from ((number, row, spent()) for number, row in enumerate(listed, start=1))
    elif isinstance(whole, dict):
        yield 1, whole, spent()
    else:
        yield from line_rows(chain(lines, [second], file), spent)


def _is_object(line: bytes) -> bool:
    return isinstance(_parsed(line), dict)


def _parsed(content: bytes) -> Any:
    """The value, or the error to be told with its position."""
    try:
        return json.loads(content.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        return BadRowError("not JSON", f": {error}")


def _list_rows(text: _Text, spent: Spent) -> Iterator[Row]:
    text.peek()
    text.take(1)
    if text.peek() == "]":
        return
    for number in count(1):
        row = text.value()
        yield number, row, spent()
        if isinstance(row, BadRowError):
            return
        following = text.peek()
        text.take(1)
        if following == "]":
            return
        if following != ",":
            yield number + 1, BadRowError("not JSON", ": expected a comma or the list's end"), 0
            return


@dataclass
class _Text:
    """The text of a file, read as far as it is needed."""

    file: BufferedReader | GzipFile
    _buffer: str = ""
    _position: int = 0
    _ended: bool = False
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8-sig")()
    )

    def peek(self) -> str:
        """The next character that is no whitespace; empty at the end."""
        while True:
            while self._position < len(self._buffer):
                if self._buffer[self._position] not in _WHITESPACE:
                    return self._buffer[self._position]
                self._position += 1
            if not self._more(_CHUNK_BYTES):
                return ""

    def take(self, size: int) -> None:
        """Goes on behind the next characters."""
        self._position += size

    def value(self) -> Any:
        """The next JSON value, or the error that there is none."""
        self.peek()
        wanted = _CHUNK_BYTES
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._buffer, self._position)
            except (ValueError, RecursionError) as error:
                found: Any = BadRowError("not JSON", f": {error}")
                end = self._position
            else:
                found = value
            if end < len(self._buffer) and not isinstance(found, BadRowError):
                break
            # A value that ends with the buffer may go on behind it, and doubling what is read
            # keeps the work linear in the length of the row.
            if len(self._buffer) - self._position > _LARGEST_ROW or not self._more(wanted):
                break
            wanted *= 2
        self._position = end
        return found

    def _more(self, size: int) -> bool:
        if self._ended:
            return False
        content = self.file.read(size)
        self._ended = not content
        decoded = self._decoder.decode(content, final=self._ended)
        self._buffer = self._buffer[self._position :] + decoded
        self._position = 0
        return True

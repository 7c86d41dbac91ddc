"""Texts as they are in files: encodings, line ends, and notebooks by their cells."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

# The mark of UTF-32 begins with that of UTF-16.
_WIDE = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class NotTextError(ValueError):
    """A file holds no text; the message is the reason: ``not text``, ``not a notebook``."""


@dataclass(frozen=True)
class DecodedText:
    """The text of a file.

    Attributes:
        changes: What was normalized: ``UTF-16``, ``byte order mark``, ``CRLF line ends``.
    """

    text: str
    changes: tuple[str, ...] = ()


def text_of(name: str, content: bytes) -> DecodedText:
    """Return the text of a file: UTF-8 or, by its mark, UTF-16; of a notebook, that of its cells.

    Raises:
        NotTextError: The content is binary, or is not what the name says.
    """
    encoding = wide_encoding(content)
    changes = [encoding.upper()] if encoding else []
    if content.startswith(codecs.BOM_UTF8):
        changes.append("byte order mark")
    try:
        text = content.decode(encoding or "utf-8-sig")
    except UnicodeDecodeError:
        raise NotTextError("not text") from None
    if "\0" in text:  # valid in UTF-8, but never part of a text
        raise NotTextError("not text")
    if is_notebook(name):
        return DecodedText(_cells(text), tuple(changes))
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
        changes.append("CRLF line ends")
    return DecodedText(text, tuple(changes))


def wide_encoding(content: bytes) -> str | None:
    """Return the encoding that a mark at the beginning says, if it is not UTF-8."""
    return next((name for mark, name in _WIDE.items() if content.startswith(mark)), None)


def is_notebook(name: str) -> bool:
    return name.lower().removesuffix(".gz").removesuffix(".zst").endswith(".ipynb")


def _cells(content: str) -> str:
    """Return the sources of a notebook's cells, with empty lines between them; no outputs."""
    try:
        notebook = json.loads(content)
        # Format 3 has sheets, and `input` in cells of code.
        sheets = notebook.get("worksheets", [])
        cells = chain(notebook.get("cells", []), *(sheet["cells"] for sheet in sheets))
        sources = ["".join(each) for each in _sources(cells)]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise NotTextError("not a notebook") from None
    return "\n\n".join(source.strip("\n") for source in sources if source.strip()) + "\n"


def _sources(cells: Iterator[dict[str, Any]]) -> Iterator[Any]:
    for cell in cells:
        source = cell.get("source", cell.get("input", ""))
        if not isinstance(source, (str, list)):
            raise TypeError(type(source))
        yield source


class Utf8(io.RawIOBase):
    """A file in UTF-16 or UTF-32, read as UTF-8."""

    def __init__(self, file: Any, encoding: str) -> None:
        self._text = io.TextIOWrapper(file, encoding, newline="")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or self._text.read(1 << 16).encode(errors="replace")
        given, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(given)] = given
        return len(given)

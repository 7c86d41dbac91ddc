"""Files of rows or of text, also compressed; rows of JSON are read as a stream."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from specds._lazy import imported
from specds.corpora.document import CorpusError, CorpusOptions, Document, Item, Skipped, sift
from specds.corpora.rendering import Render
from specds.corpora.rows import BadRowError, NumberedRow, RowReader, Spent, whole_sessions
from specds.corpora.server_logs import logged_requests
from specds.corpora.tables import arrow_batches, arrow_reader, csv_rows, parquet_batches, rows_of
from specds.corpora.texts import NotTextError, Utf8, text_of, wide_encoding
from specds.corpora.unpacking import COMPRESSED, decompressed

_CHUNK = 1 << 18
_LARGEST_ROW = 1 << 26
"""Characters of a row, or bytes of a line; in a longer one, a bracket is missing."""
_LARGEST_TEXT = 1 << 28
"""Bytes of a packed text, which is one document: a small file may unpack to any size."""


def line_rows(file: io.BufferedReader | gzip.GzipFile, spent: Spent) -> Iterator[NumberedRow]:
    """Yield the row of each line; blank lines count as lines, but yield no row."""
    for number in count(1):
        line = file.readline(_LARGEST_ROW)
        if not line:
            return
        if len(line) == _LARGEST_ROW and not line.endswith(b"\n"):
            yield number, BadRowError("not JSON", ": a line of more than 64 MiB"), spent()
            while len(line) == _LARGEST_ROW and not line.endswith(b"\n"):
                line = file.readline(_LARGEST_ROW)
        elif line.strip():
            yield number, _parsed(line), spent()


def json_rows(file: io.BufferedReader | gzip.GzipFile, spent: Spent) -> Iterator[NumberedRow]:
    """Yield the rows of a `.json` file, as a stream: a list, or one object per line."""
    if file.peek(_CHUNK).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        with io.TextIOWrapper(file, "utf-8-sig") as text:
            yield from _list_rows(text, spent)
    else:
        yield from line_rows(file, spent)


def _parsed(content: bytes) -> Any:
    """Return the value, or the error, which is reported with its position."""
    try:
        return json.loads(content.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        return BadRowError("not JSON", f": {error}")


_BEFORE_FIRST, _BEFORE_OTHERS = re.compile(r"\s*\[\s*(\])?"), re.compile(r"\s*(?:(\])|,\s*)")
_END = object()


def _next_row(text: str, start: int, before: re.Pattern[str]) -> tuple[Any, int]:
    """The row behind what stands before it, `_END` at the end of the list, and where it ends."""
    found = before.match(text, start)
    if found is None:
        return BadRowError("not JSON", ": expected a comma or the list's end"), start
    if found[1]:
        return _END, found.end()
    try:
        return json.JSONDecoder().raw_decode(text, found.end())
    except (ValueError, RecursionError) as error:
        return BadRowError("not JSON", f": {error}"), start


def _list_rows(text: io.TextIOWrapper, spent: Spent) -> Iterator[NumberedRow]:
    """Yield the rows of a list up to the first that is not JSON."""
    buffer, start, before = "", 0, _BEFORE_FIRST
    for number in count(1):
        row, end = _next_row(buffer, start, before)
        # A value at the end of the buffer may continue after it. Doubling the read size
        # keeps the work linear in the length of a row.
        while end == len(buffer) or isinstance(row, BadRowError):
            size = len(buffer) - start
            more = text.read(max(size, _CHUNK)) if size <= _LARGEST_ROW else ""
            if not more:
                break
            buffer, start = buffer[start:] + more, 0
            row, end = _next_row(buffer, start, before)
        if row is _END:
            return
        yield number, row, spent()
        if isinstance(row, BadRowError):
            return
        start, before = end, _BEFORE_OTHERS


_KINDS = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
}
_TABLES = ("arrow", "parquet")


def kind(name: str) -> str:
    """Return the kind of a file by its name.

    It is ``lines`` or ``json``, ``parquet``, ``arrow`` or ``csv``, or ``text``.
    """
    path = Path(name.lower())
    suffix = Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
    return _KINDS.get(suffix, "text")


def local_file(path: Path, options: CorpusOptions, render: Render) -> DataFile:
    """Return the part that reads a file, by the kind of its name."""
    if not path.is_file():
        raise CorpusError(f"{path} is not a regular file: write what it holds to a file first")
    of = kind(path.name)
    if of in _TABLES and path.suffix.lower() in COMPRESSED:
        raise CorpusError(f"{path}: {of} is compressed inside: unpack the file first")
    return DataFile(path, options, render, path.name, path.stat().st_size)


def file_state(path: Path) -> str:
    """Return a file's path, size and modification time in nanoseconds."""
    found = path.stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def digest(states: Iterable[str]) -> str:
    """Combine several states into one short state."""
    return hashlib.sha256("\n".join(states).encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True)
class DataFile:
    """A file of rows, or of text as one document. Names of documents begin with `name`."""

    path: Path
    options: CorpusOptions
    render: Render
    name: str
    num_bytes: int

    @property
    def state(self) -> str:
        return file_state(self.path)

    def open(self) -> io.BufferedReader:
        return self.path.open("rb")

    def __iter__(self) -> Iterator[Item]:
        num_bytes = 0
        try:
            for item in self._items():
                num_bytes += item.num_bytes
                yield item
        except DamagedFileError:
            if self.options.on_bad_row == "fail":
                raise
            rest = max(self.num_bytes - num_bytes, 0)
            yield Skipped(self.name, "damaged or cut short", rest)

    def _items(self) -> Iterator[Item]:
        with readable(str(self.path)), self.open() as file:
            content, place = decompressed(file, self.name), f"{self.path}: row "
            of = kind(self.name)
            if of not in (*_TABLES, "text") and (wide := wide_encoding(content.peek(4))):
                content = io.BufferedReader(Utf8(content, wide))
            match of:
                case "text":
                    text = content.read(_LARGEST_TEXT + 1 if content is not file else -1)
                    if logged := self._requests(text):
                        yield from self._reader(f"{self.path}: request ").documents(logged)
                    else:
                        yield from sift([self._document(text)], self.options)
                case "parquet" | "arrow":
                    yield from self._table(file, of, place)
                case "json" | "csv":
                    read = json_rows if of == "json" else csv_rows
                    yield from self._reader(place).documents(read(content, _meter(file)))
                case _:
                    rows = whole_sessions(line_rows(content, _meter(file)))
                    yield from self._reader(f"{self.path}:").documents(rows)

    def _requests(self, content: bytes) -> list[NumberedRow]:
        """Return the requests of a server's log, and none of another text."""
        if ".log" not in Path(self.name.lower()).suffixes:
            return []
        rows = logged_requests(content.decode("utf-8", "replace"))
        share = self.num_bytes // max(len(rows), 1)
        return [(number, row, share) for number, row in enumerate(rows, 1)]

    def _document(self, content: bytes) -> Item:
        reason = "unpacks to more than 256 MiB"
        if len(content) <= max(_LARGEST_TEXT, self.num_bytes):
            try:
                found = text_of(self.name, content)
            except NotTextError as error:
                reason = str(error)
            else:
                return Document(self.name, found.text, self.num_bytes, changes=found.changes)
        if self.options.on_bad_row == "skip":
            return Skipped(self.name, reason, self.num_bytes)
        raise CorpusError(f"{self.path} {_REMEDIES[reason]}")

    def _reader(self, place: str) -> RowReader:
        return RowReader(self.name, place, self.options, self.render)

    def _table(self, content: io.BufferedReader, of: str, place: str) -> Iterator[Item]:
        parquet, arrow = imported("pyarrow.parquet"), imported("pyarrow")
        try:
            if of == "arrow":
                with arrow_reader(content) as file:
                    names, reader = list(file.schema.names), self._reader(place)
                    columns, spent = reader.columns(names), _meter(content)
                    rows = rows_of(arrow_batches(file, columns, self.num_bytes, spent))
                    yield from reader.documents(rows, names)
                return
            with parquet.ParquetFile(content, pre_buffer=True) as file:
                names, reader = file.schema_arrow.names, self._reader(place)
                rows = rows_of(parquet_batches(file, reader.columns(names), self.num_bytes))
                yield from reader.documents(rows, names)
        except arrow.ArrowInvalid as error:
            raise DamagedFileError(f"{self.path} is not a whole {of} file: {error}") from error


_REMEDIES = {
    "unpacks to more than 256 MiB": "unpacks to more than 256 MiB of one text: split it into "
    "smaller files",
    "not text": "is not UTF-8 text, and has no mark of UTF-16: give a text file, or convert it",
    "not a notebook": "is not a notebook: repair it, or name a text file",
}


class DamagedFileError(CorpusError):
    """A file cannot be unpacked or decoded to its end."""


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Name the file in errors of unpacking and decoding."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise _damaged(place, error) from error
    except OSError as error:
        # Arrow reports damage so; an error of the system has a number, one of a network a class.
        if error.errno is not None or type(error) is not OSError:
            raise
        raise _damaged(place, error) from error


def _damaged(place: str, error: Exception) -> DamagedFileError:
    remedy = "keep the rows before it with --on-bad-row skip"
    return DamagedFileError(f"{place} is damaged or cut short: {error} ({remedy})")


def _meter(file: io.BufferedReader) -> Spent:
    last = 0

    def spent() -> int:
        nonlocal last
        now = file.tell()
        size, last = now - last, now
        return size

    return spent

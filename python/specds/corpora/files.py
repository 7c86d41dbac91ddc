"""One file of rows or of text, compressed or not."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specds._lazy import imported
from specds.corpora.document import CorpusError, Document, Skipped, sift
from specds.corpora.json_rows import document_rows, line_rows
from specds.corpora.rows import RowReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specds.corpora.document import CorpusOptions, Item, Part
    from specds.corpora.json_rows import Spent
    from specds.corpora.rows import Render, Row

_LINES = (".jsonl", ".ndjson")
_COMPRESSED = (".gz", ".zst")
_ROWS_A_BATCH = 256


def kind(name: str) -> str:
    """What a file holds by its name: ``lines`` or ``json`` or ``parquet`` of rows, or ``text``."""
    path = Path(name.lower())
    suffix = Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix
    if suffix in _LINES:
        return "lines"
    return {".json": "json", ".parquet": "parquet"}.get(suffix, "text")


def local_file(path: Path, options: CorpusOptions, render: Render) -> Part:
    """The part that reads one file, by the kind of its name.

    Raises:
        CorpusError: It is a parquet file inside a compressed one.
    """
    if kind(path.name) == "text":
        return TextFile(path, options)
    if kind(path.name) == "parquet" and path.suffix.lower() in _COMPRESSED:
        raise CorpusError(f"{path}: parquet is compressed inside: unpack the file first")
    return RowFile(path, options, render)


@dataclass(frozen=True)
class _File:
    """A part that is one file."""

    path: Path
    options: CorpusOptions

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return self.path.stat().st_size

    @property
    def state(self) -> str:
        """Its path, size and time."""
        return file_state(self.path)


def file_state(path: Path) -> str:
    """The path of a file, its size and the nanosecond in which it was last written."""
    found = path.stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def digest(states: Iterable[str]) -> str:
    """One short state for many."""
    return hashlib.sha256("\n".join(states).encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True)
class RowFile(_File):
    """A `.jsonl`, `.json` or `.parquet` file."""

    render: Render

    def __iter__(self) -> Iterator[Item]:
        with readable(str(self.path)):
            if kind(self.path.name) == "parquet":
                yield from self._parquet()
            else:
                with self.path.open("rb") as file:
                    yield from json_documents(
                        file, self.path.name, str(self.path), self.options, self.render
                    )

    def _parquet(self) -> Iterator[Item]:
        parquet, arrow = imported("pyarrow.parquet"), imported("pyarrow")
        try:
            with parquet.ParquetFile(self.path) as file:
                names = file.schema_arrow.names
                reader = RowReader(self.path.name, f"{self.path}: row ", self.options, self.render)
                rows = _parquet_rows(file, reader.columns(names), self.num_bytes)
                yield from reader.documents(rows, names)
        except arrow.ArrowInvalid as error:
            raise CorpusError(f"{self.path} is not a whole parquet file: {error}") from error


@dataclass(frozen=True)
class TextFile(_File):
    """A file that is one document."""

    def __iter__(self) -> Iterator[Item]:
        with readable(str(self.path)), self.path.open("rb") as file:
            text = decode(decompressed(file, self.path.name).read())
        if text is not None:
            document = Document(self.path.name, text, self.num_bytes)
            yield from sift([document], self.options)
        elif self.options.on_bad_row == "skip":
            yield Skipped(self.path.name, "not text", self.num_bytes)
        else:
            raise CorpusError(f"{self.path} is not UTF-8 text: give a text file, or convert it")


def json_documents(
    file: io.BufferedReader, name: str, place: str, options: CorpusOptions, render: Render
) -> Iterator[Item]:
    """Yields the documents of a file of JSON rows.

    `file` is the content as it lies on disk; the suffixes of `name` tell how to read it, and errors
    call it `place`.
    """
    content = decompressed(file, name)
    if kind(name) == "lines":
        rows, place = line_rows(content, _meter(file)), f"{place}:"
    else:
        rows, place = document_rows(content, _meter(file)), f"{place}: row "
    yield from RowReader(name, place, options, render).documents(rows)


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Says which file it was that could not be unpacked or decoded."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise CorpusError(f"{place} is damaged or cut short: {error}") from error
    except OSError as error:
        # Arrow reports damage so; an error of the system has a number, one of a network a class.
        if error.errno is not None or type(error) is not OSError:
            raise
        raise CorpusError(f"{place} is damaged or cut short: {error}") from error


def decompressed(file: io.BufferedReader, name: str) -> io.BufferedReader | gzip.GzipFile:
    """The content of a file that is packed by gzip or zstd, or not at all, as its suffix tells."""
    if name.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if name.lower().endswith(".zst"):
        pyarrow = imported("pyarrow")
        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), 1 << 18)
    return file


def decode(content: bytes) -> str | None:
    """The content as text; None where it is binary (a zero byte is UTF-8, but never text)."""
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _parquet_rows(file: Any, columns: list[str], num_bytes: int) -> Iterator[Row]:
    number = 0
    total = file.metadata.num_rows
    for batch in file.iter_batches(batch_size=_ROWS_A_BATCH, columns=columns):
        for row in batch.to_pylist():
            # Each row's share of the file, so that all of them add up to it.
            share = num_bytes * (number + 1) // total - num_bytes * number // total
            number += 1
            yield number, row, share


def _meter(file: io.BufferedReader) -> Spent:
    last = 0

    def spent() -> int:
        nonlocal last
        now = file.tell()
        size, last = now - last, now
        return size

    return spent

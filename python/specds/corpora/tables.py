"""Rows of tables: Parquet, Arrow and CSV."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any

from specds._lazy import imported
from specds.corpora.requests import MESSAGES_FIELDS
from specds.corpora.rows import BadRowError, NumberedRow, Spent

_ROWS_A_BATCH = 256
_LARGEST_FIELD = 1 << 26
_DELIMITERS = ",;\t"


def parquet_batches(
    file: Any, columns: list[str], num_bytes: int
) -> Iterator[tuple[list[Any], int]]:
    """Yield the rows of each batch of a `ParquetFile`, and its share of the file's bytes."""
    total, done = file.metadata.num_rows, 0
    for batch in file.iter_batches(batch_size=_ROWS_A_BATCH, columns=columns):
        now = done + batch.num_rows
        yield batch.to_pylist(), num_bytes * now // total - num_bytes * done // total
        done = now


def arrow_reader(file: Any) -> Any:
    """Open an Arrow file, or a stream as `datasets` writes it."""
    ipc = imported("pyarrow.ipc")
    is_file = file.peek(6).startswith(b"ARROW1")
    return ipc.open_file(file) if is_file else ipc.open_stream(file)


def arrow_batches(
    reader: Any, columns: list[str], num_bytes: int, spent: Spent
) -> Iterator[tuple[list[Any], int]]:
    """Yield the rows of each batch of an `arrow_reader`, and its share of the file's bytes."""
    # A stream has no number of batches, but its bytes are read in order.
    number = getattr(reader, "num_record_batches", None)
    batches = iter(reader) if number is None else map(reader.get_batch, range(number))
    for batch in batches:
        share = spent() if number is None else num_bytes // number
        yield batch.select(columns).to_pylist(), share


def rows_of(batches: Iterable[tuple[list[Any], int]]) -> Iterator[NumberedRow]:
    """Yield the rows of batches; each has its share of the bytes, which add up to all."""
    number = 0
    for rows, num_bytes in batches:
        for index, row in enumerate(rows):
            share = num_bytes * (index + 1) // len(rows) - num_bytes * index // len(rows)
            number += 1
            yield number, row, share


def csv_rows(file: Any, spent: Spent) -> Iterator[NumberedRow]:
    """Yield the rows of a table with a header, by its names; conversations in JSON are parsed.

    The delimiter is the one of comma, semicolon and tab that is most frequent in the header.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_FIELD))
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        header = text.readline()
        delimiter = max(_DELIMITERS, key=header.count)
        table = csv.reader(chain([header], text), delimiter=delimiter, strict=True)
        names = next(table, [])
        for number in count(1):
            try:
                fields = next(table)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, BadRowError("not CSV", f": {error}"), spent()
                continue
            if len(fields) == len(names):
                row = {name: _value(name, each) for name, each in zip(names, fields, strict=True)}
                yield number, row, spent()
            elif fields:  # a line without any is blank
                found = f": {len(fields)}, expected {len(names)}"
                yield number, BadRowError("another number of fields", found), spent()


def _value(name: str, value: str) -> Any:
    if name in MESSAGES_FIELDS and value.startswith(("[", "{")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value

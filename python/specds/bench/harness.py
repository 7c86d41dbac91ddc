"""Shared parts of the benchmarks: loading of inputs, and tables of rows.

A benchmark turns options into a document of plain values, whose `rows` have the fields that
docs/measuring.md lists. The document is the JSON; tables are drawn from it alone.
"""

import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

from specds._core import Datastore
from specds.models.load import load_encoder
from specds.models.tokenization import Tokenizer, check_tokenizer

ReportRow = dict[str, Any]
BenchReport = dict[str, Any]
Columns = tuple[tuple[str, str, str], ...]
"""The figures of a table: the field of a row, its title, and the format of its value."""

OnProgress = Callable[[str, int], None]
"""Called before each step with the name of the step and the total number of steps."""


def circumstances() -> BenchReport:
    """Return `date`, `machine` and `command`."""
    now = datetime.now().astimezone()
    cores = f"{os.cpu_count()} cores"
    return {
        "date": f"{now:%Y-%m-%d %H:%M %Z}",
        "machine": f"{platform.machine()} {platform.system()}, {cores}",
        "command": shlex.join(["specds", *sys.argv[1:]]),
    }


def open_datastores(paths: Iterable[Path]) -> list[Datastore]:
    """Open datastores and read them into memory, so that no draft waits for the disk."""
    datastores = [Datastore(path) for path in paths]
    for datastore in datastores:
        datastore.warm()
    return datastores


def tokenizer_of(name: str | None, datastores: Sequence[Datastore]) -> tuple[str, Tokenizer]:
    """Return the name and the tokenizer of the transcripts, by default the datastores'."""
    if name is None:
        if not datastores:
            raise ValueError("no tokenizer: pass --tokenizer, or a datastore that names one")
        name = datastores[0].tokenizer_name
    tokenizer = load_encoder(name)
    for datastore in datastores:
        check_tokenizer(datastore, tokenizer)
    return name, tokenizer


def label(row: ReportRow, rows: Iterable[ReportRow], *fields: str) -> str:
    """Return the name of a row, with the fields in which rows of that name differ."""
    alike = [other for other in rows if name_of(other) == name_of(row)]
    parts = [name_of(row)]
    for name in fields:
        if len({other[name] for other in alike}) > 1:
            parts.append(PurePath(str(row[name])).name)
    return ", ".join(parts)


def name_of(row: ReportRow) -> str:
    return str(row.get("drafter") or row["name"])


class _Figures(Table):
    """Table that drops its last columns until the rest fit."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update_width(1000)
        kept = self.columns
        self.columns = kept[:]
        while self.__rich_measure__(console, unbounded).maximum > options.max_width:
            self.columns.pop()
        yield from super().__rich_console__(console, options)
        self.columns = kept


def table(
    title: str, rows: Iterable[ReportRow], name: Callable[[ReportRow], str], columns: Columns
) -> Table:
    """Return a table for the terminal with the name and figures of each row, or its status."""
    figures = (Column(heading, justify="right", no_wrap=True) for _, heading, _ in columns)
    made = _Figures(Column(no_wrap=True), *figures, title=title, title_justify="left", box=SIMPLE)
    made.pad_edge, made.collapse_padding, made.caption_justify = False, True, "left"
    for row in rows:
        is_measured = row["status"] == "ok"
        cells = [shown(row[field], form) for field, _, form in columns if is_measured]
        made.add_row(name(row), *(cells or [row["status"]]))
    return made


def shown(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)


def reasons(rows: Iterable[ReportRow]) -> list[str]:
    return list(dict.fromkeys(f"{name_of(row)}: {row['reason']}" for row in rows if row["reason"]))

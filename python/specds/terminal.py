"""What is written to a terminal: lines, errors and progress bars, all by rich."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.status import Status
from rich.table import Column
from rich.text import Text

# A terminal obeys controls, and C1 controls too; marks of direction show text in another order.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
_OTHERS = (range(0x80, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
_PICTURES = _CONTROLS | dict.fromkeys((*chain(*_OTHERS), 0x061C, 0x200E, 0x200F), 0xFFFD)


class LiteralConsole(Console):
    """A console that shows text from files, models and users as it is.

    Brackets in it mean nothing, and what a terminal would obey is shown as a picture.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_text = segment.control is None
            yield segment._replace(text=segment.text.translate(_PICTURES)) if is_text else segment


out = LiteralConsole()
err = LiteralConsole(stderr=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def fail(message: str) -> None:
    err.print(Text.assemble(("error", "bold red"), ": ", message), soft_wrap=True)


def note(message: str) -> None:
    err.print(Text.assemble(("note", "bold cyan"), ": ", message), soft_wrap=True)


def waiting(message: str) -> Status:
    """Shows on standard error, as long as it is entered, what is waited for."""
    return err.status(Text(message))


class _Rate(ProgressColumn):
    """How many documents and tokens there are so far, and how fast they come."""

    def render(self, task: Task) -> Text:
        tokens = task.fields.get("tokens")
        if not tokens or not task.elapsed:
            return Text()
        rate = quantity(tokens / task.elapsed)
        documents = counted(task.fields["documents"], "document")
        return Text(f"{documents}, {quantity(tokens)} tokens, {rate}/s", "progress.data.speed")


def _bars(*shown: ProgressColumn, **settings: Any) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        *shown,
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=err,
        **settings,
    )


@contextmanager
def build_progress(after_s: float = 0.0) -> Iterator[Callable[..., None]]:
    """Shows a bar a stage on standard error, after `after_s`; yields what a build reports to."""
    bars, started = _bars(_Rate(table_column=Column(no_wrap=True))), time.monotonic()
    tasks: dict[str, Any] = {}

    def show(stage: str, done: int, total: int | None, **counts: int) -> None:
        if time.monotonic() - started >= after_s:
            bars.start()
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            fields: dict[str, Any] = counts
            bars.update(tasks[stage], completed=done, total=total, **fields)

    try:
        yield show
    finally:
        if tasks:  # one that never started would end in an empty line
            bars.stop()


@contextmanager
def request_progress(what: str) -> Iterator[Callable[[str, int], None]]:
    """Shows a bar on standard error; yields what a benchmark reports each request to."""
    # A thread that refreshes would take the interpreter in the middle of what is timed.
    bars = _bars(transient=True, auto_refresh=False)
    last = 0.0

    def show(engine: str, total: int) -> None:
        nonlocal last
        if not bars.tasks:  # what is built before has a bar of its own
            bars.start()
            bars.add_task(what)
        bars.update(bars.task_ids[0], description=f"{what} {engine}", total=total, advance=1)
        if time.monotonic() - last > _REFRESH_S:
            bars.refresh()
            last = time.monotonic()

    try:
        yield show
    finally:
        if bars.tasks:
            bars.stop()


_REFRESH_S = 0.1


def quantity(value: float, unit: str = "") -> str:
    """A number with three digits, a decimal prefix and a unit: ``12.3 M``, ``108 B``."""
    for prefix in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.3g} {(prefix + unit).strip()}".rstrip()
        value /= 1000
    return f"{value:.3g} T{unit}"


def counted(number: int, what: str) -> str:
    """A number of things: ``1 token``, ``2,000 tokens``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """A time in the units that people use: ``3 h 5 min``, ``42 s``, ``0.2 s``."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

"""Progress bars of builds and benchmarks, imported on first use."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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
from rich.table import Column
from rich.text import Text

from specds import terminal
from specds.terminal import counted, quantity


class _Rate(ProgressColumn):
    """The number of documents and tokens so far, and the rate of tokens."""

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
        console=terminal.err,
        **settings,
    )


@contextmanager
def build_progress(after_s: float = 0.0) -> Iterator[Callable[..., None]]:
    """Show a bar per stage on standard error after `after_s`; yield the callback of a build."""
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
def loading(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show that a model is loaded; yield the callback that shows a bar after two seconds."""
    with ExitStack() as shown:
        shown.enter_context(terminal.waiting(f"loading {name}"))
        bars, started = _bars(transient=True), time.monotonic()

        def show(done: int, total: int) -> None:
            if time.monotonic() - started >= _LOADING_S and not bars.tasks:
                shown.close()
                shown.enter_context(bars)
                bars.add_task(f"loading {name}")
            if bars.tasks:
                bars.update(bars.task_ids[0], completed=done, total=total)

        yield show


@contextmanager
def prompt_progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error while a prompt is read; yield its callback."""
    with _bars(transient=True) as bars:
        task = bars.add_task("reading the prompt", total=None)

        def show(num_read: int, num_tokens: int) -> None:
            what = f"reading {counted(num_tokens, 'token')}"
            bars.update(task, description=what, completed=num_read, total=num_tokens)

        yield show


@contextmanager
def request_progress(what: str) -> Iterator[Callable[[str, int], None]]:
    """Show a bar on standard error; yield the callback of a benchmark for each request."""
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
_LOADING_S = 2.0

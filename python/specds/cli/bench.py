"""Commands that measure: bench acceptance, bench generate."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specds import terminal
from specds.bench.options import AcceptanceOptions, GenerateOptions
from specds.bench.plot import Bar, Chart, bar_chart
from specds.cli.arguments import Csv, Json, Plot
from specds.cli.help import SETTINGS, HelpCommand, HelpGroup
from specds.cli.records import with_records

if TYPE_CHECKING:
    from specds.bench.harness import BenchReport, OnProgress, ReportRow

app = typer.Typer(
    name="bench",
    cls=HelpGroup,
    help="Measure drafters.",
    context_settings=SETTINGS,
    rich_markup_mode=None,
)


@app.callback()
def _options() -> None:
    """Measure drafters."""


@app.command(cls=HelpCommand)
@with_records
def acceptance(
    more_transcripts: Sequence[Path] = (),
    /,
    *,
    options: AcceptanceOptions,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Measure the acceptance and the speed of drafters on recorded answers.

    No model is needed: greedy acceptance depends on the recorded tokens alone. Rows may hold
    `prompt_ids` and `completion_ids` instead of texts. Separate several drafters, numbers of nodes
    or datastores with commas.

    Args:
        more_transcripts (FILE): The same as `--transcripts`.

    Examples:
        specds bench acceptance --transcripts a.jsonl --datastore a.specds
        specds bench acceptance --transcripts *.jsonl --tokenizer demo
    """
    from specds.bench.acceptance.report import tables
    from specds.bench.acceptance.run import run_acceptance

    whole = replace(options, transcripts=[*options.transcripts, *more_transcripts])
    formats: dict[str, Any] = {"as_json": as_json, "as_csv": as_csv, "plot": plot}
    interval = "95 % interval over requests"
    chart = Chart("tokens per forward pass", "mean_acceptance_length", interval, ["transcripts"])
    _show("acceptance", partial(run_acceptance, whole), tables, chart, **formats)


@app.command(cls=HelpCommand)
@with_records
def generate(
    more_transcripts: Sequence[Path] = (),
    /,
    *,
    options: GenerateOptions,
    as_json: Json = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Measure tokens per second of drafters and of baselines such as `model.generate`.

    All take turns, prompt by prompt. Separate several names, numbers, batches or datastores with
    commas.

    Args:
        more_transcripts (FILE): The same as `--transcripts`.

    Examples:
        specds bench generate --model demo
        specds bench generate --model ./vicuna --transcripts a.jsonl --drafter fused
    """
    from specds.models.resolve import ModelRef, require_placement

    require_placement(options.device, options.dtype)
    ModelRef.resolve(options.model)
    from specds.bench.generation.report import altered, tables
    from specds.bench.generation.run import run_generate

    whole = replace(options, transcripts=[*options.transcripts, *more_transcripts])
    formats: dict[str, Any] = {"as_json": as_json, "as_csv": as_csv, "plot": plot}
    title = "speed over the fastest way without drafts"
    chart = Chart(title, "speed_up", "least to most of the runs", ["mode", "batch"])
    document = _show("generate", partial(run_generate, whole), tables, chart, **formats)
    if altered(document):
        terminal.fail("a drafter changed the text: see `num_differing`")
        raise typer.Exit(1)


def _show(
    what: str,
    run: "Callable[[OnProgress], BenchReport]",
    tables: "Callable[[BenchReport], list[Any]]",
    chart: Chart,
    *,
    as_json: bool,
    as_csv: bool,
    plot: Path | None,
) -> "BenchReport":
    """Run a benchmark, and print its results as tables, JSON or CSV."""
    from specds.bench.harness import label, reasons
    from specds.terminal.progress import request_progress

    if plot is not None:
        is_new = not plot.exists()
        plot.open("a").close()  # fails before the measurement
        if is_new:
            plot.unlink()
    with request_progress(what) as progress:
        document = run(progress)
    if as_json:
        terminal.print_json(document)
    elif as_csv:
        terminal.print_csv(document["rows"])
    else:
        for table in tables(document):
            terminal.out.print(table)
    if plot is not None:
        rows = [row for row in document["rows"] if row[chart.figure] is not None]
        bars = [
            Bar(
                label(row, rows, *chart.fields, "max_nodes", "datastore"),
                row[chart.figure],
                row.get("interval") or _range(row, chart.figure),
            )
            for row in rows
        ]
        plot.write_text(bar_chart(chart.title, bars, chart.interval), encoding="utf-8")
    for reason in reasons(document["rows"]):
        terminal.note(reason)
    return document


def _range(row: "ReportRow", figure: str) -> tuple[float, float] | None:
    """Return the least and the largest value of the runs; None for a single one."""
    least, most = row.get(f"{figure}_min"), row.get(f"{figure}_max")
    return None if least is None or most is None or least == most else (least, most)

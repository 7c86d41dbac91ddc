"""Commands that measure: bench replay."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from specds import display
from specds.cli.arguments import Json, Weights, listed

app = typer.Typer(
    name="bench",
    help="Measure drafters.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.callback()
def _options() -> None:
    """Measure drafters."""


class OrderName(str, Enum):
    """The orders that the command line knows."""

    FILE = "file"
    SHUFFLED = "shuffled"


@app.command()
def replay(
    transcripts: Annotated[
        list[Path],
        typer.Option(help="A file of recorded answers: JSONL of `prompt` and `completion`."),
    ],
    more_transcripts: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More such files.")
    ] = None,
    datastore: Annotated[
        list[str] | None, typer.Option(help="A folder made by `specds build`, or several.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="By default the one the datastore was built with.")
    ] = None,
    drafter: Annotated[str, typer.Option(help="Drafters and rivals by name.")] = "fused,rest",
    budget: Annotated[str, typer.Option(help="The most nodes of a draft.")] = "64",
    model: Annotated[
        str | None, typer.Option(help="The target, for drafters that are made of its weights.")
    ] = None,
    order: Annotated[
        OrderName, typer.Option(help="As the files have them, or all shuffled by --seed.")
    ] = OrderName.FILE,
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    warm_memory: Annotated[
        bool,
        typer.Option(
            "--warm-memory/--no-warm-memory",
            help="Whether one drafter serves all requests and keeps what they taught it.",
        ),
    ] = True,
    limit: Annotated[int | None, typer.Option(min=1, help="Requests of a file at most.")] = None,
    weights: Weights = None,
    rivals_python: Annotated[
        Path | None, typer.Option(help="The interpreter that rivals are installed for.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the figures here as one page.")] = None,
    as_json: Json = False,
) -> None:
    """Replay recorded answers: how many of their tokens does a drafter foretell, how fast?

    Needs no model: greedy acceptance depends on nothing but the tokens that were written. Where
    rows hold `prompt_ids` and `completion_ids`, these are taken. Several drafters, budgets or
    datastores are separated by commas. Rivals: `transformers-prompt-lookup`, and in the interpreter
    of `--rivals-python` `draftretriever`, `tokengrams`, `infini-gram`, `arctic-suffix` and
    `arctic-suffix-tree`.

    Examples:
        specds bench replay --transcripts answers.jsonl --datastore chat.specds --budget 8,16,32,64

        specds bench replay --transcripts *.jsonl --datastore 1m.specds,4m.specds --html report.html
    """
    from specds.bench.html import page, require_plotly
    from specds.bench.report import tables
    from specds.bench.run import ReplayOptions, run_replay

    if html:
        require_plotly()
    options = ReplayOptions(
        transcripts=[*transcripts, *(more_transcripts or [])],
        drafters=listed(drafter),
        budgets=[_budget(text) for text in listed(budget)],
        datastores=[Path(path) for paths in datastore or [] for path in listed(paths)],
        tokenizer=tokenizer,
        model=model,
        order=order.value,
        seed=seed,
        warm_memory=warm_memory,
        limit=limit,
        weights=weights,
        rivals_python=rivals_python,
    )
    with display.replay_progress() as progress:
        rows, settings = run_replay(options, progress)
    if html:
        html.write_text(page(rows, settings), encoding="utf-8")
    if as_json:
        display.print_json({**asdict(settings), "rows": rows})
        return
    for table in tables(rows, settings):
        display.out.print(table)
    for reason in dict.fromkeys(f"{r['drafter']}: {r['reason']}" for r in rows if r["reason"]):
        display.note(reason)


def _budget(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"budget `{text}` is no number of nodes: try 8,16,32,64")
    return int(text)

"""Commands that measure: bench replay, bench generate."""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specds import terminal
from specds.cli.arguments import Json, Weights, listed, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from specds.bench.harness import Document, Progress

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


_MoreFiles = Annotated[
    list[Path] | None, typer.Argument(metavar="[FILE]...", help="More such files.")
]
_Datastores = Annotated[
    list[str] | None, typer.Option(help="A folder made by `specds build`, or several.")
]
_Drafters = Annotated[str, typer.Option(help="Drafters by name.")]
_WarmMemory = Annotated[
    bool,
    typer.Option(
        "--warm-memory/--no-warm-memory",
        help="Whether one drafter serves all requests of a run and keeps what they taught it.",
    ),
]
_Html = Annotated[Path | None, typer.Option(help="Write the figures here as one page.")]


@app.command()
def replay(
    transcripts: Annotated[
        list[Path],
        typer.Option(help="A file of recorded answers: JSONL of `prompt` and `completion`."),
    ],
    more_transcripts: _MoreFiles = None,
    datastore: _Datastores = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="By default the one the datastore was built with.")
    ] = None,
    drafter: _Drafters = "fused,rest",
    budget: Annotated[str, typer.Option(help="The most nodes of a draft.")] = "64",
    model: Annotated[
        str | None, typer.Option(help="The target, for drafters that are made of its weights.")
    ] = None,
    order: Annotated[
        OrderName, typer.Option(help="As the files have them, or all shuffled by --seed.")
    ] = OrderName.FILE,
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    warm_memory: _WarmMemory = True,
    memory_tokens: Annotated[
        int,
        typer.Option(
            parser=size,
            help="Tokens of the datastore that are in the memory of `fused` at first: 1M.",
        ),
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Requests of a file at most.")] = None,
    weights: Weights = None,
    html: _Html = None,
    as_json: Json = False,
) -> None:
    """Replay recorded answers: how many of their tokens does a drafter foretell, how fast?

    Needs no model: greedy acceptance depends on nothing but the tokens that were written. Where
    rows hold `prompt_ids` and `completion_ids`, these are taken. Several drafters, budgets or
    datastores are separated by commas.

    Examples:
        specds bench replay --transcripts answers.jsonl --datastore chat.specds --budget 8,16,32,64

        specds bench replay --transcripts *.jsonl --datastore 1m.specds,4m.specds --html report.html
    """
    from specds.bench.replay.plots import page
    from specds.bench.replay.report import tables
    from specds.bench.replay.run import ReplayOptions, run_replay

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
        memory_tokens=memory_tokens,
        limit=limit,
        weights=weights,
    )
    run = partial(run_replay, options)
    _show("replay", run, tables, page, html, as_json=as_json)


@app.command()
def generate(
    model: Annotated[
        str | None, typer.Option(help="A name on the hub, a local folder, or `demo`.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Instead of a model, random weights of a real shape: `llama-2-7b`, ..."),
    ] = None,
    transcripts: Annotated[
        list[Path] | None,
        typer.Option(help="A file of recorded answers: their prompts are completed."),
    ] = None,
    more_transcripts: _MoreFiles = None,
    datastore: _Datastores = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="By default the model's, or that of the datastore.")
    ] = None,
    drafter: _Drafters = "fused",
    weights: Weights = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Of `generate`, `static`, `compiled`, `plain`, `transformers-prompt-lookup`; by "
            "default all, on a CPU without `compiled`."
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="The most nodes of a draft; `auto` leaves it to specds.")
    ] = "auto",
    modes: Annotated[
        str, typer.Option(help="`greedy`, `sampled`; not with --forced.")
    ] = "greedy,sampled",
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the sampled mode.")] = 0.7,
    forced: Annotated[
        bool,
        typer.Option("--forced", help="Emit the recorded answers, whatever the model says."),
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="By default 128; with --forced the whole answer."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of a file at most.")] = None,
    runs: Annotated[int, typer.Option(help="How often all is measured.")] = 3,
    batch: Annotated[str, typer.Option(help="Prompts a call.")] = "1",
    verification: Annotated[
        str, typer.Option(help="How drafts are verified: `auto`, `fast`, `tree`, `batched`.")
    ] = "auto",
    context: Annotated[
        str, typer.Option(help="Where passes are timed by their nodes: `512,4k,16k`; or `none`.")
    ] = "512",
    nodes: Annotated[str, typer.Option(help="Nodes of these passes.")] = "1,2,4,8,16,32,64",
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="`auto`, `float32`, `bfloat16`, ...")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the sampling, and of the demo's prompts.")] = 0,
    warm_memory: _WarmMemory = True,
    html: _Html = None,
    as_json: Json = False,
) -> None:
    """Measure tokens a second: drafters against `model.generate` and what else is plain.

    All take turns, prompt by prompt. Several names, budgets, batches or datastores are separated by
    commas. With --forced the model emits recorded answers, so that random weights of a real shape
    show the true time of its arithmetic at the true acceptance.

    Examples:
        specds bench generate --model demo

        specds bench generate --forced --shape llama-2-7b --transcripts a.jsonl --datastore a.specds
    """
    from specds.bench.generation.plots import page
    from specds.bench.generation.report import altered, tables
    from specds.bench.generation.run import GenerateOptions, run_generate

    options = GenerateOptions(
        model=model,
        shape=shape,
        transcripts=[*(transcripts or []), *(more_transcripts or [])],
        datastores=[Path(path) for paths in datastore or [] for path in listed(paths)],
        tokenizer=tokenizer,
        drafters=listed(drafter),
        weights=weights,
        baselines=None if baseline is None else listed(baseline),
        budgets=["auto" if text == "auto" else _budget(text) for text in listed(budget)],
        modes=listed(modes),
        temperature=temperature,
        forced=forced,
        max_new_tokens=max_new_tokens,
        limit=limit,
        runs=runs,
        batches=[size(text) for text in listed(batch)],
        verification=verification,
        contexts=[size(text) for text in listed(context) if text != "none"],
        num_nodes=[size(text) for text in listed(nodes)],
        device=device,
        dtype=dtype,
        seed=seed,
        warm_memory=warm_memory,
    )
    run = partial(run_generate, options)
    document = _show("generate", run, tables, page, html, as_json=as_json)
    if altered(document):
        terminal.fail("a drafter changed the text: see `num_differing`")
        raise typer.Exit(1)


def _show(
    what: str,
    run: Callable[[Progress], Document],
    tables: Callable[[Document], list[Any]],
    page: Callable[[Document], str],
    html: Path | None,
    *,
    as_json: bool,
) -> Document:
    """Runs a benchmark and shows what it measured: tables or JSON, and a page."""
    from specds.bench.harness import reasons
    from specds.bench.page import require_plotly

    if html:
        require_plotly()  # before anything is measured
    with terminal.request_progress(what) as progress:
        document = run(progress)
    if html:
        html.write_text(page(document), encoding="utf-8")
    if as_json:
        terminal.print_json(document)
    else:
        for table in tables(document):
            terminal.out.print(table)
    for reason in reasons(document["rows"]):
        terminal.note(reason)
    return document


def _budget(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"budget `{text}` is no number of nodes: try 8,16,32,64")
    return int(text)

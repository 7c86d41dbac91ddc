"""Everything that a GPU is asked for: its tests, and drafting on a real shape against the bars.

Recorded answers are forced through random weights of a real shape (`specds bench generate
--forced`), each file with the datastore that it drafts from and the bar it is held to. Batches and
the cost of a pass by its nodes are measured on the first. After each of these it prints what it has
and writes `build/bench-gpu.json` and, where plotly is installed, `build/bench-gpu.html`. Run it by
`make bench-gpu ARGS="--case ANSWERS.jsonl DATASTORE BAR ..."`; without a GPU, `--device cpu --shape
tiny` shows that it works.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from index.report import Figure, machine, table
from specds import terminal
from specds.bench.generation.plots import page
from specds.bench.generation.report import altered, sentence, tables
from specds.bench.generation.run import GenerateOptions, run_generate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specds.bench.harness import Row

BASELINES = ("generate", "compiled", "plain", "transformers-prompt-lookup")
CONTEXTS = (512, 4096, 16_384)
# A pass over 64 nodes, and what the host does meanwhile.
LARGEST_PASS, LARGEST_RATIO, LARGEST_OUTSIDE = 64, 1.15, 0.05
LEAST_IN_BATCHES = 0.98


@dataclass(frozen=True)
class Case:
    """Answers, what is drafted from, and how many times as fast as plain decoding it shall be."""

    transcripts: Path
    datastore: Path
    bar: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.device != "cpu" and not torch.cuda.is_available():
        terminal.fail(
            "no CUDA device: this needs a GPU whose memory holds the model (16 GB for llama-2-7b); "
            "`--device cpu --shape tiny` shows that it works"
        )
        return 1
    figures = [] if options.without_tests else [Figure("tests on the GPU", _tests(), at_most=0)]
    documents: list[dict[str, Any]] = []
    for case, batches, contexts in _measurements(options):
        document = _run(_options(options, case, batches, contexts), case.transcripts.name)
        documents.append(document)
        figures += speed_figures(document, case) + curve_figures(document["verification_costs"])
        # What was measured is kept and shown, whatever becomes of the rest.
        _write(options.out, documents, figures)
        _show(document, figures)
        _forget_the_model()
    # What could not be measured has not met its bar either.
    held = (figure for figure in figures if (figure.at_most, figure.at_least) != (None, None))
    return 0 if all(figure.met for figure in held) else 1


def _measurements(
    options: argparse.Namespace,
) -> Iterator[tuple[Case, Sequence[int], Sequence[int]]]:
    """Cases, sizes of batches and contexts: each case by itself, and the first one in batches."""
    cases = [Case(Path(a), Path(datastore), float(bar)) for a, datastore, bar in options.case]
    contexts = options.contexts
    for case in [] if options.without_single else cases:
        yield case, (1,), contexts
        contexts = ()
    if options.batches:
        yield cases[0], options.batches, contexts


def _forget_the_model() -> None:
    """Gives its memory to the next one: what was compiled would keep it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.compiler.reset()
        torch.cuda.empty_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu", description=(__doc__ or "").splitlines()[0])
    names = ("ANSWERS", "DATASTORE", "BAR")
    parser.add_argument("--case", nargs=3, metavar=names, action="append", required=True)
    parser.add_argument("--shape", default="llama-2-7b")
    parser.add_argument("--tokenizer", help="by default the datastore's")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto", help="by default bfloat16")
    parser.add_argument("--drafter", default="fused")
    parser.add_argument("--baselines", nargs="+", help="by default all that are worth their time")
    parser.add_argument("--verification", default="auto")
    parser.add_argument("--limit", type=int, default=16, help="answers of a file")
    parser.add_argument("--new-tokens", type=int, default=256, help="of an answer at most")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=[4, 16, 32])
    parser.add_argument("--contexts", type=int, nargs="*", default=list(CONTEXTS))
    parser.add_argument("--without-tests", action="store_true")
    parser.add_argument("--without-single", action="store_true", help="batches alone")
    parser.add_argument("--out", type=Path, default=Path("build/bench-gpu"))
    return parser


def _tests() -> int:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--timeout", "1800", "-q"]
    return subprocess.run(command, check=False).returncode


def _run(options: GenerateOptions, name: str) -> dict[str, Any]:
    with terminal.request_progress(name) as progress:
        return run_generate(options, progress)


def _options(
    options: argparse.Namespace, case: Case, batches: Sequence[int], contexts: Sequence[int]
) -> GenerateOptions:
    usual = [name for name in BASELINES if options.device != "cpu" or name != "compiled"]
    return GenerateOptions(
        shape=options.shape,
        forced=True,
        transcripts=[case.transcripts],
        datastores=[case.datastore],
        tokenizer=options.tokenizer,
        drafters=[options.drafter],
        baselines=options.baselines or usual,
        max_new_tokens=options.new_tokens,
        limit=options.limit if max(batches) == 1 else max(batches),
        runs=options.runs,
        batches=batches,
        verification=options.verification,
        contexts=contexts,
        num_nodes=(1, 2, 4, 8, 16, 32, LARGEST_PASS),
        device=options.device,
        dtype=options.dtype,
    )


def speed_figures(document: dict[str, Any], case: Case) -> list[Figure]:
    """What drafting came to on one file, at every size of batch."""
    figures = []
    for row in document["rows"]:
        if row["kind"] != "drafter":
            continue
        name = f"{row['transcripts']}, {row['name']}"
        if row["batch"] > 1:
            name += f", batch {row['batch']}"
        bar = case.bar if row["batch"] == 1 else LEAST_IN_BATCHES
        note = row["reason"] or f"over {row['fastest_plain']}"
        figures.append(Figure(f"{name}: speed-up", row["speed_up"], "x", at_least=bar, note=note))
        if row["batch"] == 1:
            figures += _step_figures(name, row)
    changed = len(altered(document))
    return [*figures, Figure(f"{case.transcripts.name}: rows not as recorded", changed, at_most=0)]


def _step_figures(name: str, row: Row) -> list[Figure]:
    outside = row["outside_forward"]
    return [
        Figure(f"{name}: tokens a forward", row["mean_acceptance_length"]),
        Figure(f"{name}: of a step outside the forward", outside, at_most=LARGEST_OUTSIDE),
    ]


def curve_figures(costs: Sequence[Row]) -> list[Figure]:
    """The largest pass at every context; the bar is for the shortest."""
    largest = [row for row in costs if row["num_nodes"] == LARGEST_PASS]
    shortest = min((row["context"] for row in largest), default=None)
    return [
        Figure(
            f"pass over {LARGEST_PASS} nodes over a plain one, {row['context']:,} tokens before",
            row["ratio"],
            "x",
            at_most=LARGEST_RATIO if row["context"] == shortest else None,
        )
        for row in largest
    ]


def _write(out: Path, documents: Sequence[dict[str, Any]], figures: Sequence[Figure]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for document in documents for row in document["rows"]]
    about = {"machine": machine(), "figures": [figure.to_dict() for figure in figures]}
    text = json.dumps({**about, "cases": documents}, indent=2) + "\n"
    out.with_suffix(".json").write_text(text, encoding="utf-8")
    # The figures need no plots, and a machine with a GPU may lack what draws them.
    with suppress(ImportError):
        html = page({**documents[0], "rows": rows})
        out.with_suffix(".html").write_text(html, encoding="utf-8")


def _show(document: dict[str, Any], figures: list[Figure]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130)
    for shown in tables(document)[:-1]:  # the sentence is beneath the figures
        console.print(shown)
    console.print(table(figures, sentence(document), machine()))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""What a datastore costs as it grows: built, killed, verified and drafted from at several sizes.

The text of all sizes is made of one corpus by its 3-grams (`index.made_text`), so they differ in
nothing but size; the drafts are for recorded answers.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from index import child, made_text, report
from index.tokens import (
    ENVIRONMENT,
    TokenCorpus,
    contexts,
    held_out_transcripts,
    read_answers,
    save_transcripts,
    tokenise,
)
from specds.cli.arguments import size as parse_size

out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)

DRAFTERS = ("rest", "fused")
DEATHS = ("tokens", "write")
"""Where the build that is killed dies: half of the documents given; part of the index written."""


def main(
    corpus: Annotated[
        str, typer.Option(help="What the text is made of; as in `specds build`.")
    ] = ENVIRONMENT,
    tokenizer: Annotated[str, typer.Option(help="As in `specds build`.")] = "demo",
    transcripts: Annotated[
        list[Path] | None,
        typer.Option(help="JSONL of `prompt` and `completion`; held out documents by default."),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Tokens of each datastore.")] = "60M,250M,1G",
    max_memory: Annotated[str, typer.Option(help="As in `specds build`.")] = "6G",
    cache: Annotated[Path, typer.Option(help="Where tokens are kept.")] = Path("build/bench-scale"),
    answers: Annotated[int, typer.Option(min=1, help="How many answers are drafted for.")] = 40,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures here.")] = None,
) -> None:
    """Measure a datastore at several sizes in one run."""
    cache.mkdir(parents=True, exist_ok=True)
    with err.status("tokenising"):
        source = tokenise(corpus, tokenizer, cache.resolve())
    recorded = read_answers(transcripts, source) if transcripts else held_out_transcripts(source)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=cache.resolve()) as scratch:
        folder = Path(scratch)
        save_transcripts(folder / "transcripts.npz", recorded[:answers])
        np.save(folder / "contexts.npy", contexts(recorded, 1000))
        for size in sorted(parse_size(size) for size in sizes.split(",")):
            rows.append(measure(source, size, folder, parse_size(max_memory)))
            err.print(f"{rows[-1]['num_tokens']:,} tokens: done")
    machine = report.machine()
    out.print(table(rows, f"made of {source.num_tokens:,} tokens of {corpus}", machine))
    if json_file:
        about = {"machine": machine, "specds": version("specds"), "rows": rows}
        json_file.write_text(json.dumps(about, indent=2) + "\n")


def measure(source: TokenCorpus, size: int, folder: Path, max_memory: int) -> dict[str, Any]:
    """Every figure of one size."""
    with err.status(f"{size:,} tokens: making text"):
        text = made_text.write(folder / "text", source, size)
    datastore = folder / "made.specds"
    request = {"corpus": str(text.folder), "out": str(datastore), "max_memory": max_memory}
    with err.status(f"{size:,} tokens: building"):
        row = child.run("builders:build_or_die", request)
    shards = _shards(datastore)
    shutil.rmtree(datastore)
    with err.status(f"{size:,} tokens: building, killed twice"):
        row["killed"] = killed_build(request)
    row["killed"]["is_equal"] = _shards(datastore) == shards
    shutil.rmtree(text.folder)

    def job(name: str, **more: Any) -> dict[str, Any]:
        return child.run(f"serving:{name}", {"datastore": str(datastore), **more})

    with err.status(f"{size:,} tokens: serving"):
        row |= job("verify_time") | job("open_times", repeats=20)
        where = {"contexts": str(folder / "contexts.npy"), "num_contexts": 40}
        recorded = str(folder / "transcripts.npz")
        for name in DRAFTERS:
            row[name] = {
                "cold": job("cold_drafts", **where, drafter=name),
                "warm": job("warm_drafts", transcripts=recorded, passes=3, drafter=name),
            }
    shutil.rmtree(datastore)
    return row


def killed_build(request: dict[str, Any]) -> dict[str, Any]:
    """Builds with a death at each of `DEATHS`, then to the end."""
    began = time.perf_counter()
    for stage in DEATHS:
        try:
            child.run("builders:build_or_die", request | {"die_at": stage})
        except child.ChildError:
            continue
        raise RuntimeError(f"the build that was to die at `{stage}` did not")
    rest = child.run("builders:build_or_die", request)
    return {"wall_s": time.perf_counter() - began, "kept_documents": rest["kept_documents"]}


def _shards(datastore: Path) -> list[str]:
    """The shards' names, which are digests of all that they hold."""
    manifest = json.loads((datastore / "manifest.json").read_text())
    return [shard["id"] for shard in manifest["shards"]]


def table(rows: list[dict[str, Any]], title: str, machine: dict[str, Any]) -> Table:
    """One column a size."""
    caption = f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f}"
    shown = Table("", title=title, caption=caption)
    for row in rows:
        shown.add_column(f"{row['num_tokens']:,}", justify="right")
    for name, texts in _lines(rows):
        shown.add_row(name, *texts)
    return shown


def _lines(rows: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """A name and the texts of each figure, then how it grew from the smallest size."""
    lines = [
        ("shards", [str(row["num_shards"]) for row in rows]),
        ("bytes a token", [f"{row['num_bytes'] / row['num_tokens']:.2f}" for row in rows]),
        ("built at, M tokens/s", [f"{_speed(row):.2f}" for row in rows]),
        ("processor time, s", [f"{row['cost']['cpu_s']:.1f}" for row in rows]),
        ("peak memory, bytes a token", [f"{_memory(row, 'peak_bytes'):.2f}" for row in rows]),
        ("private memory, the same", [f"{_memory(row, 'private_bytes'):.2f}" for row in rows]),
        ("killed twice, times as long", [f"{_slower(row):.2f}" for row in rows]),
        ("the same bytes then", ["yes" if row["killed"]["is_equal"] else "NO" for row in rows]),
        ("verify, s", [f"{row['verify_s']:.2f}" for row in rows]),
        ("open, p50, ms", [f"{statistics.median(row['open_s']) * 1e3:.2f}" for row in rows]),
    ]
    for name in DRAFTERS:
        accepted = [f"{row[name]['warm']['acceptance_length']:.3f}" for row in rows]
        lines.append((f"{name}: acceptance length", accepted))
        for percentile in ("p50", "p99"):
            warm = [row[name]["warm"]["draft"]["minimum"][percentile] for row in rows]
            texts = [f"{one:.0f} ({one / warm[0]:.2f}x)" for one in warm]
            lines.append((f"{name}: draft, warm, {percentile}, µs", texts))
        for percentile, rank in (("p50", 50), ("p99", 99)):
            cold = [float(np.percentile(row[name]["cold"]["draft_s"], rank)) for row in rows]
            texts = [f"{one * 1e3:.2f} ({one / cold[0]:.2f}x)" for one in cold]
            lines.append((f"{name}: draft, cold, {percentile}, ms", texts))
        pages = [statistics.median(row[name]["cold"]["pages"]) for row in rows]
        lines.append((f"{name}: pages read by a cold draft", [f"{one:.0f}" for one in pages]))
    return lines


def _speed(row: dict[str, Any]) -> float:
    return float(row["num_tokens"] / row["cost"]["wall_s"] / 1e6)


def _memory(row: dict[str, Any], field: str) -> float:
    return float(row["cost"][field] / row["num_tokens"])


def _slower(row: dict[str, Any]) -> float:
    return float(row["killed"]["wall_s"] / row["cost"]["wall_s"])


if __name__ == "__main__":
    typer.run(main)

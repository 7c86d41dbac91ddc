"""The command: measures, holds the figures against their bars, and prints one table."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from index import child, report
from index.builders import OWN
from index.tokens import (
    ENVIRONMENT,
    TokenCorpus,
    contexts,
    held_out_transcripts,
    read_answers,
    save_queries,
    save_transcripts,
    tokenise,
)
from rivals.answers import differences, random_patterns, scan

out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    limit_tokens: int | None = None
    repeats: int = 2
    patterns: int = 200
    degenerate_tokens: int = 10_000_000
    large_bytes: int = 1_000_000_000
    contexts: int = 5000
    queries: int = 10_000
    cold_contexts: int = 40
    passes: int = 3
    transcripts: int | None = None


CHECK = Scale(60_000, 1, 40, 20_000, 0, 50, 50, 3, 1, 2)
"""Enough to see that every part works; its figures mean nothing."""

# A 16-bit id and a suffix's position: what a token takes in the open datastore, about.
BYTES_PER_TOKEN = 5.6
OPENINGS = 20


class Part(str, Enum):
    """What can be left out; the tokens are always built from, and the answers checked and timed."""

    QUERIES = "queries"
    DEGENERATE = "degenerate"
    SERVING = "serving"


class WrongAnswerError(RuntimeError):
    """Our own index counts otherwise than a scan does."""


def main(
    corpus: Annotated[
        str, typer.Option(help="What `specds build` takes, or the environment's Python files.")
    ] = ENVIRONMENT,
    tokenizer: Annotated[str, typer.Option(help="As in `specds build`.")] = "demo",
    transcripts: Annotated[
        list[Path] | None,
        typer.Option(help="JSONL of `prompt` and `completion`; held out documents by default."),
    ] = None,
    rivals_python: Annotated[
        Path | None, typer.Option(help="The interpreter that rivals are installed for.")
    ] = None,
    part: Annotated[list[Part] | None, typer.Option(help="Measure this part alone.")] = None,
    cache: Annotated[Path, typer.Option(help="Where tokens are kept.")] = Path("build/bench-index"),
    limit_tokens: Annotated[int | None, typer.Option(help="Stop reading the corpus here.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often each builder builds.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures here.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only see that it works.")] = False,
) -> None:
    """Measure the datastore against its bars and its rivals."""
    scale = CHECK if check else Scale(limit_tokens, repeats)
    machine = report.machine()
    cache.mkdir(parents=True, exist_ok=True)
    with err.status("tokenising"):
        tokens = tokenise(corpus, tokenizer, cache.resolve(), scale.limit_tokens)
    recorded = read_answers(transcripts, tokens) if transcripts else held_out_transcripts(tokens)
    with tempfile.TemporaryDirectory(dir=cache.resolve()) as folder:
        save_transcripts(Path(folder) / "transcripts.npz", recorded[: scale.transcripts])
        np.save(Path(folder) / "contexts.npy", contexts(recorded, scale.contexts))
        queries = Path(folder) / "queries.npz"
        save_queries(queries, recorded, tokens.facts.separator, scale.queries)
        measured = measure(tokens, Path(folder), scale, rivals_python, set(part or Part))
    figures = figures_of(measured)
    about = {"machine": machine, "specds": version("specds")}
    about["corpus"] = asdict(tokens.facts) | {"num_tokens": tokens.num_tokens}
    title = f"{tokens.num_tokens:,} tokens of {corpus}"
    out.print(report.table(figures, title, machine))
    for name, lines in measured["wrong answers"].items():
        out.print(f"[bold red]{name} answers otherwise than a scan[/]: {len(lines)}", *lines[:3])
    if json_file:
        about["figures"] = [figure.to_dict() for figure in figures]
        json_file.write_text(json.dumps(about | {"measured": measured}, indent=2) + "\n")


def measure(
    tokens: TokenCorpus, folder: Path, scale: Scale, rivals_python: Path | None, parts: set[Part]
) -> dict[str, Any]:
    """Every raw figure, by part."""
    facts, text = tokens.facts, np.fromfile(tokens.stream(), dtype=tokens.tokens.dtype)
    patterns = random_patterns(text, facts.vocab_size, facts.separator, scale.patterns)
    truth = scan(text, patterns)
    builds, datastore = measure_builds(tokens, folder, scale, rivals_python, patterns)
    wrong = {
        name: lines
        for name, build in builds.items()
        if build and (lines := differences(patterns, build["counts"], truth))
    }
    if wrong_own := wrong.keys() & OWN.keys():
        raise WrongAnswerError(f"{', '.join(sorted(wrong_own))}: {wrong[min(wrong_own)][0]}")
    measured: dict[str, Any] = {"builds": builds, "wrong answers": wrong}
    if Part.SERVING in parts:
        measured["serving"] = measure_serving(tokens, datastore, folder, scale)
    shutil.rmtree(datastore)
    if Part.DEGENERATE in parts:
        measured["degenerate"] = measure_degenerate(tokens, folder, scale)
    return measured


def measure_builds(
    tokens: TokenCorpus,
    folder: Path,
    scale: Scale,
    rivals_python: Path | None,
    patterns: list[list[int]],
) -> tuple[dict[str, Any], Path]:
    """Every builder in turn, as often as `repeats`; and the datastore of the first of ours."""
    pythons = dict.fromkeys(OWN, Path(sys.executable))
    builds: dict[str, Any] = {}
    if rivals_python:
        found = child.run("builders:probe", {}, rivals_python)
        pythons |= {name: rivals_python for name, release in found.items() if release}
        builds = {name: None for name, release in found.items() if not release}
    kept = folder / "corpus.specds"
    tokens.stream()
    for _ in range(scale.repeats):
        for name, python in pythons.items():
            with err.status(f"building: {name}"):
                built = run_builder(name, tokens, folder / "built", patterns, python)
            cost, query_us = built.pop("cost"), built.pop("query_us")
            if name == "specds" and not kept.exists():
                (folder / "built" / "corpus.specds").rename(kept)
            shutil.rmtree(folder / "built")
            build = builds.setdefault(
                name, {**built, "costs": [], "query_us": [], "rival": name not in OWN}
            )
            build["costs"].append(cost)
            build["query_us"].append(query_us)
            build["num_tokens"] = tokens.num_tokens
    return builds, kept


def run_builder(
    name: str, tokens: TokenCorpus, folder: Path, patterns: list[list[int]], python: Path
) -> dict[str, Any]:
    folder.mkdir()
    request = {"name": name, "corpus": str(tokens.folder), "out": str(folder)}
    queries = folder.with_name("queries.npz")
    if patterns and queries.exists():
        request["queries"] = str(queries)
    return child.run("builders:build", request | {"patterns": patterns}, python)


def measure_degenerate(tokens: TokenCorpus, folder: Path, scale: Scale) -> dict[str, float]:
    """Processor seconds, the least of the repeats, to index text and what is unlike text."""
    size, facts = min(scale.degenerate_tokens, len(tokens.tokens)), tokens.facts
    normal = tokens.prefix(size, folder / "normal text")
    random = np.random.default_rng(0)
    inputs = {
        "one token repeated": np.full(size, int(tokens.tokens[0])),
        "ten copies": np.tile(normal.tokens[: size // 10], 10),
        "a period of 1,000": np.resize(normal.tokens[:1000], size),
        "random tokens": random.integers(facts.vocab_size, size=size),
    }
    corpora = {"normal text": normal}
    for name, ids in inputs.items():
        length = np.array([len(ids)])
        corpora[name] = TokenCorpus.write(folder / name, facts, ids, length)
    seconds = dict.fromkeys(corpora, float("inf"))
    for _ in range(scale.repeats):
        for name, corpus in corpora.items():
            with err.status(f"building: {name}"):
                built = run_builder("specds", corpus, folder / "built", [], Path(sys.executable))
            shutil.rmtree(folder / "built")
            seconds[name] = min(seconds[name], built["cost"]["cpu_s"])
    return seconds


def measure_serving(
    tokens: TokenCorpus, datastore: Path, folder: Path, scale: Scale
) -> dict[str, Any]:
    def job(name: str, **request: Any) -> dict[str, Any]:
        return child.run(f"serving:{name}", {"datastore": str(datastore), **request})

    contexts, transcripts = str(folder / "contexts.npy"), str(folder / "transcripts.npz")
    with err.status("serving"):
        measured = {
            "num_tokens": tokens.num_tokens,
            "cold": job("cold_drafts", contexts=contexts, num_contexts=scale.cold_contexts),
            "memory": job("private_memory", contexts=contexts),
            "warm": job("warm_drafts", transcripts=transcripts, passes=scale.passes),
        }
    num_tokens = int(scale.large_bytes / BYTES_PER_TOKEN)
    if num_tokens <= tokens.num_tokens:
        return measured | {"open": job("open_times", repeats=OPENINGS)}
    with err.status("building a large datastore"):
        large = tokens.repeated(num_tokens, folder / "large")
        run_builder("specds", large, folder / "built", [], Path(sys.executable))
        datastore = folder / "built" / "corpus.specds"
        measured["open"] = job("open_times", repeats=OPENINGS)
    shutil.rmtree(folder / "built")
    shutil.rmtree(folder / "large")
    return measured


def figures_of(measured: dict[str, Any]) -> list[report.Figure]:
    parts = {
        "builds": report.build_and_query_figures,
        "degenerate": report.degenerate_figures,
        "serving": report.serving_figures,
    }
    return [
        figure
        for part, figures in parts.items()
        if part in measured
        for figure in figures(measured[part])
    ]


if __name__ == "__main__":
    typer.run(main)

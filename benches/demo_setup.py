"""What the benchmarks on the demo's model share: its datastore, its prompts, and a table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from specds import Datastore
from specds.bench.generation.measure import Cell, Plan, Target, Way, batches_of, measure
from specds.demo import Prompt, build_stdlib, prompts
from specds.loading import load_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.bench.harness import Row


@dataclass(frozen=True)
class Demo:
    """The demo's model, held-out prompts, and a datastore of the rest of the standard library."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Prompt]
    datastore: Datastore

    def ids(self) -> list[torch.Tensor]:
        """The tokens of each prompt, shape `(1, n)`."""
        return prompt_ids(self.tokenizer, self.prompts)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, chosen: Sequence[Prompt]) -> list[torch.Tensor]:
    """The tokens of each prompt, shape `(1, n)`."""
    return [tokenizer(prompt.text, return_tensors="pt")["input_ids"] for prompt in chosen]


@contextmanager
def demo(num_prompts: int) -> Iterator[Demo]:
    """The datastore lies in a folder that goes when the block ends."""
    model, tokenizer = load_model("demo", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = build_stdlib(tokenizer, Path(folder, "stdlib.specds")).path
        yield Demo(model, tokenizer, prompts(num_prompts), Datastore.open(path))


def over_seeds(
    setup: Demo, ways: Sequence[Way], new_tokens: int, mode: str, settings: dict, num_seeds: int
) -> list[Cell]:
    """Every way over the prompts, one run a seed; greedy texts need no more than one."""
    calls = {1: batches_of([ids[0].tolist() for ids in setup.ids()], 1)}
    cells = [Cell(mode, 1, way) for way in ways]
    modes = {mode: {**settings, "max_new_tokens": new_tokens}}
    seeds = range(num_seeds if settings["do_sample"] else 1)
    for seed in track(seeds, mode, console=Console(stderr=True)):
        plan = Plan(Target(setup.model), ways, modes, calls, 1, 1000 * seed, warm_memory=True)
        for cell, measured in zip(cells, measure(plan), strict=True):
            if measured.reason is not None:
                raise RuntimeError(f"{cell.way.name}: {measured.reason}")
            cell.runs += measured.runs
            cell.profile = measured.profile
    return cells


def same_texts(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows, of drafters that changed no text."""
    if any(row["num_differing"] for row in rows):
        raise RuntimeError("a drafter changed the text: that must never be")
    return rows


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """The options that all of them take."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=128)
    return parser


def table_of(names: Sequence[str], columns: Sequence[str], title: str | None = None) -> Table:
    """An empty table: columns of names, then figures."""
    table = Table(*names, title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def show(table: Table, width: int = 110) -> None:
    """Prints it; `width` is that of what is no terminal."""
    Console(width=None if sys.stdout.isatty() else width).print(table)

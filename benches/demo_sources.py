"""The fused drafter's sources on the demo's model: each alone, all, all but one.

Completes held-out prompts with `model.generate` and with each of these drafters in turn, greedy and
sampled from several seeds; a seed gives the same text whatever is drafted, so all rows are of the
same tokens. Memory and weights begin empty with every mode and seed. Run it by
`make bench-sources`; it takes minutes. Speeds are ratios of runs that alternate prompt by prompt;
tokens a forward are the same on every machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from specds import Datastore, FusedConfig, FusedDrafter, generate
from specds.build import build_datastore
from specds.corpora import CorpusOptions, open_corpus
from specds.demo.held_out import HELD_OUT, prompts
from specds.demo.measure import MODES
from specds.drafters.model_tables import load_tables
from specds.loading import load_model
from specds.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Iterator


SOURCES = ("datastore", "context", "memory", "recycled", "model_tables")
NOTHING = FusedConfig(**dict.fromkeys(SOURCES, False))
COLUMNS = ("greedy: tokens", "speed-up", "sampled: tokens", "speed-up")


def configurations() -> Iterator[tuple[str, FusedConfig]]:
    for source in SOURCES:
        yield f"{source} alone", replace(NOTHING, **{source: True})
    yield "all", FusedConfig()
    for source in SOURCES:
        yield f"all but {source}", replace(FusedConfig(), **{source: False})
    no_corpus = FusedConfig(datastore=False)
    yield "context, memory, recycled", replace(no_corpus, model_tables=False)
    yield "the same and model_tables", no_corpus


@dataclass
class Row:
    """What one configuration did over all prompts and seeds of a mode."""

    stats: GenerationStats = field(default_factory=GenerationStats)
    plain_s: float = 0.0
    specds_s: float = 0.0

    def cells(self) -> list[str]:
        speed_up = self.plain_s / self.specds_s
        return [f"{self.stats.mean_acceptance_length:.2f}", f"{speed_up:.2f}x"]


class Bench:
    """The demo's model, its sources, and the prompts."""

    def __init__(self, folder: str, options: argparse.Namespace) -> None:
        self.model, self.tokenizer = load_model("demo", device="cpu")
        corpus = open_corpus("stdlib", CorpusOptions(without=tuple(sorted(HELD_OUT))))
        path = build_datastore(corpus, self.tokenizer, Path(folder, "stdlib.specds")).path
        self.datastore = Datastore.open(path)
        self.sources = {
            "model_tables": load_tables(self.model),
        }
        self.prompts = prompts(options.prompts)
        self.options = options

    def rows(self, mode: dict[str, Any], seed: int, rows: dict[str, Row]) -> None:
        """Completes every prompt once with each configuration, in turn."""
        drafters = {
            name: FusedDrafter(self.datastore, config, **self.sources)
            for name, config in configurations()
            if name in rows
        }
        for number, prompt in enumerate(self.prompts):
            ids = self.tokenizer(prompt.text, return_tensors="pt")["input_ids"]
            arguments = {
                **mode,
                "max_new_tokens": self.options.new_tokens,
                "attention_mask": torch.ones_like(ids),
            }
            plain_s, expected = timed(seed + number, self.model.generate, ids, **arguments)
            for name, drafter in drafters.items():
                arguments["budget"] = self.options.budget
                specds_s, output = timed(
                    seed + number, generate, self.model, ids, drafter, **arguments
                )
                if not torch.equal(output.sequences, expected):
                    raise RuntimeError(f"{name} changed the text: that must never be")
                rows[name].stats += output.stats
                rows[name].plain_s += plain_s
                rows[name].specds_s += specds_s


def timed(seed: int, run: Any, *arguments: Any, **settings: Any) -> tuple[float, Any]:
    torch.manual_seed(seed)
    started = time.perf_counter()
    result = run(*arguments, **settings)
    return time.perf_counter() - started, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3, help="of the sampling")
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    options = parser.parse_args()
    names = [name for name, _ in configurations() if options.only in name]
    console = Console(stderr=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, options)
        for mode in MODES.values():
            rows = {name: Row() for name in names}
            seeds = range(options.seeds if mode["do_sample"] else 1)
            for seed in track(seeds, "seeds", console=console):
                bench.rows(mode, 1000 * seed, rows)
            results.append(rows)
    table = Table("sources")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name in names:
        table.add_row(name, *(cell for rows in results for cell in rows[name].cells()))
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    main()

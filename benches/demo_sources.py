"""The fused drafter's sources on the demo's model: each alone, all, all but one.

Held-out prompts are completed by `model.generate` and with each of these drafters in turn, greedy
and sampled from several seeds; a seed gives the same text whatever is drafted, so all rows are of
the same tokens. Memory and weights begin empty with every mode and seed. Run it by
`make bench-sources`; it takes minutes. Tokens a forward are the same on every machine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from demo_setup import demo, parser_of, show
from specds import FusedConfig, FusedDrafter
from specds.bench.generation.measure import Cell, Mode, Plan, measure
from specds.bench.generation.report import FIGURES, rows_of
from specds.bench.generation.requests import Request, batches
from specds.bench.generation.ways import Target, Way, baseline_way, own_calls
from specds.bench.harness import name_of, table
from specds.demo.measure import MODES
from specds.drafters.model_tables import load_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo_setup import Demo

SOURCES = ("datastore", "context", "memory", "recycled", "model_tables")
NOTHING = FusedConfig(**dict.fromkeys(SOURCES, False))


def configurations() -> Iterator[tuple[str, FusedConfig]]:
    for source in SOURCES:
        yield f"{source} alone", replace(NOTHING, **{source: True})
    yield "all", FusedConfig()
    for source in SOURCES:
        yield f"all but {source}", replace(FusedConfig(), **{source: False})
    no_corpus = FusedConfig(datastore=False)
    yield "context, memory, recycled", replace(no_corpus, model_tables=False)


def ways(setup: Demo, target: Target, budget: int, only: str) -> Iterator[Way]:
    """`model.generate`, and a drafter of each configuration whose name has `only` in it."""
    tables = load_tables(setup.model)
    yield baseline_way("generate", target)
    for name, config in configurations():
        if only in name:
            make = partial(FusedDrafter, setup.datastore, config, model_tables=tables)
            yield Way(name, partial(own_calls, target, make, budget), is_ours=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3, help="of the sampling")
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    options = parser.parse_args()
    with demo(options.prompts) as setup:
        target = Target(setup.model)
        requests = [Request(ids[0].tolist(), options.new_tokens) for ids in setup.ids()]
        chosen = [*ways(setup, target, options.budget, options.only)]
        for mode in (Mode(name, settings) for name, settings in MODES.items()):
            cells = [Cell(mode.name, 1, way) for way in chosen]
            seeds = range(options.seeds if mode.settings["do_sample"] else 1)
            for seed in track(seeds, mode.name, console=Console(stderr=True)):
                calls = {1: batches(requests, 1)}
                plan = Plan(target, chosen, [mode], calls, 1, 1000 * seed, warm_memory=True)
                for cell, measured in zip(cells, measure(plan), strict=True):
                    cell.runs += measured.runs
                    cell.profile = measured.profile
            rows = rows_of(cells)
            if any(row["num_differing"] for row in rows):
                raise RuntimeError("a drafter changed the text: that must never be")
            show(table(mode.name, rows, name_of, FIGURES))


if __name__ == "__main__":
    main()

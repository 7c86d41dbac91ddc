"""The fused drafter's sources on the demo's model: each alone, all, all but one.

Completes held-out prompts with `model.generate` and with each of these drafters in turn, greedy and
sampled from several seeds; a seed gives the same text whatever is drafted, so all rows are of the
same tokens. Memory and weights begin empty with every mode and seed. Run it by
`make bench-sources`; it takes minutes. Speeds are ratios of runs that alternate prompt by prompt;
tokens a forward are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track

from demo_setup import demo, parser_of, show, table_of
from specds import FusedConfig, FusedDrafter, generate
from specds.demo.measure import MODES, timed
from specds.drafters.model_tables import load_tables
from specds.stats import GenerationStats

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from demo_setup import Demo

SOURCES = ("datastore", "context", "memory", "recycled", "model_tables")
NOTHING = FusedConfig(**dict.fromkeys(SOURCES, False))
COLUMNS = tuple(cell for mode in MODES for cell in (f"{mode}: tokens", "speed-up"))


def configurations() -> Iterator[tuple[str, FusedConfig]]:
    for source in SOURCES:
        yield f"{source} alone", replace(NOTHING, **{source: True})
    yield "all", FusedConfig()
    for source in SOURCES:
        yield f"all but {source}", replace(FusedConfig(), **{source: False})
    no_corpus = FusedConfig(datastore=False)
    yield "context, memory, recycled", replace(no_corpus, model_tables=False)


@dataclass
class Row:
    """What one configuration did over all prompts and seeds of a mode."""

    stats: GenerationStats = field(default_factory=GenerationStats)
    plain_s: float = 0.0
    specds_s: float = 0.0

    def cells(self) -> list[str]:
        speed_up = self.plain_s / self.specds_s
        return [f"{self.stats.mean_acceptance_length:.2f}", f"{speed_up:.2f}x"]


def complete(
    setup: Demo, options: argparse.Namespace, mode: dict[str, Any], seed: int, rows: dict[str, Row]
) -> None:
    """Completes every prompt once with each configuration, in turn."""
    tables, model = load_tables(setup.model), setup.model
    drafters = {
        name: FusedDrafter(setup.datastore, config, model_tables=tables)
        for name, config in configurations()
        if name in rows
    }
    for number, ids in enumerate(setup.ids(), seed):
        arguments = {
            **mode,
            "max_new_tokens": options.new_tokens,
            "attention_mask": torch.ones_like(ids),
        }
        expected, plain_s = timed(number, model.device, model.generate, ids, **arguments)
        arguments["budget"] = options.budget
        for name, drafter in drafters.items():
            output, specds_s = timed(
                number, model.device, generate, model, ids, drafter, **arguments
            )
            if not torch.equal(output.sequences, expected):
                raise RuntimeError(f"{name} changed the text: that must never be")
            rows[name].stats += output.stats
            rows[name].plain_s += plain_s
            rows[name].specds_s += specds_s


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3, help="of the sampling")
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    options = parser.parse_args()
    names = [name for name, _ in configurations() if options.only in name]
    results = []
    with demo(options.prompts) as setup:
        for mode in MODES.values():
            rows = {name: Row() for name in names}
            seeds = range(options.seeds if mode["do_sample"] else 1)
            for seed in track(seeds, "seeds", console=Console(stderr=True)):
                complete(setup, options, mode, 1000 * seed, rows)
            results.append(rows)
    table = table_of(("sources",), COLUMNS)
    for name in names:
        table.add_row(name, *(cell for rows in results for cell in rows[name].cells()))
    show(table)


if __name__ == "__main__":
    main()

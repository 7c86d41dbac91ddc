"""The fused drafter's sources on the demo's model: each alone, all, all but one.

Held-out prompts are completed by `model.generate` and with each of these drafters in turn, greedy
and sampled from several seeds; a seed gives the same text whatever is drafted, so all rows are of
the same tokens. Memory and weights begin empty with every mode and seed. Run it by
`make bench-sources`; it takes minutes. Tokens a forward are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from demo_setup import Demo, demo, over_seeds, parser_of, same_texts, show
from specds import FusedConfig, FusedDrafter
from specds.bench.generation.measure import Target, Way, baseline_way, own_calls
from specds.bench.generation.report import FIGURES, rows_of
from specds.bench.harness import name_of, table
from specds.demo import MODES
from specds.drafters.model_tables import load_tables

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


def ways(setup: Demo, budget: int, only: str) -> Iterator[Way]:
    """`model.generate`, and a drafter of each configuration whose name has `only` in it."""
    target, tables = Target(setup.model), load_tables(setup.model)
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
        chosen = [*ways(setup, options.budget, options.only)]
        for name, settings in MODES.items():
            cells = over_seeds(setup, chosen, options.new_tokens, name, settings, options.seeds)
            show(table(name, same_texts(rows_of(cells)), name_of, FIGURES))


if __name__ == "__main__":
    main()

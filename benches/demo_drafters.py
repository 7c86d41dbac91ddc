"""Every drafter by name on the demo's model: tokens a forward and speed, greedy and sampled.

Completes held-out prompts with `model.generate` and with each drafter in turn, over a datastore of
the standard library; `tokens` are those a forward. Run it by `make bench-demo`; it takes minutes.
Speeds are ratios of two runs that alternate prompt by prompt; tokens a forward are the same on
every machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from specds._core import Datastore
from specds.build import build_datastore
from specds.cli.arguments import budget
from specds.corpora import CorpusOptions, open_corpus
from specds.demo.held_out import HELD_OUT, prompts
from specds.demo.measure import MODES, compare
from specds.drafters import OPTIONS, DrafterInputs, DrafterName, make_drafter, with_trigrams
from specds.loading import load_model

if TYPE_CHECKING:
    from specds.demo.measure import Comparison

NAMES = (
    *OPTIONS,
    "aded:search=greedy",
    "aded:order=2",
    "aded:order=4",
    *(f"n-grammys:parts={part}" for part in OPTIONS["n-grammys"]["parts"][1:]),
)
COLUMNS = ("nodes", "greedy: tokens", "speed-up", "sampled: tokens", "speed-up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--budget", type=budget, default="auto", help="as for `specds generate`")
    options = parser.parse_args()
    model, tokenizer = load_model("demo", device="cpu")
    chosen = prompts(options.prompts)
    table = Table("drafter", "verified as")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus("stdlib", CorpusOptions(without=tuple(sorted(HELD_OUT))))
        path = build_datastore(corpus, tokenizer, Path(folder, "stdlib.specds")).path
        console = Console(stderr=True)
        for name in track([*map(DrafterName.parse, NAMES)], "drafters", console=console):
            ways = ("tree", "batched") if name.value == "n-grammys" else ("tree",)
            for way in ways:
                inputs = with_trigrams(name, DrafterInputs(Datastore.open(path), model))
                comparisons = [
                    compare(
                        model,
                        tokenizer,
                        partial(make_drafter, name, inputs),
                        chosen,
                        mode=mode,
                        budget=options.budget,
                        verification=way,
                        max_new_tokens=options.new_tokens,
                        **settings,
                    )
                    for mode, settings in MODES.items()
                ]
                table.add_row(name.value, way, *figures(comparisons))
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def figures(comparisons: list[Comparison]) -> list[str]:
    if not all(comparison.identical for comparison in comparisons):
        raise RuntimeError("a drafter changed the text: that must never be")
    greedy = comparisons[0].stats
    cells = [f"{greedy.num_draft_tokens / max(greedy.num_drafts, 1):.1f}"]
    for comparison in comparisons:
        stats = comparison.stats
        cells += [f"{stats.mean_acceptance_length:.2f}", f"{comparison.speed_up:.2f}x"]
    return cells


if __name__ == "__main__":
    main()

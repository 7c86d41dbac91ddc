"""Every drafter by name on the demo's model: tokens a forward and speed, greedy and sampled.

Completes held-out prompts with `model.generate` and with each drafter in turn, over a datastore of
the standard library; `tokens` are those a forward. Run it by `make bench-demo`; it takes minutes.
Speeds are ratios of two runs that alternate prompt by prompt; tokens a forward are the same on
every machine.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from demo_setup import demo, parser_of, show, table_of
from specds.cli.arguments import budget
from specds.demo.measure import MODES, compare
from specds.drafters import OPTIONS, DrafterInputs, DrafterName, make_drafter, with_trigrams
from specds.papers.path_rows import PathRows
from specds.verify.static import name_of

if TYPE_CHECKING:
    from specds.demo.measure import Comparison

NAMES = (
    *OPTIONS,
    "aded:search=greedy",
    "aded:order=2",
    "aded:order=4",
    *(f"n-grammys:parts={part}" for part in OPTIONS["n-grammys"]["parts"][1:]),
)
COLUMNS = (
    f"nodes, {next(iter(MODES))}",
    *(cell for mode in MODES for cell in (f"{mode}: tokens", "speed-up")),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--budget", type=budget, default="auto", help="as for `specds generate`")
    options = parser.parse_args()
    table = table_of(("drafter", "verified as"), COLUMNS)
    names = [DrafterName.parse(name) for name in NAMES]
    with demo(options.prompts) as setup:
        for name in track(names, "drafters", console=Console(stderr=True)):
            inputs = with_trigrams(name, DrafterInputs(setup.datastore, setup.model))
            for way in ("tree", PathRows) if name.value == "n-grammys" else ("tree",):
                comparisons = [
                    compare(
                        setup.model,
                        setup.tokenizer,
                        partial(make_drafter, name, inputs),
                        setup.prompts,
                        mode=mode,
                        drafting={"budget": options.budget, "verification": way},
                        max_new_tokens=options.new_tokens,
                        **settings,
                    )
                    for mode, settings in MODES.items()
                ]
                table.add_row(name.value, name_of(way), *figures(comparisons))
    show(table)


def figures(comparisons: list[Comparison]) -> list[str]:
    if not all(comparison.identical for comparison in comparisons):
        raise RuntimeError("a drafter changed the text: that must never be")
    first = comparisons[0].stats
    cells = [f"{first.num_draft_tokens / max(first.num_drafts, 1):.1f}"]
    for comparison in comparisons:
        stats = comparison.stats
        cells += [f"{stats.mean_acceptance_length:.2f}", f"{comparison.speed_up:.2f}x"]
    return cells


if __name__ == "__main__":
    main()

"""HSDDW's ablations on the three sizes of the demo's models, and what retrieval adds to them.

Completes held-out prompts with `model.generate` and with each hierarchy in turn, greedy and at
T = 1, which is repeated with other seeds. Tokens a forward, sigma (the share of drafted tokens that
the target rejects) and eta (target forwards a token) are the paper's; greedy ones are the same on
every machine. The speed-up is the mean of the runs, from least to most. Passes of the small and the
tiny model are those for each target forward, and the last column is the speed-up that they come to
where passes cost what the paper's table 4 implies of 70B, 7B and 68M, and a pass over a draft no
more than one. Standard errors are over requests. It takes minutes:

    make bench-hierarchy ARGS="--prompts 12 --seeds 3"
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from demo_setup import Demo, demo, over_seeds, parser_of, same_texts, show, table_of
from specds import FusedDrafter
from specds.bench.generation.measure import Target, Way, baseline_way, own_calls
from specds.bench.generation.report import rows_of
from specds.hierarchy import HierarchyConfig, HierarchyDrafter
from specds.loading import load_model
from specds.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from specds.bench.generation.measure import Cell
    from specds.bench.harness import Row
    from specds.drafters import Drafter
    from specds.hierarchy.config import Ablation

MODES = {
    "greedy": {"do_sample": False},
    "T = 1": {"do_sample": True, "temperature": 1.0, "top_k": 0},
}
# A pass of a level in plain ones of the target, as the paper's table 4 implies for 70B, 7B and 68M
# where verifying costs what a plain pass does: K = 10 is 9.9 draft passes, so 2.40 = 1 / (0.1442 (1
# + 9.9 c)) gives c of the 7B, and 1.69 with 0.4930 that of the 68M.
PASS_COSTS = {"small": 0.19, "tiny": 0.02}
COLUMNS = ("tokens", "sigma", "eta", "speed-up", *PASS_COSTS, "at 1 : 0.19 : 0.02")


def drafters(setup: Demo) -> dict[str, Callable[[], Drafter]]:
    """The paper's table 2 first."""
    small, tiny = (load_model(f"demo-{size}", device="cpu")[0] for size in ("small", "tiny"))
    both = {"tiny": tiny, "small": small}

    def paper(levels: dict[str, Any], row: Ablation) -> Callable[[], Drafter]:
        return partial(HierarchyDrafter, levels, HierarchyConfig.ablation(row))

    def with_retrieval(levels: dict[str, Any], **switches: bool) -> Callable[[], Drafter]:
        config = HierarchyConfig(**switches)
        return lambda: HierarchyDrafter(
            {"retrieval": FusedDrafter(setup.datastore), **levels}, config
        )

    return {
        "sd, tiny": paper({"tiny": tiny}, "sd"),
        "sd, small": paper({"small": small}, "sd"),
        "+ pre-verify": paper(both, "pre"),
        "+ self-verify, small": paper({"small": small}, "self"),
        "+ self-verify, tiny": paper({"tiny": tiny}, "self"),
        "+ pre- and self-verify": paper(both, "pre-self"),
        "HSDDW": paper(both, "full"),
        "fused alone": partial(FusedDrafter, setup.datastore),
        "fused < small": with_retrieval({"small": small}),
        "fused < tiny < small": with_retrieval(both),
        "fused + tiny, joined": with_retrieval({"tiny": tiny}, beneath=False, joined=True),
        "fused < tiny, joined": with_retrieval({"tiny": tiny}, joined=True),
        "fused < tiny < small, joined": with_retrieval(both, joined=True),
    }


BUDGETS: dict[str, Sequence[int | Literal["auto"]]] = {
    "fused alone": (8, 32, "auto"),
    "fused < tiny, joined": (32, "auto"),
}
"""Of those that are not measured at 32 nodes alone."""


def ways(setup: Demo, only: Sequence[str]) -> Iterator[Way]:
    """`model.generate`, and each drafter that is chosen at each of its budgets."""
    target = Target(setup.model)
    yield baseline_way("generate", target)
    for name, make in drafters(setup).items():
        for budget in BUDGETS.get(name, (32,)):
            shown = f"{name}, {budget}" if name in BUDGETS else name
            if not only or shown in only:
                yield Way(shown, partial(own_calls, target, make, budget), is_ours=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of the sampling")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="these rows alone")
    parser.add_argument("--mode", choices=list(MODES), help="by default both")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with demo(options.prompts) as setup:
        chosen = [*ways(setup, options.only)]
        for name in [options.mode] if options.mode else MODES:
            cells = over_seeds(setup, chosen, options.new_tokens, name, MODES[name], options.seeds)
            # Levels sample by their own numbers: of sampled texts the distribution is the same.
            rows = rows_of(cells) if MODES[name]["do_sample"] else same_texts(rows_of(cells))
            table = table_of(("",), COLUMNS, name)
            for cell, row in zip(cells[1:], rows[1:], strict=True):
                table.add_row(cell.way.name, *figures(cell, row))
            show(table, 130)


def figures(cell: Cell, row: Row) -> list[str]:
    """The figures of all runs together."""
    calls = [each.stats for run in cell.runs for each in run.results if each.stats]
    total = sum(calls, GenerationStats())
    passes = {
        name: f"{total.levels[name].num_forwards / total.num_drafts:.1f}"
        for name in PASS_COSTS
        if name in total.levels
    }
    tokens = [one.num_drafts + one.num_accepted_tokens for one in calls]
    mean, least, most = (row[f"speed_up_over_generate{end}"] for end in ("", "_min", "_max"))
    return [
        ratio(tokens, [one.num_drafts for one in calls]),
        f"{total.redundancy:.1%}",
        f"{total.target_utilization:.1%}",
        f"{mean:.2f}x ({least:.2f}-{most:.2f})",
        *(passes.get(name, "") for name in PASS_COSTS),
        ratio(tokens, [cost_of(one) for one in calls]),
    ]


def cost_of(stats: GenerationStats) -> float:
    """What a request costs, in plain passes of the target."""
    levels = stats.levels.items()
    drafting = (level.num_forwards * PASS_COSTS.get(name, 0) for name, level in levels)
    return stats.num_drafts + sum(drafting)


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """The ratio of two sums over requests, and its standard error."""
    whole = sum(below)
    mean = sum(above) / whole
    squares = ((own - mean * other) ** 2 for own, other in zip(above, below, strict=True))
    return f"{mean:.2f} ± {sum(squares) ** 0.5 / whole:.2f}"


if __name__ == "__main__":
    main()

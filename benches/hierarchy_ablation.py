"""HSDDW's ablations on the three sizes of the demo's models, and what retrieval adds to them.

Completes held-out prompts with `model.generate` and with each hierarchy in turn, greedy and at
T = 1; runs are repeated with other seeds. Tokens a forward, sigma (the share of drafted tokens that
the target rejects) and eta (target forwards a token) are the paper's; greedy ones are the same on
every machine. The speed-up is one of processor time, so that what else the machine does counts
less: the median of the runs, and how far they are apart. Passes of the small and the tiny model are
those for each target forward, and the last column is the speed-up that they come to where passes
cost what the paper's table 4 implies of 70B, 7B and 68M, and a pass over a draft no more than one.
Standard errors are over requests. It takes minutes:

    make bench-hierarchy ARGS="--prompts 12 --runs 3"
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from rich.console import Console
from rich.progress import track

from demo_setup import demo, parser_of, show, table_of
from specds import FusedDrafter
from specds.generation import generate
from specds.hierarchy import HierarchyConfig, HierarchyDrafter
from specds.loading import load_model
from specds.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specds import Datastore
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


@dataclass(frozen=True)
class Way:
    """A drafter, made afresh for each run as some learn, and its budget."""

    make: Callable[[], Drafter]
    budget: int | Literal["auto"] = 32


def ways(datastore: Datastore) -> dict[str, Way]:
    """The paper's table 2 first."""
    small, tiny = (load_model(f"demo-{size}", device="cpu")[0] for size in ("small", "tiny"))
    both = {"tiny": tiny, "small": small}

    def paper(levels: dict[str, Any], row: Ablation) -> Way:
        return Way(lambda: HierarchyDrafter(levels, HierarchyConfig.ablation(row)))

    def with_retrieval(
        levels: dict[str, Any], budget: int | Literal["auto"] = 32, **switches: bool
    ) -> Way:
        config = HierarchyConfig(**switches)
        return Way(
            lambda: HierarchyDrafter({"retrieval": FusedDrafter(datastore), **levels}, config),
            budget,
        )

    def fused() -> Drafter:
        return FusedDrafter(datastore)

    return {
        "sd, tiny": paper({"tiny": tiny}, "sd"),
        "sd, small": paper({"small": small}, "sd"),
        "+ pre-verify": paper(both, "pre"),
        "+ self-verify, small": paper({"small": small}, "self"),
        "+ self-verify, tiny": paper({"tiny": tiny}, "self"),
        "+ pre- and self-verify": paper(both, "pre+self"),
        "HSDDW": paper(both, "full"),
        "fused alone, 8 nodes": Way(fused, 8),
        "fused alone, 32 nodes": Way(fused, 32),
        "fused alone, auto": Way(fused, "auto"),
        "fused < small": with_retrieval({"small": small}),
        "fused < tiny < small": with_retrieval(both),
        "fused + tiny, joined": with_retrieval({"tiny": tiny}, beneath=False, joined=True),
        "fused < tiny, joined": with_retrieval({"tiny": tiny}, joined=True),
        "fused < tiny, joined, auto": with_retrieval({"tiny": tiny}, "auto", joined=True),
        "fused < tiny < small, joined": with_retrieval(both, joined=True),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="these rows alone")
    parser.add_argument("--mode", choices=list(MODES), help="by default both")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    console = Console(stderr=True)
    with demo(options.prompts) as setup:
        model, ids = setup.model, setup.ids()
        chosen = {
            name: way
            for name, way in ways(setup.datastore).items()
            if not options.only or name in options.only
        }
        measure(model, ids[0], setup.datastore)
        for mode in [options.mode] if options.mode else MODES:
            table = table_of(("",), COLUMNS, mode)
            for name, way in track(chosen.items(), mode, console=console):
                arguments = {"max_new_tokens": options.new_tokens, **MODES[mode]}
                cells = figures(model, ids, way, options.runs, arguments)
                console.print(f"{mode}, {name}: {'  '.join(cells)}", highlight=False)
                table.add_row(name, *cells)
            show(table, 130)


def measure(model: Any, ids: torch.Tensor, datastore: Datastore) -> None:
    """Has the cost of the target's passes measured before anything is timed."""
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4}
    generate(model, ids, FusedDrafter(datastore), **arguments)


def figures(
    model: Any,
    prompts_ids: list[torch.Tensor],
    way: Way,
    num_runs: int,
    settings: dict[str, Any],
) -> list[str]:
    """Figures of all runs together; of the speed-up the median and how far runs are apart."""
    stats: list[GenerationStats] = []
    speed_ups = []
    for run in range(num_runs):
        drafter, plain_s, own_s = way.make(), 0.0, 0.0
        for number, ids in enumerate(prompts_ids):
            arguments = {"attention_mask": torch.ones_like(ids), **settings}
            torch.manual_seed(run * 1000 + number)
            started = time.process_time()
            plain = model.generate(ids, **arguments)
            between = time.process_time()
            output = generate(model, ids, drafter, budget=way.budget, **arguments)
            own_s += time.process_time() - between
            plain_s += between - started
            stats.append(output.stats)
            if not settings["do_sample"] and not torch.equal(plain, output.sequences):
                raise RuntimeError("a hierarchy changed the greedy text: that must never be")
        speed_ups.append(plain_s / own_s)
    total = sum(stats, GenerationStats())
    passes = {
        name: f"{total.levels[name].num_forwards / total.num_drafts:.1f}"
        for name in PASS_COSTS
        if name in total.levels
    }
    tokens = [one.num_drafts + one.num_accepted_tokens for one in stats]
    return [
        ratio(tokens, [one.num_drafts for one in stats]),
        f"{total.redundancy:.1%}",
        f"{total.target_utilization:.1%}",
        f"{statistics.median(speed_ups):.2f}x ({min(speed_ups):.2f}-{max(speed_ups):.2f})",
        *(passes.get(name, "") for name in PASS_COSTS),
        ratio(tokens, [cost_of(one) for one in stats]),
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

"""HSDDW's ablations on the three sizes of the demo's models, and what retrieval adds to them.

Completes held-out prompts with `model.generate` and with each hierarchy in turn, greedy and at
T = 1; runs are repeated with other seeds, and the spread is that of the runs. Tokens a forward,
sigma (the share of drafted tokens that the target rejects) and eta (target forwards a token) are
the paper's; greedy ones are the same on every machine. Passes of the small and the tiny model are
those for each target forward, and the last column is the speed-up that they come to where a pass of
theirs costs a tenth and a hundredth of the target's, and drafts nothing. It takes minutes:

    python benches/hierarchy_ablation.py --prompts 12 --runs 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from specds import FusedDrafter
from specds.build import build_datastore
from specds.corpora import CorpusOptions, open_corpus
from specds.demo.held_out import HELD_OUT, prompts
from specds.generation import generate
from specds.hierarchy import HierarchyConfig, HierarchyDrafter
from specds.loading import load_model
from specds.stats import GenerationStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from specds.drafters import Drafter

MODES = {
    "greedy": {"do_sample": False},
    "T = 1": {"do_sample": True, "temperature": 1.0, "top_k": 0},
}
# What a pass costs beside one of the target where models are as far apart as 70B, 7B and 68M.
COSTS = {"small": 0.1, "tiny": 0.01}
COLUMNS = ("tokens", "sigma", "eta", "speed-up", *COSTS, "at 1 : 0.1 : 0.01")


def hierarchies(datastore: Path) -> dict[str, Callable[[], Drafter]]:
    """The paper's table 2 first; drafters that learn are made afresh for each run."""
    small, tiny = (load_model(f"demo-{size}", device="cpu")[0] for size in ("small", "tiny"))
    both = {"tiny": tiny, "small": small}
    of = HierarchyConfig.ablation

    def with_retrieval(levels: dict[str, Any], **switches: bool) -> Callable[[], Drafter]:
        config = HierarchyConfig(**switches)
        return lambda: HierarchyDrafter({"retrieval": FusedDrafter(datastore), **levels}, config)

    return {
        "sd, tiny": lambda: HierarchyDrafter({"tiny": tiny}, of("sd")),
        "sd, small": lambda: HierarchyDrafter({"small": small}, of("sd")),
        "+ pre-verify": lambda: HierarchyDrafter(both, of("pre")),
        "+ self-verify, small": lambda: HierarchyDrafter({"small": small}, of("self")),
        "+ self-verify, tiny": lambda: HierarchyDrafter({"tiny": tiny}, of("self")),
        "+ pre- and self-verify": lambda: HierarchyDrafter(both, of("pre+self")),
        "HSDDW": lambda: HierarchyDrafter(both, of("full")),
        "fused alone, 8 nodes": lambda: FusedDrafter(datastore),
        "fused alone, 32 nodes": lambda: FusedDrafter(datastore),
        "fused < small": with_retrieval({"small": small}),
        "fused < tiny < small": with_retrieval(both),
        "fused + tiny, joined": with_retrieval({"tiny": tiny}, beneath=False, joined=True),
        "fused < tiny, joined": with_retrieval({"tiny": tiny}, joined=True),
        "fused < tiny < small, joined": with_retrieval(both, joined=True),
        "the same, adaptive": with_retrieval(both, joined=True, adaptive=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="the rows whose names hold this")
    parser.add_argument("--mode", choices=list(MODES), help="by default both")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load_model("demo", device="cpu")
    texts = [prompt.text for prompt in prompts(options.prompts)]
    ids = [tokenizer(text, return_tensors="pt")["input_ids"] for text in texts]
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus("stdlib", CorpusOptions(without=tuple(sorted(HELD_OUT))))
        path = build_datastore(corpus, tokenizer, Path(folder, "stdlib.specds")).path
        rows = {name: make for name, make in hierarchies(path).items() if options.only in name}
        for mode in [options.mode] if options.mode else MODES:
            table = Table("", title=mode, title_justify="left")
            for column in COLUMNS:
                table.add_column(column, justify="right")
            for name, make in track(rows.items(), mode, console=console):
                arguments = {"max_new_tokens": options.new_tokens, **MODES[mode]}
                max_nodes = 8 if "8 nodes" in name else 32
                cells = figures(model, ids, make, options.runs, max_nodes, arguments)
                console.print(f"{mode}, {name}: {'  '.join(cells)}", highlight=False)
                table.add_row(name, *cells)
            Console(width=None if sys.stdout.isatty() else 110).print(table)


def figures(
    model: Any,
    prompts_ids: list[torch.Tensor],
    make: Callable[[], Drafter],
    num_runs: int,
    max_nodes: int,
    settings: dict[str, Any],
) -> list[str]:
    """Figures of all runs together; of the speed-up the median and how far runs are apart."""
    total, speed_ups = GenerationStats(), []
    for run in range(num_runs):
        drafter, plain_s, own_s = make(), 0.0, 0.0
        for number, ids in enumerate(prompts_ids):
            arguments = {"attention_mask": torch.ones_like(ids), **settings}
            torch.manual_seed(run * 1000 + number)
            started = time.perf_counter()
            plain = model.generate(ids, **arguments)
            between = time.perf_counter()
            output = generate(model, ids, drafter, budget=max_nodes, **arguments)
            own_s += time.perf_counter() - between
            plain_s += between - started
            total += output.stats
            if not settings["do_sample"] and not torch.equal(plain, output.sequences):
                raise RuntimeError("a hierarchy changed the greedy text: that must never be")
        speed_ups.append(plain_s / own_s)
    passes = {
        name: total.levels[name].num_forwards / total.num_drafts
        for name in COSTS
        if name in total.levels
    }
    cost = 1 + sum(COSTS[name] * number for name, number in passes.items())
    return [
        f"{total.mean_acceptance_length:.2f}",
        f"{total.redundancy:.1%}",
        f"{total.target_utilization:.1%}",
        f"{statistics.median(speed_ups):.2f}x ({min(speed_ups):.2f}-{max(speed_ups):.2f})",
        *(f"{passes[name]:.1f}" if name in passes else "" for name in COSTS),
        f"{total.mean_acceptance_length / cost:.2f}x",
    ]


if __name__ == "__main__":
    main()

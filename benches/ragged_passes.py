"""Passes over rows of different numbers of nodes: padded to the widest, and each with its own.

On the demo's model, or another by name; a run takes half a minute:
`python benches/ragged_passes.py --rows 4 16 32`.
"""

from __future__ import annotations

import argparse
import random
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from specds.drafters import TokenTree
from specds.loading import load_model
from specds.verify import PackedRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

# How many nodes the rows have, in turn.
CASES = {
    "none": (0,),
    "1": (1,),
    "0 to 2": (0, 1, 2),
    "0 to 8": (0, 0, 1, 1, 2, 3, 8),
    "0 or 9": (0, 0, 0, 5, 9),
    "0 or 20": (0, 1, 20),
}


class Padded(PackedRunner):
    """Pads every row to the widest."""

    is_ragged = False


def tree_of(size: int, generator: random.Random, vocab_size: int) -> TokenTree | None:
    """A random tree, or nothing."""
    if size == 0:
        return None
    parents = [generator.randrange(-1, node) if node else -1 for node in range(size)]
    return TokenTree(generator.sample(range(vocab_size), size), parents)


@torch.inference_mode()
def measure(model: PreTrainedModel, num_rows: int, length: int, repeats: int) -> list[list[float]]:
    """Nodes in all, and the median seconds of a pass padded and not, for each of `CASES`."""
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    generator = random.Random(0)
    cases = [
        [tree_of(sizes[row % len(sizes)], generator, vocab_size) for row in range(num_rows)]
        for sizes in CASES.values()
    ]
    sizes = {"prompt_length": length, "max_length": length + 128, "max_nodes": 64}
    runners = [made(model, **sizes, num_rows=num_rows) for made in (Padded, PackedRunner)]
    for runner in runners:
        for row in range(num_rows):
            runner.prefill(torch.full((1, length), 7 + row % 50), row=row)
    seconds: list[list[list[float]]] = [[[], []] for _ in cases]
    # In turn, so that a machine that becomes slower does so for all.
    for _ in range(repeats):
        for trees, taken in zip(cases, seconds, strict=True):
            for runner, of_runner in zip(runners, taken, strict=True):
                start = perf_counter()
                runner.verify_rows([7] * num_rows, trees)
                of_runner.append(perf_counter() - start)
    nodes = [sum(len(tree) for tree in trees if tree is not None) for trees in cases]
    return [[num, *map(median, taken)] for num, taken in zip(nodes, seconds, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 16, 32])
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args(arguments)
    model, _ = load_model(options.model, device="cpu")
    for num_rows in options.rows:
        table = Table(title=f"{num_rows} rows of {options.length} tokens", title_justify="left")
        for name in ("nodes of a row", "in all", "padded, ms", "own, ms", "own / padded"):
            table.add_column(name, justify="right")
        rows = measure(model, num_rows, options.length, options.repeats)
        for name, (num_nodes, padded, own) in zip(CASES, rows, strict=True):
            times = (f"{1e3 * padded:.1f}", f"{1e3 * own:.1f}", f"{own / padded:.2f}")
            table.add_row(name, f"{num_nodes:.0f}", *times)
        Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

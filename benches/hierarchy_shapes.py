"""What passes cost where the models of a hierarchy have real shapes, with random weights.

A hierarchy is worth its time where a pass of a small model is cheap beside one of the target. That
is a fact of the device, and needs no checkpoint: a model of random weights takes the time of a real
one. Each shape is made by itself, on the device and in the precision that are asked for, and left
out where it does not fit.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.table import Table

from specds.bench.generation.curve import verification_costs
from specds.bench.generation.shapes import num_bytes, placement, random_model
from specds.bench.generation.ways import Target
from specds.drafters import TokenTree
from specds.hierarchy.draft import Draft
from specds.hierarchy.levels import CachedModel, ModelLevel
from specds.hierarchy.text import Text
from specds.stats import LevelStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

# The paper's, and what comes nearest to its target where that does not fit.
USUAL = ("llama-68m", "llama-2-7b", "codellama-34b", "llama-2-70b")
NODES = (1, 4, 10, 32)
# Tokens of a draft, and nodes of a tree beneath a level: those of `HierarchyConfig`.
_WINDOW, _BENEATH = 10, 16
_NUM_DRAFTS = 4
# Beside its weights a model needs room for its states, and for what it computes.
_ROOM = 1.05


@dataclass(frozen=True)
class ShapeCosts:
    """Seconds of the passes of one shape.

    Attributes:
        shape: Its name.
        num_bytes: The memory of its weights.
        target: Of a pass of a target, by the nodes that it verifies.
        token: Of a level that drafts token by token, for each; its choice included.
        tree: Of a level's pass over a tree that was drafted beneath it.
    """

    shape: str
    num_bytes: int
    target: dict[int, float]
    token: float
    tree: float


@dataclass(frozen=True)
class PassCosts:
    """What passes cost in a hierarchy, in plain passes of its target.

    Attributes:
        title: Of whom.
        token: Of a level by name, for each token that it drafts with nothing beneath it.
        tree: Of a level by name, over what was drafted beneath it.
        target: Of the target by the nodes that it verifies, between which it is straight.
    """

    title: str
    token: dict[str, float]
    tree: dict[str, float]
    target: dict[int, float]

    def of_target(self, num_nodes: int) -> float:
        """A pass of the target over `num_nodes` nodes."""
        return float(np.interp(num_nodes, list(self.target), list(self.target.values())))

    def of_level(self, name: str, *, has_beneath: bool) -> float:
        """A pass of a level; one without a model passes nothing."""
        return (self.tree if has_beneath else self.token).get(name, 0.0)


# As its table 4 implies for 70B, 7B and 68M where verifying costs what a plain pass does: K = 10 is
# 9.9 draft passes, so 2.40 = 1 / (0.1442 (1 + 9.9 c)) gives c of the 7B, and 1.69 with 0.4930 that
# of the 68M.
_PAPER = {"small": 0.19, "tiny": 0.02}
PAPER = PassCosts("1 : 0.19 : 0.02", _PAPER, _PAPER, {0: 1.0})


def measured(
    shapes: Sequence[str],
    *,
    device: str = "auto",
    dtype: str = "auto",
    context: int = 512,
    say: Callable[[str], None] = print,
) -> list[ShapeCosts]:
    """Measures shapes one after the other; of one that does not fit it says so.

    Args:
        shapes: Names of `SHAPES`.
        device: As in `load_model`.
        dtype: By default bfloat16, float32 on a CPU.
        context: Tokens before a pass.
        say: Takes a line for people.

    Raises:
        ValueError: There is no such shape, device or precision.
    """
    device, dtype = placement(device, dtype)
    sizes = {shape: num_bytes(shape, dtype) for shape in shapes}
    found = []
    for shape, size in sorted(sizes.items(), key=lambda item: item[1]):
        free = free_bytes(device)
        if size * _ROOM > free:
            say(f"{shape} is left out: it needs {_gb(size * _ROOM)} GB, {device} has {_gb(free)}")
            continue
        try:
            found.append(_measured(shape, size, device, dtype, context))
        except torch.OutOfMemoryError:
            say(f"{shape} is left out: {device} has no memory for its passes")
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return found


def free_bytes(device: str) -> int:
    """The memory that a model may take there: on a CPU half of the machine's."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _measured(shape: str, size: int, device: str, dtype: str, context: int) -> ShapeCosts:
    model = random_model(shape, device=device, dtype=dtype)
    rows = verification_costs(Target.of(model, "auto", forced=False), [context], NODES)
    return ShapeCosts(
        shape,
        size,
        {row["num_nodes"]: row["seconds"] for row in rows},
        _level_seconds(model, context, None),
        _level_seconds(model, context, _Beneath()),
    )


class _Beneath:
    """Drafts the same tree whatever came before."""

    def draft(self, text: Text, most: int) -> Draft:
        nodes = np.arange(_BENEATH)
        return Draft(TokenTree(nodes, np.maximum(nodes - 4, -1)))


def _level_seconds(model: PreTrainedModel, context: int, beneath: _Beneath | None) -> float:
    vocab_size = int(model.config.vocab_size)
    text = Text(np.random.default_rng(0).integers(vocab_size, size=context))
    level = ModelLevel("level", CachedModel(model))
    level.beneath, level.window, level.self_verify = beneath, _WINDOW, False
    level.draft(text, _WINDOW)  # reads the context, and chooses kernels
    level.stats = LevelStats()
    with torch.inference_mode():
        for _ in range(_NUM_DRAFTS):
            level.draft(text, _WINDOW)
    return level.stats.seconds / level.stats.num_forwards


def pass_costs(shapes: Sequence[ShapeCosts]) -> PassCosts | None:
    """The costs of a hierarchy of the largest shape, the smallest and one between, if there are."""
    if len(shapes) < 3:
        return None
    (tiny, small), target = (shapes[0], shapes[-2]), shapes[-1]
    plain = target.target[0]
    return PassCosts(
        f"{target.shape} < {small.shape} < {tiny.shape}",
        {"tiny": tiny.token / plain, "small": small.token / plain},
        {"tiny": tiny.tree / plain, "small": small.tree / plain},
        {size: seconds / plain for size, seconds in target.target.items()},
    )


def table(shapes: Sequence[ShapeCosts]) -> Table:
    """The costs for people, in milliseconds and in passes of the largest."""
    shown = Table(title="Milliseconds of a pass", title_justify="left")
    shown.caption = (
        "nodes: verified as a target; a token, a tree: as a level that drafts by itself, or "
        "verifies what was drafted beneath it; of the largest: a token, in plain passes of that"
    )
    shown.caption_justify = "left"
    shown.add_column("shape")
    columns = ["GB", *(f"{size} nodes" for size in (0, *NODES)), "a token", "a tree"]
    for name in [*columns, "of the largest"]:
        shown.add_column(name, justify="right")
    for costs in shapes:
        seconds = [*costs.target.values(), costs.token, costs.tree]
        share = costs.token / shapes[-1].target[0]
        cells = [f"{one * 1e3:.2f}" for one in seconds]
        shown.add_row(costs.shape, _gb(costs.num_bytes), *cells, f"{share:.1%}")
    return shown


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"

"""HSDDW on what the demo's model wrote, greedy: its three sizes are the paper's 70B, 7B and 68M."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from hierarchy_ablation import PASS_COSTS
from papers.answers import Answer, Row, Setup, shares
from specds.bench.replay.measure import follow
from specds.hierarchy import HierarchyConfig, HierarchyDrafter
from specds.loading import load_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specds.hierarchy.config import Ablation


@dataclass
class Replayed:
    """What came of a hierarchy's drafts.

    Attributes:
        windows: Tokens of each draft.
        accepted: How many of them were.
        entropies: Of the tokens accepted, and of those rejected.
        cost: Of all passes, in plain ones of the target.
    """

    windows: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    entropies: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    cost: float = 0.0

    @property
    def speed_up(self) -> float:
        return (len(self.accepted) + sum(self.accepted)) / self.cost


@torch.inference_mode()
def replay(
    setup: Setup, names: Sequence[str], row: Ablation, answers: Sequence[Answer], window: int = 10
) -> Replayed:
    levels = {name: load_model(f"demo-{name}", device="cpu")[0] for name in names}
    config = replace(HierarchyConfig.ablation(row), window=window)
    drafter, found = HierarchyDrafter(levels, config), Replayed()
    for answer in answers:
        session = drafter.session(answer.prompt_ids)
        for step in (each.step for each in follow(session, answer, config.max_nodes)):
            found.windows.append(len(step.tree))
            found.accepted.append(len(step.path))
            found.cost += 1
            drafted = session._draft.chosen[: len(step.tree)]  # of what the target verifies
            for place, drawn in enumerate(drafted[: len(step.path) + 1]):
                found.entropies[place == len(step.path)].append(drawn.entropy)
        for name, level in session.level_stats.items():
            found.cost += level.num_forwards * PASS_COSTS.get(name, 0)
    return found


def acceptance(setup: Setup) -> Iterator[Row]:
    """Figure 1: drafts by how many of ten tokens were accepted."""
    for name in ("small", "tiny"):
        found = replay(setup, [name], "sd", setup.written())
        speed = {"at the paper's costs": f"{found.speed_up:.2f}x"}
        yield {"draft model": name, **shares(Counter(found.accepted), range(11)), **speed}


def entropy(setup: Setup) -> Iterator[Row]:
    """Figure 6: in nats, and how often a rejected token's is above an accepted one's."""
    for name in ("small", "tiny"):
        accepted, rejected = map(np.array, replay(setup, [name], "sd", setup.written()).entropies)
        above = (rejected[:, None] > accepted).mean() + (rejected[:, None] == accepted).mean() / 2
        yield {
            "draft model": name,
            "accepted": f"{accepted.mean():.2f}",
            "rejected": f"{rejected.mean():.2f}",
            "rejected above accepted": f"{above:.0%}",
        }


def windows(setup: Setup) -> Iterator[Row]:
    """Figure 7: speed at the paper's costs by the window K."""
    both = ("tiny", "small")
    ways: dict[str, tuple[Sequence[str], Ablation]] = {
        "speculative decoding": (("small",), "sd"),
        "+ self-verify": (("small",), "self"),
        "+ pre- and self-verify": (both, "pre-self"),
        "HSDDW": (both, "full"),
    }
    for label, (names, row) in ways.items():
        found = {
            f"K = {window}": replay(setup, names, row, setup.written(), window).speed_up
            for window in (4, 6, 8, 10)
        }
        most, least = max(found.values()), min(found.values())
        cells = {name: f"{speed:.2f}x" for name, speed in found.items()}
        yield {"": label, **cells, "most over least": f"{most / least:.2f}"}


def one_answer(setup: Setup) -> Iterator[Row]:
    """Figure 8: of one answer, the tokens drafted and accepted in each step."""
    for label, names, row in (
        ("speculative decoding, small", ["small"], "sd"),
        ("speculative decoding, tiny", ["tiny"], "sd"),
        ("HSDDW", ["tiny", "small"], "full"),
    ):
        found = replay(setup, names, row, setup.written()[:1])
        steps = zip(found.accepted, found.windows, strict=True)
        yield {"": label, "accepted/drafted": " ".join(f"{a}/{n}" for a, n in steps)}

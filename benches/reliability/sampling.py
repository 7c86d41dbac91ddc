"""Are sampled texts distributed as the model's own law says, whatever was drafted?"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

import models
from specds import FusedDrafter, HierarchyDrafter, generate
from specds.drafters import Memory

VOCAB_SIZE, LENGTH = 6, 3
PROMPT = [1, 2, 3, 1, 2]
TEXTS = torch.tensor([*product(range(VOCAB_SIZE), repeat=LENGTH)])


@cache
def target() -> PreTrainedModel:
    """A random model of few tokens."""
    shape = {**models._SHAPE, "vocab_size": VOCAB_SIZE, "num_hidden_layers": 1}
    return models.build("LlamaConfig", shape, sharpness=1.0)


@cache
def near(noise: float) -> PreTrainedModel:
    """A smaller level: the target with noise."""
    model = copy.deepcopy(target())
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(int(1000 * noise))
        for weight in model.parameters():
            weight.add_(noise * torch.randn_like(weight))
    return model


def fused() -> FusedDrafter:
    return FusedDrafter(memory=Memory(VOCAB_SIZE))


@dataclass
class Case:
    """How texts are sampled: a drafter, rows of a batch, and what `generate` is told."""

    make: Callable[[], Any]
    num_rows: int = 64
    settings: dict[str, Any] = field(default_factory=lambda: {"max_nodes": 8})
    temperature: float = 0.9
    repetition_penalty: float = 1.0
    num_samples: int = 20_000


def hierarchy(**levels: Any) -> HierarchyDrafter:
    return HierarchyDrafter(levels)


ALONE = {"num_rows": 8, "num_samples": 4_000}
CASES = {
    "fused, `packed`": Case(fused),
    "fused, `model`": Case(fused, settings={"max_nodes": 8, "verification": "model"}, **ALONE),
    "fused, `stream_every`": Case(fused, settings={"max_nodes": 8, "stream_every": 2}),
    "fused, temperature 3": Case(fused, temperature=3.0),
    "fused, repetition penalty": Case(fused, repetition_penalty=1.3),
    "two models": Case(lambda: hierarchy(small=near(0.1), middle=near(0.05)), **ALONE),
    "fused and a model": Case(lambda: hierarchy(fused=fused(), middle=near(0.05)), **ALONE),
    "a model, temperature 3": Case(lambda: hierarchy(small=near(0.1)), temperature=3.0, **ALONE),
}


def figures() -> list[str]:
    """The lines of the section: a table of cases."""
    rows = ["| sampled by | samples | accepted | chi-square | degrees of freedom | p |"]
    rows.append("| --- " + "| ---: " * 5 + "|")
    for name, case in CASES.items():
        counts, num_accepted = sample(case)
        statistic, freedom, p = chi_square(counts, law(case))
        tried = f"{counts.sum():,} | {num_accepted:,}"
        rows.append(f"| {name} | {tried} | {statistic:.0f} | {freedom} | {p:.2f} |")
    return rows


@torch.no_grad()
def law(case: Case) -> NDArray[np.float64]:
    """The probability of each of `TEXTS`, computed without any of our code."""
    whole = torch.cat([torch.tensor([PROMPT]).expand(len(TEXTS), -1), TEXTS], dim=1)
    scores = target()(whole).logits[:, len(PROMPT) - 1 : -1].double()
    for step in range(LENGTH):
        seen = torch.zeros(len(TEXTS), VOCAB_SIZE, dtype=torch.bool)
        seen.scatter_(1, whole[:, : len(PROMPT) + step], value=True)
        of_step = scores[:, step]
        penalty = torch.where(of_step < 0, case.repetition_penalty, 1 / case.repetition_penalty)
        scores[:, step] = torch.where(seen, of_step * penalty, of_step)
    probs = (scores / case.temperature).softmax(dim=-1)
    return probs.gather(2, TEXTS[..., None]).prod(dim=1)[:, 0].numpy()


def sample(case: Case) -> tuple[NDArray[np.int64], int]:
    """How often each text came, and how many drafted tokens were accepted."""
    counts, num_accepted, drafter = np.zeros(len(TEXTS), np.int64), 0, case.make()
    ids = torch.tensor([PROMPT]).repeat(case.num_rows, 1)
    settings = {"temperature": case.temperature, "repetition_penalty": case.repetition_penalty}
    settings |= {"do_sample": True, "top_k": 0, "pad_token_id": 0, **case.settings}
    settings["max_new_tokens"] = LENGTH + 1  # of the last token, drafts are cut short
    torch.manual_seed(7)
    while counts.sum() < case.num_samples:
        mask = torch.ones_like(ids)
        output = generate(target(), ids, drafter, attention_mask=mask, **settings)
        new = output.sequences[:, len(PROMPT) :][:, :LENGTH].numpy()
        numbers = new @ VOCAB_SIZE ** np.arange(LENGTH)[::-1]
        np.add.at(counts, numbers, 1)
        num_accepted += output.stats.num_accepted_tokens
    return counts, num_accepted


def chi_square(counts: NDArray[np.int64], law: NDArray[np.float64]) -> tuple[float, int, float]:
    """The statistic, its degrees of freedom, and how likely one as large is. Rare texts are one."""
    expected = law * counts.sum()
    is_rare = expected < 5
    cells = np.append(expected[~is_rare], expected[is_rare].sum())
    found = np.append(counts[~is_rare], counts[is_rare].sum())
    statistic = ((found - cells) ** 2 / np.maximum(cells, 1e-9))[cells > 0].sum()
    freedom = int((cells > 0).sum()) - 1
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(statistic), freedom, float(torch.special.gammaincc(*halves))

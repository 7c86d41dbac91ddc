"""N-Grammys on what the demo's model wrote: only its own weights give its bigrams."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from papers.answers import Row, Setup, lengths, shares
from specds.bench.replay.measure import follow
from specds.drafters import SOURCES, NGrammysConfig, NGrammysDrafter, TokenTree
from specds.papers.path_rows import PathRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel


ROWS, LENGTHS = (1, 5, 10, 20, 25), (2, 4, 6, 8, 10, 12, 14)
CONTEXTS, REPEATS = (25, 100, 500), 9


def query(setup: Setup) -> Iterator[Row]:
    """Footnote 4, the whole drafter."""
    return lengths("q", {str(q): drafter_of(setup, q=q) for q in (1, 2, 3)}, setup.written())


def drafter_of(setup: Setup, **changes: object) -> NGrammysDrafter:
    return NGrammysDrafter(setup.demo[0], replace(NGrammysConfig(), **changes))


def top_k(setup: Setup) -> Iterator[Row]:
    """Figure 2: a row a source of the model's own, a column a k."""
    for strategy, w in (
        ("unigram", 1),
        ("bigram", 1),
        ("extended-bigram", 2),
        ("extended-bigram", 3),
    ):
        row = {"source": f"{strategy}, w = {w}"}
        for k in (1, 2, 5, *ROWS[2:]):
            drafter = drafter_of(setup, k=k, w=w, strategy=strategy)
            row[f"k = {k}"] = length_of(drafter, setup)
        yield row


def length_of(drafter: NGrammysDrafter, setup: Setup) -> str:
    (row,) = lengths("", {"": drafter}, setup.written())
    return row["demo"]


def grid(setup: Setup) -> Iterator[Row]:
    """Figures 5, 7 and 9: tokens a call."""
    for k in ROWS:
        cells = {f"w = {w}": length_of(drafter_of(setup, k=k, w=w), setup) for w in LENGTHS}
        yield {"k": str(k), **cells}


def mixed(setup: Setup) -> Iterator[Row]:
    """Figure 4 at (10, 10): tokens accepted, the row that held them, and rows by their source."""
    accepted, ranks = (
        defaultdict[str, Counter[int]](Counter),
        defaultdict[str, Counter[int]](Counter),
    )
    allocated = Counter[int]()
    drafter = drafter_of(setup)
    for answer in setup.written():
        session = drafter.session(answer.prompt_ids)
        for step in (each.step for each in follow(session, answer, drafter.max_nodes)):
            leaves = np.setdiff1d(np.arange(len(step.tree)), step.tree.parents)
            sources = [SOURCES[source] for source in step.tree.sources[leaves]]
            allocated[sources.count("context")] += 1
            if step.path:
                holds = step.tree.mask()[leaves, step.path[-1]]
                rank = int(holds.argmax())
                accepted[sources[rank]][len(step.path)] += 1
                ranks[sources[rank]][rank + 1] += 1
    keys = range(11)
    for source, counts in accepted.items():
        yield {"share of drafts": f"tokens accepted of {source}", **shares(counts, keys)}
    for source, counts in ranks.items():
        yield {"share of drafts": f"accepted row of {source}", **shares(counts, keys)}
    yield {"share of drafts": "rows from the context", **shares(allocated, keys)}


def slow_downs(model: PreTrainedModel, context: int) -> dict[tuple[int, int], float]:
    """The time of a call over k rows of w + 1 tokens, over that of one token; medians, in turn."""
    shapes = [(1, 0), *((k, w) for k in ROWS for w in LENGTHS)]
    most = max(k * (w + 1) for k, w in shapes)
    vocab_size = model.config.vocab_size
    tokens = torch.from_numpy(np.random.default_rng(0).integers(vocab_size, size=(1, context)))
    sizes = {"prompt_length": context, "max_length": context + 1 + most, "max_nodes": most}
    runner, seconds = PathRows(model, **sizes), defaultdict(list)
    with torch.inference_mode():
        runner.prefill_rows([tokens], context)
        for repeat in range(REPEATS + 1):
            for k, w in shapes:
                nodes = np.arange(k * w)
                tree = TokenTree(nodes % vocab_size, np.where(nodes < k, -1, nodes - k))
                started = perf_counter()
                runner.verify_rows([0], [tree])
                if repeat:
                    seconds[k, w].append(perf_counter() - started)
    return {shape: median(each) / median(seconds[1, 0]) for shape, each in seconds.items()}


def slow_down(setup: Setup) -> Iterator[Row]:
    """Figure 1 on this machine's processor."""
    for context in CONTEXTS:
        times = slow_downs(setup.demo[0], context)
        for k in ROWS:
            cells = {f"w = {w}": f"{times[k, w]:.1f}" for w in LENGTHS}
            yield {"context, k": f"{context}, {k}", **cells}


def speed(setup: Setup) -> Iterator[Row]:
    """Figures 3, 6 and 8: tokens a call over what the call costs here."""
    times = slow_downs(setup.demo[0], 500)
    for row in grid(setup):
        k = int(row["k"])
        for w in LENGTHS:
            row[f"w = {w}"] = f"{float(row[f'w = {w}']) / times[k, w]:.2f}x"
        yield row

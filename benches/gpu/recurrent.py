"""A hybrid with recurrent layers, whose drafts are chains: texts, cost of a pass, kept states."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from gpu.figure import Figure
from hybrid import hybrid
from models import HYBRIDS, build, oracle_drafter, plain_generate, prompt, random_drafter
from specds import FusedDrafter, generate
from specds.bench.generation.target import synchronize
from specds.bench.turns import in_turns, medians
from specds.drafters import TokenTree
from specds.transformers.verify.states import copied, restored
from specds.transformers.verify.support import require_support

NODES = (0, 1, 3, 7, 15, 31)
REPEATS = 9
_STATES = ("conv_states", "recurrent_states")


@torch.no_grad()
def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Hybrids: texts with drafts, cost of a chain by its nodes, and of keeping the states."""
    for family in HYBRIDS:
        model, unlike = build(*HYBRIDS[family]).to(options.device), 0
        num = 1 if options.dry else 6
        for seed in range(num):
            asked = {"max_new_tokens": 32, "do_sample": False, "verification": "chain"}
            ids = prompt(seed=seed).to(options.device)
            expected = plain_generate(model, seed, 32, do_sample=False)
            drafter = oracle_drafter(expected) if seed % 2 else random_drafter()
            made = generate(model, ids, drafter, max_nodes=7, **asked).sequences[0]
            unlike += made.tolist() != expected
        yield Figure(f"{family}: texts that differ", unlike, at_most=0, note=f"of {num}, float32")
    if options.dry:
        model = build(*HYBRIDS["qwen3_5"])
    else:
        with torch.device(options.device):
            model = hybrid(32_000, getattr(torch, options.dtype))
    for context in options.contexts[:1]:
        yield from _costs(model, context)
    yield from _own_speed(model, options.new_tokens)


def _costs(model: Any, context: int) -> Iterator[Figure]:
    """Cost of a pass over a chain, with the states kept before and restored after it."""
    vocab_size = int(model.config.vocab_size)
    ids = torch.from_numpy(np.random.default_rng(0).integers(vocab_size, size=context))
    verifies, *_ = require_support(model, verification="chain")
    sizes = {"prompt_length": context, "max_length": context + 64, "max_nodes": NODES[-1]}
    runner = verifies(model, **sizes)
    runner.prefill_rows([ids[None]])

    def step(size: int) -> None:
        tree = TokenTree([*range(size)], [*range(-1, size - 1)])
        if size:
            runner.rehearse([5], [tree])
        else:
            runner.verify_rows([5], [tree])
            runner.commit_rows([[]])

    steps = {size: partial(step, size) for size in NODES}
    seconds = medians(steps, REPEATS, partial(synchronize, model.device))
    for size, each in seconds.items():
        name = f"{size} nodes of a chain after {context:,} tokens, over none"
        yield Figure(name, each / seconds[0], "x", note=f"{1e3 * each:.2f} ms")
    cache = runner.committed()
    before = copied(cache, is_short=True)
    states = [vars(layer).get(name, {}) for layer in before.layers for name in _STATES]
    held = [of for each in states for of in each.values()]
    keep, restore = partial(copied, cache, is_short=True), partial(restored, cache, before)
    for name, act in (("keep", keep), ("restore", restore)):
        times = []
        for _ in range(REPEATS):
            synchronize(model.device)
            started = perf_counter()
            act()
            launched = perf_counter() - started
            synchronize(model.device)
            times.append((perf_counter() - started, launched))
        whole, launched = (1e6 * median(of) for of in zip(*times, strict=True))
        size_mb = sum(of.nbytes for of in held) / 1e6
        note = f"{size_mb:.1f} MB, {launched:.0f} us until it is in the stream"
        yield Figure(f"{name} the states", whole, "us", note=note)


def _own_speed(model: Any, new_tokens: int) -> Iterator[Figure]:
    """Tokens per second of the random model's own text, and of `generate`; and whether they agree.

    Random weights repeat themselves, so this is the most that drafts can gain.
    """
    seconds, unlike, num = np.zeros(2), 0, 2
    drafter, asked = FusedDrafter(), {"max_new_tokens": new_tokens, "do_sample": False}
    for seed in range(1 + num):
        ids = prompt(seed=seed).to(model.device)
        given = {"attention_mask": torch.ones_like(ids), **asked}
        ours = partial(generate, model, ids, drafter, **asked)
        calls = {"generate": partial(model.generate, ids, **given), "specds": ours}
        found = in_turns(calls, seed, partial(synchronize, model.device))
        expected, output = (each.result for each in found.values())
        if seed:  # the first warms up
            seconds += [each.seconds for each in found.values()]
            unlike += not torch.equal(expected, output.sequences)
    stats = output.stats
    note = f"{num * new_tokens / seconds[0]:.0f} tokens/s by generate, {stats.verification}"
    yield Figure("own text, over generate", seconds[0] / seconds[1], "x", note=note)
    yield Figure("own text: texts that differ", unlike, note=f"of {num}, {model.dtype}")

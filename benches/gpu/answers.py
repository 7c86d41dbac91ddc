"""Drafting on a real shape against its bars: the cost of a pass, and recorded answers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.curve import verification_costs
from gpu.figure import Figure
from gpu.forced import measure_forced
from gpu.shapes import random_model

NODES = (1, 7, 15, 31, 63)
LARGEST_RATIO, LARGEST_OF_SECOND, LARGEST_OUTSIDE = 1.10, 1.15, 0.05
LEAST_OF_COMPILED, LEAST_IN_BATCHES = 1.0, 0.98


def curve(options: argparse.Namespace, most: float = LARGEST_RATIO) -> Iterator[Figure]:
    """A step by its nodes, acceptance included: T(n) over T(0)."""
    model = random_model(options.shape, device=options.device, dtype=options.dtype)
    for context in options.contexts:
        for row in verification_costs(model, context, NODES):
            yield Figure(
                f"{row['num_nodes']} nodes after {context:,} tokens, over none",
                row["ratio"],
                "x",
                at_most=most if row["num_nodes"] == NODES[-1] else None,
                note=f"{1e3 * row['seconds']:.2f} ms",
            )


def curve_of_second(options: argparse.Namespace) -> Iterator[Figure]:
    """The same of the second shape, whose query heads share those of keys."""
    of_second = argparse.Namespace(**{**vars(options), "shape": options.second_shape})
    yield from curve(of_second, LARGEST_OF_SECOND)


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Recorded answers, forced through random weights, one by one and in batches."""
    if not options.case:
        yield Figure("speed-up", None, at_least=1, note="no --case was given")
    for answers, datastore, bar in options.case:
        for batch in (1, *options.batches):
            rows = measure_forced(
                [Path(answers)],
                Path(datastore),
                shape=options.shape,
                device=options.device,
                dtype=options.dtype,
                batch=batch,
                limit=max(options.limit, batch),
                new_tokens=options.new_tokens,
                runs=options.runs,
                tokenizer=options.tokenizer,
                compiled=not options.dry,
            )
            name = Path(answers).stem + (f", batch {batch}" if batch > 1 else "")
            yield from _speeds(name, rows, float(bar) if batch == 1 else LEAST_IN_BATCHES)


def _speeds(name: str, rows: list[dict[str, Any]], bar: float) -> Iterator[Figure]:
    """Plain decoding over the compiled one; drafting over that, in batches over the faster."""
    plain = {row["name"]: row["tokens_per_s"] for row in rows if row["kind"] != "drafter"}
    for way, rate in plain.items():
        yield Figure(f"{name}: {way}", rate, "tokens/s")
    if plain.get("plain") and plain.get("compiled"):
        ratio = plain["plain"] / plain["compiled"]
        yield Figure(f"{name}: plain over compiled", ratio, "x", at_least=LEAST_OF_COMPILED)
    for row in rows:
        if row["kind"] == "drafter":
            one = row["batch"] == 1 and plain.get("compiled")
            over = "compiled" if one else row["fastest_plain"]
            rate, note = row["tokens_per_s"], row["reason"] or f"over {over}"
            speed_up = None if rate is None else rate / plain[over]
            yield Figure(f"{name}: speed-up", speed_up, "x", at_least=bar, note=note)
            yield Figure(f"{name}: tokens a forward", row["mean_acceptance_length"])
            if row["batch"] == 1:
                outside = row["outside_forward"]
                yield Figure(f"{name}: outside the forward", outside, at_most=LARGEST_OUTSIDE)

"""A real model on the nine kinds of requests of `make bench-real`.

Rows of all calls are appended to `rows.jsonl` in the folder of `--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import specds
from gpu.figure import Figure
from real.kinds import encode, kinds, messages
from real.models import MODELS, folder_of
from specds import FusedDrafter
from specds.bench.generation.measure import GenerationCell, Plan, measure
from specds.bench.generation.target import (
    BenchTarget,
    Way,
    baseline_way,
    drafter_way,
)
from specds.papers import PromptLookupDrafter

# Mean over the kinds, relative to compiled `generate`.
LEAST_SPEED = 1.5
OURS = ("plain", "specds")


def real(options: argparse.Namespace) -> Iterator[Figure]:
    """A real model: texts, and speed over compiled `generate`."""
    model, asked, settings = _loaded(options)
    specds.warm_up(model)
    target = BenchTarget(model)
    ways = [baseline_way(name, target) for name in options.ways]
    # A request of the kind may follow from earlier ones, as on a server.
    ways.append(drafter_way(OURS[1], target, FusedDrafter, "auto"))
    yield from _warm_up(ways, [ids for prompts in asked.values() for ids in prompts], settings)
    # Last, since it takes minutes: what a limit of time ends is in the file of rows.
    yield from _speeds(options, target, ways, asked, settings)


def invariant(options: argparse.Namespace) -> Iterator[Figure]:
    """Texts of a real model with `shape_invariant` that differ between two drafters."""
    model, asked, settings = _loaded(options)
    fixed = settings | {"verification": "model", "shape_invariant": True, "max_nodes": 7}
    for kind, prompts in asked.items():
        unlike = 0
        for prompt in prompts:
            ids = torch.tensor([prompt], device=model.device)
            drafters = FusedDrafter(), PromptLookupDrafter()
            made = [specds.generate(model, ids, of, **fixed).sequences for of in drafters]
            unlike += not torch.equal(*made)
        name = f"{options.dtype}, {kind}: texts that differ by drafts, shape_invariant"
        yield Figure(name, unlike, at_most=0, note=f"of {len(prompts)}")


def _loaded(options: argparse.Namespace) -> tuple[Any, dict[str, list[list[int]]], dict[str, Any]]:
    """Return the model, the requests of each kind, and the settings of all."""
    folder = folder_of(options.model) if options.model in MODELS else options.model
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    of_dtype = {"dtype": getattr(torch, options.dtype)}
    model = AutoModelForCausalLM.from_pretrained(folder, **of_dtype).eval().to(options.device)
    of_kind = [of for of in kinds() if of in (options.kinds or kinds())]
    asked = {
        of: [encode(tokenizer, one) for one in messages(of)[: options.limit]] for of in of_kind
    }
    return model, asked, {"do_sample": False, "max_new_tokens": options.new_tokens}


def _speeds(
    options: argparse.Namespace,
    target: BenchTarget,
    ways: list[Way],
    asked: dict[str, list[list[int]]],
    settings: dict[str, Any],
) -> Iterator[Figure]:
    """Measure all ways request by request in turn, and compare texts and speeds."""
    rows: list[dict[str, Any]] = []
    for kind, prompts in asked.items():
        batches, short = {1: [[ids] for ids in prompts]}, {"max_new_tokens": 2}
        plan = Plan(target, ways, {"greedy": settings}, batches, 1, 0, warm_up=short)
        found = [_row | {"kind": kind} for cell in measure(plan) for _row in _rows(cell)]
        rows += [_of_setting(options) | row for row in found]
        with options.out.with_name("rows.jsonl").open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows[-len(found) :])
        rates = _rates(rows, kind)
        note = ", ".join(f"{way} {rate:.0f}" for way, rate in rates.items())
        baseline = next(of for of in ("compiled", "generate", *rates) if of in rates)
        speed = rates[OURS[1]] / rates[baseline]
        yield Figure(f"{options.dtype}, {kind}", speed, "x", note=f"tokens/s: {note}")
    yield from _summary(options, rows, list(asked))


def _warm_up(
    ways: list[Way], prompts: list[list[int]], settings: dict[str, Any]
) -> Iterator[Figure]:
    """Compile, for the longest request, and record passes of all numbers of nodes."""
    longest = max(prompts, key=len)
    for way in list(ways):
        started = perf_counter()
        try:
            call = way.start()
            for ids in prompts if way.is_ours else [longest]:
                call([ids], settings)
        except (RuntimeError, ValueError) as error:
            ways.remove(way)
            yield Figure(f"{way.name} failed", None, note=" ".join(str(error).split())[:200])
        else:
            yield Figure(f"first calls of {way.name}", perf_counter() - started, "s")


def _of_setting(options: argparse.Namespace) -> dict[str, Any]:
    cuda = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    model = Path(options.model).name
    return {"model": model, "dtype": options.dtype, "threads": cuda, "mode": "greedy"}


def _rows(cell: GenerationCell) -> Iterator[dict[str, Any]]:
    """Yield a row for each request; the shares of its time are those of a synchronized run."""
    if not cell.runs or cell.profile is None:
        return
    runs = zip(cell.runs[0].seconds, cell.runs[0].results, cell.profile.results, strict=True)
    for number, (seconds, result, profiled) in enumerate(runs):
        (text,) = result.token_ids
        row = {"way": cell.way.name, "number": number, "seconds": seconds}
        row |= {"texts": [text], "tokens": len(text)}
        if (stats := result.stats) and profiled.stats:
            row |= {"passes": 1 + stats.num_drafts, "shares": profiled.stats.shares}
            row |= {"drafted": stats.num_draft_tokens, "accepted": stats.num_accepted_tokens}
        yield row


def _rates(rows: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Return the tokens per second of each way."""
    rates = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if (row["way"], row["kind"]) == (way, kind)]
        rates[way] = sum(row["tokens"] for row in own) / sum(row["seconds"] for row in own)
    return rates


def _summary(
    options: argparse.Namespace, rows: list[dict[str, Any]], of_kind: list[str]
) -> Iterator[Figure]:
    texts: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        texts.setdefault((row["kind"], row["number"]), {})[row["way"]] = row["texts"]
    most = 0 if options.dtype == "float32" else None
    compared = [*options.ways, OURS[1]] if "generate" in options.ways else []
    for way in compared[1:]:
        unlike = sum(of[way] != of["generate"] for of in texts.values() if way in of)
        bar = most if way in OURS else None
        note = f"of {len(texts)}"
        yield Figure(f"{options.dtype}: texts of {way} that differ", unlike, "", bar, note=note)
    by_drafts = sum(of[OURS[0]] != of[OURS[1]] for of in texts.values())
    yield Figure(f"{options.dtype}: texts that differ by drafts", by_drafts, note="without them")
    rates = [_rates(rows, kind) for kind in of_kind]
    print(f"| {options.dtype} | {' | '.join(of_kind)} | mean |\n|{' --- |' * (2 + len(rates))}")
    for way in rates[0]:
        shown = [of[way] for of in rates]
        print(f"| {way} | {' | '.join(f'{of:.0f}' for of in [*shown, mean(shown)])} |")
    for way in rates[0]:
        yield Figure(f"{options.dtype}: {way}", mean(of[way] for of in rates), "tokens/s")
    own = [row for row in rows if row["way"] == OURS[1]]
    passes = sum(row["tokens"] for row in own) / sum(row["passes"] for row in own)
    yield Figure(f"{options.dtype}: tokens a pass", passes)
    for way in OURS:
        shares = [row["shares"] for row in rows if row["way"] == way]
        note = ", ".join(f"{of} {mean(each[of] for each in shares):.3f}" for of in shares[0])
        yield Figure(f"{options.dtype}: shares of {way}", None, note=note)
    for way in OURS if "compiled" in rates[0] else ():
        speed = mean(of[way] / of["compiled"] for of in rates)
        least = LEAST_SPEED if way == OURS[1] else None
        yield Figure(f"{options.dtype}: {way} over compiled", speed, "x", None, least)

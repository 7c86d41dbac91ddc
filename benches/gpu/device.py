"""Correctness checks on a new device."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers

from gpu.figure import Figure, seconds_of
from models import FAMILIES, build, plain_generate, prompt, random_drafter
from specds import generate
from specds.papers import PromptLookupDrafter
from specds.transformers.accept.draws import Noise
from specds.transformers.kernels import operations
from specds.transformers.verify.recordings import CudaRecording
from tree_attention_cases import TOLERANCES, make_case

# Lengths, width, heads of keys, group, size of a head, options.
CASES: list[tuple[Any, ...]] = [
    ([3000, 0, 517], 64, 2, 4, 128, {}),
    ([9000], 1, 8, 4, 128, {}),
    ([8191], 64, 32, 1, 128, {}),
    ([4097, 31, 32, 33, 1, 0], 8, 4, 7, 128, {}),
    ([5000], 64, 4, 2, 256, {"window": 1024}),
    ([700], 64, 8, 8, 64, {"window": 128, "with_sinks": True}),
    ([900, 70], 64, 4, 2, 80, {"chunk": 512, "block_size": 16}),
    ([40], 20, 2, 7, 112, {"window": 3, "softcap": 50.0}),
]


def machine(options: argparse.Namespace) -> Iterator[Figure]:
    """Versions, and the memory bandwidth, which bounds a step."""
    of = f"torch {torch.__version__}, transformers {transformers.__version__}"
    of += f", numpy {np.__version__}, Python {platform.python_version()}"
    yield Figure("versions", None, note=of)
    if options.device == "cuda":
        found = torch.cuda.get_device_properties(0)
        yield Figure("multiprocessors", found.multi_processor_count, note=found.name)
    size = 1 << (20 if options.dry else 31)
    numbers = torch.ones(size // 8, dtype=torch.int64, device=options.device)
    seconds = seconds_of(numbers.sum, numbers.device)
    yield Figure("reading", size / seconds / 1e9, "GB/s")


def kernel(options: argparse.Namespace) -> Iterator[Figure]:
    """Difference of `tree_attention` from its float64 definition, and between runs."""
    device = torch.device(options.device)
    if reason := operations.kernel_reason(device, torch.bfloat16):
        yield Figure("tree_attention", None, note=reason)
        return
    yield from _cases(device, CASES[-1:] if options.dry else CASES)


@torch.inference_mode()
def _cases(device: torch.device, cases: list[tuple[Any, ...]]) -> Iterator[Figure]:
    most, unlike = 0.0, 0
    for seed, (*sizes, more) in enumerate(cases):
        case = make_case(seed, *sizes, dtype=torch.bfloat16, device=str(device), **more)
        found = case.attend()
        again = [case.attend() for _ in range(30 if device.type == "cuda" else 1)]
        most = max(most, float((found.double() - case.expected()).abs().max()))
        unlike += not all(torch.equal(found, each) for each in again)
    bar = 2 * TOLERANCES[torch.bfloat16]
    yield Figure("farthest from float64", most, at_most=bar)
    yield Figure("cases that differ between runs", unlike, at_most=0)


def noise(options: argparse.Namespace) -> Iterator[Figure]:
    """Draws by our noise compared with `multinomial`, and the state of the generator."""
    for rows, vocab in ((1, 32_000), (7, 151_936)):
        probs = torch.rand(rows, vocab, device=options.device).softmax(-1)
        torch.manual_seed(11)
        theirs = [torch.multinomial(probs, 1).flatten().tolist() for _ in range(6)]
        after = _state(options.device)
        torch.manual_seed(11)
        made = Noise(rows, vocab, probs.device)
        ours = [(probs / made.draw_at(place)).argmax(-1).tolist() for place in range(6)]
        made.draw_at(9)
        made.close(6)
        wrong = (ours != theirs) + (not torch.equal(after, _state(options.device)))
        yield Figure(f"{rows} rows of {vocab:,}: wrong", wrong, at_most=0)


def _state(device: str) -> torch.Tensor:
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def texts(options: argparse.Namespace) -> Iterator[Figure]:
    """Texts that differ from `generate`, by precision, and the first differing position."""
    dtypes = ("float32", "bfloat16")
    for dtype, sample in ((of, how) for of in dtypes for how in (False, True)):
        model = build(*FAMILIES["llama"], getattr(torch, dtype)).to(options.device)
        more = {"do_sample": True, "top_k": 0} if sample else {"do_sample": False}
        first, unlike_drafts, num = [], 0, 2 if options.dry else 12
        for seed in range(num):
            expected = plain_generate(model, seed, options.new_tokens, **more)
            torch.manual_seed(seed)
            asked = {"max_new_tokens": options.new_tokens, "verification": "packed", **more}
            ids = prompt(seed=seed).to(options.device)
            found = generate(model, ids, random_drafter(), max_nodes=16, **asked).sequences[0]
            pairs = enumerate(zip(found.tolist(), expected, strict=True))
            unlike = [place - ids.shape[1] for place, pair in pairs if len({*pair}) > 1]
            first += unlike[:1]
            fixed = asked | {"verification": "model", "shape_invariant": True, "max_nodes": 7}
            made = []
            for drafter in (random_drafter(), PromptLookupDrafter()):
                torch.manual_seed(seed)
                made.append(generate(model, ids, drafter, **fixed).sequences)
            unlike_drafts += not torch.equal(*made)
        name = f"{dtype}, {'sampled' if sample else 'greedy'}: texts that differ"
        most = 0 if dtype == "float32" else None
        yield Figure(name, len(first) / num, at_most=most, note=f"first at {first}")
        yield Figure(f"{name} by their drafts, shape_invariant", unlike_drafts / num, at_most=0)


def _all(product: Any, states: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    return [product(states, weight) for weight in weights][-1]


def beside(options: argparse.Namespace) -> Iterator[Figure]:
    """Sampling in another thread while CUDA graphs are captured."""
    made, stop, failures = Noise(1, 64, torch.device(options.device)), Event(), list[str]()

    def draw() -> None:
        place = 0
        while not stop.is_set() and not failures:
            try:
                made.draw_at(place := place + 1)
            except RuntimeError as failure:
                failures.append(str(failure).splitlines()[0])

    thread = Thread(target=draw, daemon=True)
    thread.start()
    states = torch.ones(64, 64, device=options.device)
    for _ in range(20 if options.device == "cuda" else 0):
        CudaRecording(lambda: _all(torch.mm, states, [states] * 200), None, states.device)
    stop.set()
    thread.join()
    yield Figure("draws that failed", len(failures), at_most=0, note="; ".join(failures))


def refused(options: argparse.Namespace) -> Iterator[Figure]:
    """Sampling after a failed capture of a CUDA graph (last, as it may break the process)."""
    model = build(*FAMILIES["deepseek_v3"]).to(options.device)
    asked = {"max_new_tokens": 8, "do_sample": False, "verification": "packed"}
    ids = prompt().to(options.device)
    told = generate(model, ids, random_drafter(), max_nodes=7, **asked).stats
    yield Figure("verified", None, note=f"{told.verification}: {told.reason}")
    if options.device == "cuda":
        states = torch.ones(4, device="cuda")
        try:  # fail in the capture itself, past the search for host synchronization
            with mock.patch("specds.transformers.verify.recordings._WAITING", frozenset()):
                CudaRecording(lambda: states * states.sum().item(), None, states.device)
        except RuntimeError as failure:
            yield Figure("refused", None, note=str(failure).splitlines()[0])
    drawn = torch.multinomial(torch.ones(4, device=options.device), 1).item()
    yield Figure("draws afterwards", float(drawn >= 0), at_least=1)

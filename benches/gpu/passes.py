"""What a pass consists of: linear layers, all of it, acceptance; by its tokens."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import torch
from transformers import LogitsProcessorList

from gpu.figure import Figure
from gpu.shapes import random_model
from specds.accept.on_device import PassRequest
from specds.accept.on_host import Sampler
from specds.drafters import TokenTree
from specds.verify.inputs import Inputs
from specds.verify.packed import PackedRunner

REPEATS = 15
PROMPT, FEW_SLOTS = 128, 512


def seconds_of(compute: Callable[[], torch.Tensor], device: torch.device) -> float:
    """The median time of a computation: on a device by its own events, around a recording."""
    if device.type != "cuda":
        compute()
        started = perf_counter()
        compute()
        return perf_counter() - started
    for _ in range(2):
        compute()
    torch.cuda.set_sync_debug_mode("error")  # what waits for the host would spoil the generator
    try:
        compute()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        compute()
    for _ in range(1 + REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return median(times[1:])


@torch.inference_mode()
def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Passes after few tokens, their linear layers and acceptance, each alone."""
    model = random_model(options.shape, device=options.device, dtype=options.dtype)
    device, vocab_size = model.device, int(model.config.vocab_size)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    runner = PackedRunner(
        model, prompt_length=PROMPT, max_length=FEW_SLOTS, max_nodes=max(options.widths)
    )
    runner.prefill_rows([torch.arange(PROMPT)[None] % vocab_size])
    greedy = PassRequest(Sampler(LogitsProcessorList(), do_sample=False), 8, vocab_size)
    for width in options.widths:
        states = {
            layer.in_features: layer.weight.new_empty(width, layer.in_features).normal_()
            for layer in layers
        }
        inputs = _inputs(width, PROMPT, device)
        logits = runner._pass(inputs, FEW_SLOTS)
        linear = seconds_of(partial(_all_linear, layers, states), device)
        rate = f"{num_bytes / linear / 1e9:,.0f} GB/s"
        yield Figure(f"{width} tokens, linear layers", 1e3 * linear, "ms", note=rate)
        for name, compute in (
            ("pass", partial(runner._pass, inputs, FEW_SLOTS)),
            ("acceptance", partial(runner._accept, inputs, logits, greedy)),
        ):
            yield Figure(f"{width} tokens, {name}", 1e3 * seconds_of(compute, device), "ms")


def _inputs(width: int, length: int, device: torch.device) -> Inputs:
    host = Inputs.on_host(1, width)
    host.fill([0], [TokenTree(range(width - 1), range(-1, width - 2))], [length])
    return host.to(device)


def _all_linear(layers: Sequence[torch.nn.Linear], states: dict[int, torch.Tensor]) -> torch.Tensor:
    return [layer(states[layer.in_features]) for layer in layers][-1]

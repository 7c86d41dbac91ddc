"""What a pass on a GPU consists of: linear layers, acceptance, and attention in several ways.

    PYTHONPATH=benches python -m gpu_passes --out build/gpu-passes.json

times, each alone and recorded as a CUDA graph, by the tokens of a pass: all linear layers of a
shape, whole passes over few slots, which have besides these mostly small kernels, and acceptance;
and by tokens and slots the attention of one layer, as `scaled_dot_product_attention` chooses, by
each of its kernels. It takes a minute on a GPU; `--device cpu --shape tiny --slots 64 --widths 1 5`
shows that it works.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LogitsProcessorList

from specds.accept.on_device import Chooser, PassRequest
from specds.bench.generation.shapes import config_of, random_model
from specds.demo.measure import synchronise
from specds.drafters import TokenTree
from specds.verify.attention import group_size
from specds.verify.batch_inputs import Inputs
from specds.verify.graphs import CudaRecording, SharedMemory
from specds.verify.packed_runner import PackedRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Compute = Callable[[], torch.Tensor]

# 63 and 65 tokens: does a pass over 64 nodes and one more token cost more than one without it?
WIDTHS = (1, 2, 9, 17, 33, 63, 64, 65, 72, 80, 128)
ATTENTION_WIDTHS = (1, 9, 65)
SLOTS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# Layers that attend in turn, so that their states do not stay in the device's own cache.
LEAST_BYTES = 400e6
REPEATS = 15
PROMPT, FEW_SLOTS = 128, 512


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    measured: dict[str, list[dict[str, Any]]] = {"passes": [], "attention": []}
    with torch.inference_mode():
        for part, rows in (("passes", pass_rows), ("attention", attention_rows)):
            for row in rows(options):
                measured[part].append(row)
                _write(options.out, measured)
    _show(measured)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu_passes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", default="llama-2-7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--slots", type=int, nargs="+", default=list(SLOTS))
    parser.add_argument("--out", type=Path, default=Path("build/gpu-passes.json"))
    return parser


def seconds_of(compute: Compute, device: torch.device) -> float:
    """The median time of a computation, without what its launches cost the host."""
    run: Callable[[], object] = compute
    if device.type == "cuda":
        run = CudaRecording(lambda: (compute(), None), SharedMemory(device), device).replay
    run()
    times = []
    for _ in range(REPEATS):
        synchronise(device)
        started = perf_counter()
        run()
        synchronise(device)
        times.append(perf_counter() - started)
    return median(times)


class Static(PackedRunner):
    """Passes as they are recorded."""

    _static = True


def pass_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Linear layers, whole passes and acceptance, by the tokens of a pass."""
    model = random_model(options.shape, device=options.device, dtype=options.dtype)
    device, vocab_size = model.device, int(model.config.vocab_size)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    num_bytes = sum(layer.weight.nbytes for layer in layers)
    sizes = {"prompt_length": PROMPT, "max_length": FEW_SLOTS, "max_nodes": max(options.widths)}
    runner = Static(model, **sizes)
    runner.prefill(torch.arange(PROMPT)[None] % vocab_size)
    greedy = Chooser(LogitsProcessorList(), do_sample=False)
    for width in options.widths:
        states = {
            layer.in_features: torch.randn(
                width, layer.in_features, device=device, dtype=model.dtype
            )
            for layer in layers
        }
        inputs = Inputs.of(torch.empty(Inputs.size(1, width), dtype=torch.int64), 1, width)
        tree = TokenTree(range(width - 1), range(-1, width - 2)) if width > 1 else None
        inputs.fill([0], [tree], [PROMPT], [()])
        inputs = Inputs(*(item.to(device) for item in inputs))
        logits = runner._pass(inputs, FEW_SLOTS)
        of_linear = seconds_of(partial(_all_linear, layers, states), device)
        row = {"width": width, "linear": of_linear, "bytes_per_s": num_bytes / of_linear}
        row["pass"] = seconds_of(partial(runner._pass, inputs, FEW_SLOTS), device)
        for name, asked in (
            ("accept", PassRequest(greedy)),
            ("accept and tell", PassRequest(greedy, 8, vocab_size)),
        ):
            row[name] = seconds_of(partial(runner._accept, inputs, logits, asked), device)
        yield row


def _all_linear(layers: Sequence[torch.nn.Linear], states: dict[int, torch.Tensor]) -> torch.Tensor:
    return [layer(states[layer.in_features]) for layer in layers][-1]


def attention_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The attention of one layer, by tokens, slots and how it is computed."""
    config = config_of(options.shape)
    heads = int(config.num_key_value_heads)
    head_dim = int(config.hidden_size) // int(config.num_attention_heads)
    group, device = group_size(config), torch.device(options.device)
    make = partial(torch.randn, device=device, dtype=getattr(torch, options.dtype))
    for slots in options.slots:
        size = slots * heads * head_dim * 2 * make(0).element_size()
        layers = 1 if device.type == "cpu" else min(64, 1 + int(LEAST_BYTES / size))
        states = make(layers, 2, 1, heads, slots, head_dim)
        for width in sorted({min(width, max(options.widths)) for width in ATTENTION_WIDTHS}):
            query = make(1, heads, group * width, head_dim)
            mask = torch.zeros(1, 1, group * width, slots, device=device, dtype=query.dtype)
            mask[..., slots // 2 + 1 :] = max(torch.finfo(mask.dtype).min, -1e9)
            for name, attend in _ways():
                row = {"width": width, "slots": slots, "way": name}
                compute = partial(_all_layers, attend, states, query, mask)
                try:
                    yield row | {"seconds": seconds_of(compute, device) / layers}
                except RuntimeError as error:  # a kernel that cannot do it
                    yield row | {"seconds": None, "reason": str(error).splitlines()[0]}


def _all_layers(
    attend: Callable[..., torch.Tensor],
    states: torch.Tensor,
    query: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    return [attend(query, keys, values, mask) for keys, values in states][-1]


def _ways() -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    yield "chosen", _attend
    for name, kernel in KERNELS.items():
        yield name, partial(_attend, kernel=kernel)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    kernel: SDPBackend | None = None,
) -> torch.Tensor:
    attend = torch.nn.functional.scaled_dot_product_attention
    if kernel is None:
        return attend(query, key, value, attn_mask=mask)
    with sdpa_kernel(kernel):
        return attend(query, key, value, attn_mask=mask)


def _write(out: Path, measured: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def _show(measured: dict[str, list[dict[str, Any]]]) -> None:
    console = Console(width=130)
    parts = ("linear", "pass", "accept", "accept and tell")
    passes = Table("tokens", "GB/s", *parts, title=f"passes over {FEW_SLOTS} slots, ms")
    for row in measured["passes"]:
        rate = f"{row['bytes_per_s'] / 1e9:.0f}"
        passes.add_row(str(row["width"]), rate, *(f"{1e3 * row[part]:.3f}" for part in parts))
    console.print(passes)
    ways = list(dict.fromkeys(row["way"] for row in measured["attention"]))
    table = Table("slots", "tokens", *ways, title="attention of a layer, us")
    cells: dict[tuple[int, int], dict[str, str]] = {}
    for row in measured["attention"]:
        shown = "-" if row["seconds"] is None else f"{1e6 * row['seconds']:.1f}"
        cells.setdefault((row["slots"], row["width"]), {})[row["way"]] = shown
    for (slots, width), times in cells.items():
        table.add_row(str(slots), str(width), *(times.get(way, "") for way in ways))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

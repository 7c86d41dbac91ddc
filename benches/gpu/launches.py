"""Number of kernel launches of a forward pass, per layer and outside of the layers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList

from gpu.figure import Figure
from specds._core import TokenTree
from specds.transformers.accept.on_device import PassRequest
from specds.transformers.accept.on_host import Sampler
from specds.transformers.kernels.operations import kernel_reason
from specds.transformers.verify.packed import PackedRunner

# One pattern of Gemma 3's layers, and two.
LAYERS = (6, 12)
WIDTH, PROMPT, SLOTS, VOCAB = 8, 20, 512, 1000
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCAB,
}
# Small sizes for Triton's interpreter; the counts do not depend on them.
DRY = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
FAMILIES = {"Llama": "LlamaConfig", "Qwen3": "Qwen3Config", "Gemma 3": "Gemma3TextConfig"}


# Operations without a launch, in addition to views.
_FREE = ("aten::empty", "aten::new_empty", "aten::_unsafe_view", "aten::detach")


class _CountedOperations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not (operation.is_view or operation.name().startswith(_FREE))
        return operation(*args, **(kwargs or {}))


def launches(compute: Callable[[], object], device: torch.device) -> int:
    """Count the kernel launches of a computation, or its operations on a CPU."""
    compute()
    if device.type != "cuda":
        with _CountedOperations() as operations:
            compute()
        return operations.count
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        compute()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())


@torch.no_grad()
def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Kernel launches per layer, outside of the layers, and of acceptance, in three families.

    With TRITON_INTERPRET=1, a CPU gives the counts of a device.
    """
    device = torch.device(options.device)
    dtype = getattr(torch, options.dtype)
    is_held = kernel_reason(device, dtype) is None
    unit = "launches" if is_held else "operations"
    few, many = (1, 2) if options.dry else LAYERS
    sizes = {**SIZES, **DRY} if options.dry else SIZES
    for family, config_class in FAMILIES.items():
        counts, accepting = [], 0
        for num_layers in (few, many):
            config = getattr(transformers, config_class)(num_hidden_layers=num_layers, **sizes)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
            model = model.eval().to(device)
            runner = PackedRunner(model, prompt_length=PROMPT, max_length=SLOTS, max_nodes=WIDTH)
            runner.prefill_rows([torch.arange(PROMPT)[None]])
            tree = TokenTree(range(WIDTH - 1), [-1] * (WIDTH - 1))
            buffers, end = runner._filled([0], [tree])
            inputs, numbers = buffers.inputs, buffers.inputs.numbers.clone()

            def compute(runner: Any = runner, inputs: Any = inputs, numbers: Any = numbers) -> Any:
                inputs.numbers.copy_(numbers)
                return runner._pass(inputs, end)  # noqa: B023

            logits = compute()
            counts.append(launches(compute, device))
            request = PassRequest(Sampler(LogitsProcessorList(), do_sample=False), 8, VOCAB)
            accepting = launches(partial(runner._accept, inputs, logits, request), device)
            runner.close()
        of_layer = (counts[1] - counts[0]) / (many - few)
        outside = counts[0] - few * of_layer
        yield Figure(f"{family}: a layer", of_layer, unit, at_most=9 if is_held else None)
        yield Figure(f"{family}: outside", outside, unit, at_most=12 if is_held else None)
        yield Figure(f"{family}: acceptance", accepting, unit)

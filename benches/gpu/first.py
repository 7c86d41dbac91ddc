"""What to know of a device before anything is timed: does it run as it is meant to?"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from gpu.figure import Figure
from gpu.shapes import config_of, random_model
from specds import generate
from specds.drafters import DrafterInputs, make_drafter
from specds.verify import recordings

GREEDY = {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None}


def which_way_runs(options: argparse.Namespace) -> Iterator[Figure]:
    """Is the shape verified by `packed`, with passes that are recorded, and without a warning?"""
    model = _model(options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stats = _generate(model, _prompt(model, 64)).stats
    said = [str(warning.message) for warning in caught]
    packed = int(stats.verification == "packed")
    yield Figure("verified by `packed`", packed, at_least=1, note=stats.reason or "")
    yield Figure("warnings", len(said), at_most=0, note="; ".join(said)[:500])
    kept = recordings._free.get(model, [])
    if model.device.type == "cuda":
        made = sum(len(each.recordings) for of in kept for each in of.passes.values())
        yield Figure("passes recorded", made, at_least=1)


def stale_recordings(options: argparse.Namespace) -> Iterator[Figure]:
    """Is a hook, a switch or an attribute seen that comes after the recordings?"""
    for what, change in (
        ("a hook", _add_hook),
        ("an adapter, switched off", _switch_adapter),
        ("a scaling", _scale),
    ):
        config = config_of("tiny")
        model = transformers.AutoModelForCausalLM.from_config(config).eval().to(options.device)
        change(model, first=True)
        prompt, differing = _prompt(model, 24), 0
        for first in (True, False):
            if not first:
                change(model, first=False)
            expected = model.generate(prompt, **GREEDY)
            found = _generate(model, prompt).sequences.to(expected.device)
            differing += int(not torch.equal(found, expected))
        yield Figure(f"texts that miss {what}", differing, at_most=0)


def memory_after_a_long_prompt(options: argparse.Namespace) -> Iterator[Figure]:
    """A batch after a long prompt: does the cache hold the larger of the two, or their product?"""
    model = _model(options)
    size, rows = options.long_prompt, max(options.batches)
    config = model.config
    of_token = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    of_token *= 2 * torch.finfo(model.dtype).bits // 8
    _generate(model, _prompt(model, size))
    _generate(model, _prompt(model, 32).expand(rows, -1))
    kept = recordings._free.get(model, [])
    held = sum(block.nbytes for each in kept for block in each.cache._blocks)
    most = 1.5 * of_token * max(size + 2048, rows * 2048)
    yield Figure("cache after both", held / 1e9, "GB", at_most=most / 1e9)


def _model(options: argparse.Namespace) -> Any:
    return random_model(options.shape, device=options.device, dtype=options.dtype)


def _prompt(model: Any, size: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(size)
    return torch.randint(model.config.vocab_size, (1, size), generator=numbers).to(model.device)


def _generate(model: Any, prompt: torch.Tensor) -> Any:
    asked = {"max_nodes": 7, "verification": "packed", **GREEDY}
    return generate(model, prompt, make_drafter("fused", DrafterInputs()), **asked)


def _add_hook(model: Any, *, first: bool) -> None:
    if not first:
        model.model.layers[0].register_forward_hook(
            lambda _module, _arguments, out: -out if torch.is_tensor(out) else (-out[0], *out[1:])
        )


def _scale(model: Any, *, first: bool) -> None:
    if not first:
        for layer in model.model.layers:
            layer.self_attn.scaling = 1.5


class _Adapter(torch.nn.Module):
    """As adapters are made: weights of their own, and a switch in Python."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.on = base, True
        self.more = torch.nn.Linear(base.in_features, base.out_features).to(base.weight)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.base(states) + (self.more(states) if self.on else 0)


def _switch_adapter(model: Any, *, first: bool) -> None:
    for layer in model.model.layers:
        if first:
            layer.self_attn.q_proj = _Adapter(layer.self_attn.q_proj)
        else:
            layer.self_attn.q_proj.on = False

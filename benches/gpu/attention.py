"""Attention of one layer over a tree: `tree_attention` compared with other kernels."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gpu.figure import Figure, seconds_of
from specds.kernels.operations import kernel_reason, tree_attention

Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Key heads, query heads per key head, and head size of Llama 2 7B and Llama 3 8B.
HEADS = ((32, 1, 128), (8, 4, 128))
WIDTHS = (1, 64)
# Speedup over all other kernels, at 8k tokens, that justifies our own.
LEAST_GAIN = 1.2
# Minimum size of the states of all layers, so that the device's cache cannot hold them.
LEAST_BYTES = 400e6
KERNELS = {
    "chosen by torch": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


class Tree(NamedTuple):
    """Queries of a random tree after all slots but its own."""

    query: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    visible: torch.Tensor
    ancestors: torch.Tensor

    @classmethod
    def of(cls, slots: int, width: int, num_heads: int, head_dim: int, like: torch.Tensor) -> Tree:
        visible = torch.eye(width, dtype=torch.bool)
        for node in range(1, width):
            visible[node] |= visible[(node - 1) // 2]
        bits = (visible.long() << torch.arange(width)).sum(-1)
        query = torch.randn(1, width, num_heads, head_dim).transpose(1, 2).to(like)
        lengths = torch.tensor([slots - width])
        positions = lengths[:, None] + visible.sum(-1) - 1
        return cls(query, *(t.to(like.device) for t in (lengths, positions, visible, bits[None])))


@torch.inference_mode()
def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Attention time of a layer, by heads, slots, tokens and kernel."""
    for heads, slots in product([(2, 2, 16)] if options.dry else HEADS, options.slots):
        states = _states(options, slots, *heads)
        for width in WIDTHS[:2] if options.dry else WIDTHS:
            if not options.dry:
                torch.compiler.reset()  # else FlexAttention stops compiling at the ninth shape
            name = f"{heads[0]} x {heads[1]} heads of {heads[2]}, {slots:,} slots, {width} tokens"
            tree = Tree.of(slots, width, heads[0] * heads[1], heads[2], states)
            yield from _of_tree(name, tree, states)


def _of_tree(name: str, tree: Tree, states: torch.Tensor) -> Iterator[Figure]:
    seconds, outputs = {}, {}
    for way, attend in _ways(tree, states):
        try:
            outputs[way] = attend(*states[0]).float()
            compute = partial(_all_layers, attend, states)
            seconds[way] = seconds_of(compute, states.device) / len(states)
        except Exception as error:  # unsupported by this kernel
            yield Figure(f"{name}: {way}", None, note=str(error).splitlines()[0][:100])
            continue
        yield Figure(f"{name}: {way}", 1e6 * seconds[way], "us")
    others = [value for way, value in seconds.items() if way != "tree"]
    if "tree" in seconds and others:
        ratio = min(others) / seconds["tree"]
        bar = LEAST_GAIN if states.shape[4] == 8192 else None
        yield Figure(f"{name}: faster than the others", ratio, "x", at_least=bar)
    expected = outputs.pop("chosen by torch", None)
    for way, output in outputs.items() if expected is not None else ():
        difference = (output - expected).abs().max().item()
        yield Figure(f"{name}: {way} and torch differ by", difference, at_most=0.02)


def _states(
    options: argparse.Namespace, slots: int, num_key_heads: int, _group: int, head_dim: int
) -> torch.Tensor:
    size = 2 * slots * num_key_heads * head_dim * 2
    layers = 1 if options.dry else min(64, 1 + int(LEAST_BYTES / size))
    shape = (layers, 2, 1, num_key_heads, slots, head_dim)
    return torch.randn(shape, device=options.device, dtype=getattr(torch, options.dtype))


def _all_layers(attend: Attend, states: torch.Tensor) -> torch.Tensor:
    return [attend(keys, values) for keys, values in states][-1]


def _ways(tree: Tree, states: torch.Tensor) -> Iterator[tuple[str, Attend]]:
    """Yield functions from keys and values to `(1, width, num_heads, head_dim)`."""
    query, num_key_heads = tree.query, states.shape[3]
    width, slots = query.shape[2], states.shape[4]
    mask = torch.zeros(width, slots, device=query.device, dtype=query.dtype)
    mask[:, slots - width :].masked_fill_(~tree.visible, -1e4)
    packed = query.unflatten(1, (num_key_heads, -1)).flatten(2, 3)
    group = packed.shape[2] // width
    mask = mask.repeat(group, 1)[None, None]
    for name, kernel in KERNELS.items():
        yield name, partial(_scaled_dot_product, kernel, packed, mask, width)
    flexible: Any = flex_attention
    if query.device.type == "cuda":
        flexible = torch.compile(flex_attention, dynamic=False)

    def sees(_batch: Any, _head: Any, node: Any, slot: Any) -> Any:
        behind = slot - tree.lengths[0]
        return (behind < 0) | tree.visible[node, behind.clamp(0, width - 1)]

    # The mask is made once for all layers of a pass, so its time does not count.
    blocks = create_block_mask(sees, 1, None, width, slots, device=query.device.type)
    yield (
        "flex",
        lambda keys, values: flexible(
            query, keys, values, block_mask=blocks, enable_gqa=group > 1
        ).transpose(1, 2),
    )
    yield "flashinfer", _by_flashinfer(tree, states)
    reason = kernel_reason(query.device, query.dtype)
    of_tree = (tree.lengths, tree.positions, tree.ancestors)

    def by_tree(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if reason is not None:
            raise ValueError(reason)
        return tree_attention(query, keys, values, *of_tree)

    yield "tree", by_tree


def _by_flashinfer(tree: Tree, states: torch.Tensor) -> Attend:
    """Return FlashInfer's prefill with a custom mask, planned once for all layers of a pass."""
    planned: list[Any] = []

    def attend(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        import flashinfer  # type: ignore[import-not-found]

        width, slots, device = tree.query.shape[2], keys.shape[2], keys.device
        if not planned:
            space = torch.empty(128 << 20, dtype=torch.uint8, device=device)
            planned.append(flashinfer.BatchPrefillWithRaggedKVCacheWrapper(space, "NHD"))
            seen = torch.ones(width, slots, dtype=torch.bool, device=device)
            seen[:, slots - width :] = tree.visible
            ends = (torch.tensor([0, of], dtype=torch.int32, device=device) for of in seen.shape)
            heads = tree.query.shape[1], keys.shape[1], keys.shape[3]
            types = {"q_data_type": keys.dtype, "custom_mask": seen.flatten()}
            planned[0].plan(*ends, *heads, **types)
        states = (of[0].transpose(0, 1) for of in (tree.query, keys, values))
        return planned[0].run(*states)[None]

    return attend


def _scaled_dot_product(
    kernel: SDPBackend | None,
    query: torch.Tensor,
    mask: torch.Tensor,
    width: int,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    attend = torch.nn.functional.scaled_dot_product_attention
    if kernel is None:
        found = attend(query, keys, values, attn_mask=mask)
    else:
        with sdpa_kernel(kernel):
            found = attend(query, keys, values, attn_mask=mask)
    return found.unflatten(2, (-1, width)).flatten(1, 2).transpose(1, 2)

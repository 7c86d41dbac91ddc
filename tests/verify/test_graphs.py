"""Passes of fixed shapes that are recorded once and replayed give the same text.

A recording is made here of the operations on tensors: a replay does them again on the same memory,
and knows of nothing that Python did between them, as a CUDA graph does.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models import (
    FAMILIES,
    GREEDY,
    Drafter,
    build,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    random_drafter,
    random_tree,
    tiny_model,
)
from specds.generation import generate
from specds.verify import RUNNERS, graphs
from specds.verify.graphs import GraphRunner


def tensors_in(result):
    found = result if isinstance(result, (tuple, list)) else [result]
    return [item for item in found if isinstance(item, torch.Tensor)]


class Recorded(TorchDispatchMode):
    """Like `CudaRecording`: computed once to warm up, once to record, and again at each replay."""

    made = 0

    def __init__(self, compute, memory, device):
        super().__init__()
        self.operations = []
        compute()
        with self:
            self.outputs = compute()
        for output in self.outputs:
            if output is not None:
                output.zero_()  # a recording computes nothing until it is replayed
        type(self).made += 1

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        assert operation not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        ), "the host waits for the device"
        result = operation(*args, **(kwargs or {}))
        self.operations.append((operation, args, kwargs or {}, tensors_in(result)))
        return result

    @torch.inference_mode()  # a graph writes where it likes
    def replay(self):
        for operation, args, kwargs, kept in self.operations:
            taken = {item.untyped_storage().data_ptr() for item in tensors_in(args)}
            for old, new in zip(kept, tensors_in(operation(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() not in taken:
                    old.copy_(new)


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """Has a CPU run what a GPU does."""
    monkeypatch.setitem(RUNNERS, "fast", GraphRunner)
    monkeypatch.setattr(GraphRunner, "_record", Recorded)
    monkeypatch.setattr(graphs, "_SLOTS", (64, 128))
    monkeypatch.setattr(graphs, "_NODES", (0, 4, 16))
    Recorded.made = 0
    graphs._kept.clear()


def fast(model, drafter, seed=0, num_tokens=32, **settings):
    torch.manual_seed(seed)
    settings = {"budget": 16, "max_new_tokens": num_tokens, **GREEDY, **settings}
    return generate(model, prompt(seed=seed), drafter, verification="fast", **settings)


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3"])
def test_texts_are_those_of_plain_decoding(family):
    model = tiny_model(family)
    for seed, make in enumerate([mixed_drafter, oracle_drafter, lambda _: random_drafter()]):
        expected = plain_generate(model, seed, num_tokens=50, **GREEDY)
        kept = {"return_dict_in_generate": True, "self_check": False}
        output = fast(model, make(expected), seed, 50, **kept)
        assert output.sequences.tolist() == [expected]
        assert output.past_key_values.get_seq_length() == len(expected) - 1
    # Three widths, two numbers of slots, and a cache that did not move.
    assert Recorded.made <= 6


def test_batches_are_rounded_up_and_leave_no_trace():
    model = tiny_model("qwen3")
    ids = torch.cat([prompt(seed=seed) for seed in range(3)])
    free = model.generate(ids, max_new_tokens=24, **GREEDY)
    settings = {"eos_token_id": int(free[1, 28]), "pad_token_id": 1, "max_new_tokens": 24, **GREEDY}
    expected = model.generate(ids, **settings)
    for _ in range(2):
        output = generate(model, ids, random_drafter(), budget=7, **settings)
        assert output.sequences.tolist() == expected.tolist()
    alone = fast(model, random_drafter(), num_tokens=24)
    assert alone.sequences.tolist() == free[:1].tolist()


def test_a_request_finds_the_recordings_of_the_one_before_until_the_cache_grows():
    model = tiny_model("llama")
    expected = plain_generate(model, num_tokens=150, **GREEDY)
    made = []
    for num_tokens in (32, 32, 32, 150):
        output = fast(model, mixed_drafter(expected), num_tokens=num_tokens)
        assert output.sequences.tolist() == [expected[: 21 + num_tokens]]
        made.append((Recorded.made, graphs._kept[model].cache.storage))
    assert made[0] == made[1] == made[2]
    assert made[0][0] > 0
    assert made[3][0] > made[2][0]
    assert made[3][1] != made[2][1]


def change_where_it_lies(model):
    model.lm_head.weight.mul_(-1)


def put_another_in_its_place(model):
    up = model.model.layers[0].mlp.up_proj
    up.weight = torch.nn.Parameter(-2 * up.weight)


@torch.no_grad()
def test_other_weights_are_recorded_again_and_changed_ones_are_seen():
    model = build("LlamaConfig", FAMILIES["llama"][1])
    fast(model, random_drafter())
    for change in (change_where_it_lies, put_another_in_its_place, torch.nn.Module.double):
        kept = graphs._kept[model]
        change(model)
        expected = plain_generate(model, **GREEDY)
        assert fast(model, mixed_drafter(expected)).sequences.tolist() == [expected]
        assert (graphs._kept[model] is kept) == (change is change_where_it_lies)


def test_what_cannot_be_recorded_is_computed_after_a_warning(monkeypatch):
    def fail(compute, pool, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(GraphRunner, "_record", fail)
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    with pytest.warns(UserWarning, match="not recorded as CUDA graphs.*not permitted") as warned:
        output = fast(model, mixed_drafter(expected), self_check=False)
    assert len(warned) == 1
    assert output.sequences.tolist() == [expected]
    assert fast(model, mixed_drafter(expected)).sequences.tolist() == [expected]


def test_memory_that_runs_out_within_a_capture_costs_nodes_and_not_the_recordings(monkeypatch):
    left = [2]

    def starved(compute, pool, device):
        if not left.pop():
            return Recorded(compute, pool, device)
        left.extend([0] * 99)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(GraphRunner, "_record", starved)
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    with pytest.warns(UserWarning, match=r"no memory for drafts") as warned:
        output = fast(model, oracle_drafter(expected), self_check=False)
    assert len(warned) == 1
    assert output.sequences.tolist() == [expected]
    assert graphs._kept[model].records


@pytest.mark.parametrize("after", [1, 2, 9])
def test_an_interrupt_leaves_the_next_request_whole(after):
    model = tiny_model("mistral")
    expected = plain_generate(model, **GREEDY)
    puts = iter([None] * after)
    streamer = SimpleNamespace(put=lambda _: next(puts), end=None)  # StopIteration after some
    with pytest.raises(StopIteration):
        fast(model, mixed_drafter(expected), streamer=streamer)
    kept = graphs._kept[model]
    assert fast(model, mixed_drafter(expected)).sequences.tolist() == [expected]
    assert graphs._kept[model] is kept


def test_a_request_within_a_request_has_a_cache_of_its_own():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    inner = []

    def grow(rng, position, max_nodes):
        if position == 30:
            inner.append(fast(model, random_drafter(), 1).sequences.tolist())
        return random_tree(rng, 5)

    assert fast(model, Drafter(grow)).sequences.tolist() == [expected]
    assert inner == [[plain_generate(model, 1, **GREEDY)]]

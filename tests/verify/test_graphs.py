"""Passes of fixed shapes that are recorded once and replayed give the same text.

A recording is made here of the operations on tensors: a replay does them again on the same memory,
and knows of nothing that Python did between them, as a CUDA graph does.
"""

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

from models import (
    FAMILIES,
    GREEDY,
    VOCAB_SIZE,
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
from specds.accept.on_device import Chooser, PassRequest
from specds.bench.generation import curve
from specds.bench.generation.ways import Target
from specds.generation import generate
from specds.verify import RUNNERS, PackedRunner, graphs, support
from specds.verify.batch_inputs import Inputs
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


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2", "deepseek_v3"])
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


def test_a_request_finds_the_recordings_of_the_one_before():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    fast(model, mixed_drafter(expected))
    made = Recorded.made
    assert made > 0
    for _ in range(3):
        output = fast(model, mixed_drafter(expected))
        assert output.sequences.tolist() == [expected]
    assert Recorded.made == made


def test_a_cache_that_grows_is_recorded_again():
    model = tiny_model("llama")
    fast(model, random_drafter(), num_tokens=9)
    storage, made = graphs._kept[model].cache.storage, Recorded.made
    expected = plain_generate(model, num_tokens=150, **GREEDY)
    output = fast(model, oracle_drafter(expected), num_tokens=150)
    assert output.sequences.tolist() == [expected]
    assert graphs._kept[model].cache.storage != storage
    assert Recorded.made > made


def test_other_weights_are_recorded_again_and_changed_ones_are_seen():
    model = build("LlamaConfig", FAMILIES["llama"][1])
    fast(model, random_drafter())
    kept = graphs._kept[model]
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)  # where it lies
    expected = plain_generate(model, **GREEDY)
    assert fast(model, mixed_drafter(expected)).sequences.tolist() == [expected]
    assert graphs._kept[model] is kept
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(
        -2 * model.model.layers[0].mlp.up_proj.weight
    )
    expected = plain_generate(model, **GREEDY)
    assert fast(model, mixed_drafter(expected)).sequences.tolist() == [expected]
    assert graphs._kept[model] is not kept
    kept = graphs._kept[model]
    model.double()
    expected = plain_generate(model, **GREEDY)
    assert fast(model, mixed_drafter(expected)).sequences.tolist() == [expected]
    assert graphs._kept[model] is not kept


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


class Interrupt:
    """A streamer that is interrupted after some tokens."""

    def __init__(self, after):
        self.left = after

    def put(self, value):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def end(self):
        pass


@pytest.mark.parametrize("after", [1, 2, 9])
def test_an_interrupt_leaves_the_next_request_whole(after):
    model = tiny_model("mistral")
    expected = plain_generate(model, **GREEDY)
    with pytest.raises(KeyboardInterrupt):
        fast(model, mixed_drafter(expected), streamer=Interrupt(after))
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


@pytest.mark.parametrize("module", [curve, support])
def test_what_is_measured_and_checked_is_what_a_device_runs(module, monkeypatch):
    asked = []

    def choose(verification, device):
        asked.append((verification, device.type))
        return GraphRunner

    monkeypatch.setattr(module, "runner_class", choose)
    model = build("LlamaConfig", FAMILIES["llama"][1])
    if module is curve:
        curve.verification_costs(Target(model, "fast"), [9], [4])
    else:
        assert support.check_model(model, verification="fast").ok
    assert asked == [("fast", "cpu")]
    assert not graphs._kept[model].in_use.locked()
    assert Recorded.made > 0


class OnDevice(TorchDispatchMode):
    """Finds what makes a host and its device wait for each other."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        devices = {item.device.type for item in tensors_in(args) + tensors_in(result)}
        names = ("_local_scalar_dense", "nonzero", "_to_copy", "copy_")
        waits = operation.overloadpacket.__name__ in names[:2]
        if waits or (operation.overloadpacket.__name__ in names and devices > {"cuda"}):
            self.found.append(str(operation))
        return result


class Static(PackedRunner):
    _static = True


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_a_pass_on_a_device_waits_for_nothing_of_the_host(family):
    config_class, settings = FAMILIES[family]
    config = getattr(transformers, config_class)(**settings)
    with FakeTensorMode(allow_non_fake_inputs=True), OnDevice() as seen:
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
            token_ids = torch.zeros((1, 21), dtype=torch.int64)
        runner = Static(model, prompt_length=21, max_length=99, max_nodes=8, num_rows=2)
        for row in range(2):
            runner.prefill(token_ids, row=row)
        seen.found.clear()
        numbers = torch.zeros(Inputs.size(2, 9), dtype=torch.int64, device="cuda")
        inputs = Inputs.of(numbers, 2, 9)
        logits = runner._pass(inputs, 64)
        greedy = PassRequest(Chooser(LogitsProcessorList(), do_sample=False), 3, VOCAB_SIZE)
        reported = runner._accept(inputs, logits, greedy)
        assert reported.shape == (2, 1 + (2 + 3) * 9)
        warped = LogitsProcessorList([TemperatureLogitsWarper(2.0), TopPLogitsWarper(0.9)])
        runner._accept(inputs, logits, PassRequest(Chooser(warped, do_sample=True)))
        assert seen.found == []
        reported.cpu()  # the control
        assert len(seen.found) == 1

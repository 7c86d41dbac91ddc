"""Backend `packed` with the kernel: the same texts, no mask, recordings for all lengths."""

import weakref
from functools import partial
from unittest.mock import Mock

import pytest
import torch

from models import (
    _MIXED,
    GREEDY,
    SAMPLING,
    SHAPE,
    WINDOW,
    build,
    decodes_alike,
    oracle_drafter,
    prompt,
    tree_generate,
)
from recorded import Recorded, kept_of, record
from specds.transformers.kernels import operations as module
from specds.transformers.verify import attention, fused_forward, recordings
from specds.transformers.verify.inputs import MaskBuilder
from specds.transformers.verify.recordings import release
from triton_on_cpu import interpreted

_WIDE = {**SHAPE, "head_dim": 16}
WINDOWS = {"sliding_window": WINDOW, "layer_types": _MIXED}
MODELS = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {}),
    "gemma3": ("Gemma3TextConfig", WINDOWS),
    # By `packed_model`: soft caps, and sinks.
    "gemma2": ("Gemma2Config", {**WINDOWS, "attn_logit_softcapping": 3.0}),
    "gpt_oss": ("GptOssConfig", {**WINDOWS, "num_local_experts": 2, "num_experts_per_tok": 1}),
}


def made(name, dtype=torch.float32, **more):
    config_class, settings = MODELS[name]
    options = {"attn_implementation": "eager"} if name in ("gemma2", "gpt_oss") else {}
    return build(config_class, {**_WIDE, **settings, **more}, dtype, **options)


@pytest.fixture(scope="module", autouse=True)
def _on_cpu():
    with interpreted(), pytest.MonkeyPatch.context() as patch:
        # Tiles as on a device: fewer programs to interpret.
        patch.setattr(module, "_TILE_BYTES", 16_384)
        patch.setattr(module, "_MIN_SLOTS", 128)
        yield


@pytest.fixture
def calls(monkeypatch):
    """The calls of the kernel; a mask is an error."""
    attend = Mock(side_effect=attention.tree_attention)
    monkeypatch.setattr(attention, "tree_attention", attend)
    monkeypatch.setattr(MaskBuilder, "build", Mock(side_effect=AssertionError("a mask was made")))
    return attend.mock_calls


# The check of a model makes masks.
FAST = {"max_nodes": 6, "verification": "packed", "check_model": False}
same_text = partial(decodes_alike, **FAST)


@pytest.mark.parametrize(
    ("name", "records"),
    [("llama", True), ("qwen3", False), ("gemma3", True), ("gemma2", True), ("gpt_oss", False)],
)
def test_texts_equal_the_baseline(name, records, calls, monkeypatch):
    if records:
        record(monkeypatch, 0, 6)
    model = made(name)
    expected = same_text(model, num_tokens=10).sequences.tolist()
    assert len(calls) >= 2
    if name != "llama":
        # A control: without windows, caps and sinks the text differs.
        plain = {"window": None, "softcap": None, "sinks": None}
        attend = attention.tree_attention
        monkeypatch.setattr(attention, "tree_attention", lambda *a, **kw: attend(*a, **kw | plain))
        recordings._free.clear()
        drafter = oracle_drafter(expected[0])
        wrong = tree_generate(model, drafter, num_tokens=10, **GREEDY, **FAST).sequences.tolist()
        assert (wrong == expected) == (name == "qwen3")


def test_batches_and_samples_equal_the_baseline(calls):
    ids = torch.cat([prompt(seed=seed) for seed in range(2)])
    same_text(made("qwen3"), num_tokens=8, ids=ids, mode=SAMPLING)
    assert calls


def test_recordings_do_not_depend_on_lengths(calls, monkeypatch):
    record(monkeypatch, 0, 6)
    model = made("llama", num_hidden_layers=1)
    same_text(model, oracle_drafter, 90)
    kept = kept_of(model)
    # At most two widths, over a context that grows to five times its length.
    made_before = sum(len(buffers.recordings) for buffers in kept.passes.values())
    assert Recorded.made == made_before <= 2
    for length in (40, 9):
        same_text(model, oracle_drafter, 13, ids=prompt(length, seed=length))
        assert Recorded.made == made_before


@torch.no_grad()
def test_changed_weights_apply_to_the_next_request(monkeypatch):
    record(monkeypatch, 6)
    model, texts = made("qwen3", attention_bias=True), []
    for name in (None, "q_proj", "v_proj", "up_proj"):
        for parameter, weight in model.named_parameters():
            if name is not None and name in parameter:
                weight.data.mul_(-1.0)  # which changes no version
        texts.append(tuple(same_text(model, oracle_drafter, 8).sequences[0].tolist()))
    assert Recorded.made == 1
    assert len({*texts}) == len(texts)


def test_weights_are_copied_if_they_fit_and_freed_on_release(monkeypatch):
    record(monkeypatch, 6)
    model = made("llama")
    same_text(model, num_tokens=4)
    kept = kept_of(model)
    layer = model.model.layers[0]
    parts = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
    parts += [layer.mlp.gate_proj, layer.mlp.up_proj]
    copied = sum(of.nbytes for joined in kept.forward._joined for of in joined.copies.values())
    assert copied == 2 * sum(part.weight.nbytes for part in parts)
    copy = weakref.ref(kept.forward)
    del kept
    release(model)
    assert copy() is None
    device = torch.device("cuda")
    for free, has_room in ((4 * 2**20, True), (2**10, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 2**30))
        assert fused_forward._has_room(model.model.layers, device) == has_room
    monkeypatch.setattr(fused_forward, "_has_room", lambda *_: False)
    same_text(model, num_tokens=8)
    assert not kept_of(model).forward._joined


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_failed_kernels_warn_and_masks_are_made(name, monkeypatch):
    record(monkeypatch, 6)
    model = made(name)
    monkeypatch.setattr(attention, "tree_attention", Mock(side_effect=Exception("shared memory")))
    with pytest.warns(UserWarning, match="slower: Triton's kernels failed|attention with s_aux"):
        output = decodes_alike(model, num_tokens=8)
    assert output.stats.verification == ("packed" if name == "llama" else "model")
    assert output.stats.reason
    again = decodes_alike(model, num_tokens=8)  # without a second warning
    assert again.stats.reason == output.stats.reason


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_unsupported_kernel_falls_back_to_masks(dtype, monkeypatch):
    model = build("LlamaConfig", {**_WIDE, "head_dim": 8 if dtype == torch.float32 else 16}, dtype)
    monkeypatch.setattr(attention, "tree_attention", Mock(side_effect=AssertionError))
    same_text(model, num_tokens=12)

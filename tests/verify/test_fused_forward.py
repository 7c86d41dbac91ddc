"""The fused forward: results of the model's own, and the models that have none."""

from contextlib import nullcontext
from types import MethodType

import pytest
import torch
import transformers
from transformers.models.llama import modeling_llama

from models import (
    _MIXED,
    FAMILIES,
    GREEDY,
    SHAPE,
    WINDOW,
    build,
    decodes_alike,
    plain_generate,
    prompt,
    tiny_model,
)
from specds._core import TokenTree
from specds.drafters.session import EMPTY_TREE
from specds.verify import PackedRunner, packed
from specds.verify.fused_forward import unfused_reason
from triton_on_cpu import interpreted

TREE = TokenTree([3, 4, 5, 6, 7], [-1, -1, 0, 2, 1], [0.5] * 5)
OTHER = TokenTree([8, 9], [-1, 0], [0.5] * 2)
WINDOWS = {"sliding_window": WINDOW, "layer_types": _MIXED}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
ALL = {"attention_bias": True, "use_sliding_window": True, **WINDOWS}
MODELS = {
    "llama": ("LlamaConfig", {}),
    "biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "one head of the keys": ("LlamaConfig", {"num_key_value_heads": 1}),
    "a key head each": ("LlamaConfig", {"num_key_value_heads": 4}),
    "wide heads": ("MistralConfig", {"head_dim": 24, "sliding_window": None}),
    "windows": ("MistralConfig", {"sliding_window": WINDOW}),
    "scaled angles": ("LlamaConfig", {"rope_parameters": YARN}),
    "gelu": ("LlamaConfig", {"hidden_act": "gelu_pytorch_tanh"}),
    "qwen2": ("Qwen2Config", {}),
    "some windows": ("Qwen2Config", {"use_sliding_window": True, **WINDOWS}),
    "qwen3": ("Qwen3Config", {}),
    "gemma3": ("Gemma3TextConfig", WINDOWS),
    "qwen3 with biases and windows": ("Qwen3Config", ALL),
}


def passes(model, *, lean, by_kernels=False):
    """Return the logits of passes over one row and over two, and the states."""
    assert not unfused_reason(model)
    with pytest.MonkeyPatch.context() as patch, interpreted() if by_kernels else nullcontext():
        patch.setattr(packed, "unfused_reason", lambda _: "" if lean else "for a test")
        return logits_and_states(model)


def logits_and_states(model):
    runner = PackedRunner(model, prompt_length=21, max_length=99, max_nodes=8, num_rows=2)
    runner.prefill_rows([prompt(21), prompt(20, 1)])
    logits = []
    for trees in ([TREE, OTHER], [EMPTY_TREE, TREE]):
        logits += runner.verify_rows([7, 8], trees)
    runner.commit_rows([[], [1, 4]])
    layers = [layer for row in (0, 1) for layer in runner.cache.committed(row).layers]
    states = [states.clone() for layer in layers for states in (layer.keys, layer.values)]
    runner.leave(1)
    logits += [runner.verify_rows([5], [EMPTY_TREE])[0], runner.verify_rows([6], [TREE])[0]]
    return torch.cat(logits), states


def changed(name, dtype, **settings):
    """Build a model whose vectors are not constant, so that each of their numbers matters."""
    config_class, of_name = MODELS[name]
    model = build(config_class, {**SHAPE, **settings, **of_name}, dtype)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.add_(torch.linspace(-0.1, 0.1, len(weight)))
    return model


def assert_near(found, expected, dtype, roundings):
    for mine, theirs in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
        assert mine.dtype == theirs.dtype == dtype
        most = roundings * torch.finfo(dtype).eps * float(theirs.abs().max())
        assert float((mine - theirs).abs().max()) <= most


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_fused_forward_equals_the_packed_model(name, dtype):
    model = changed(name, dtype)
    expected = passes(model, lean=False)
    assert_near(passes(model, lean=True), expected, dtype, 16)
    # A control: another scale of a single norm changes far more.
    model.model.norm.weight.mul_(1.1)
    assert not torch.allclose(passes(model, lean=True)[0], expected[0], rtol=0.05)


BY_KERNELS = [(name, torch.float32) for name in ("biases", "qwen3", "gemma3")]
BY_KERNELS += [(name, torch.bfloat16) for name in ("wide heads", "qwen2", "gemma3", "gelu")]


@torch.no_grad()
@pytest.mark.parametrize(("name", "dtype"), BY_KERNELS)
def test_fused_forward_with_kernels_equals_the_model(name, dtype):
    model = changed(name, dtype, head_dim=16, hidden_size=40, intermediate_size=1100)
    expected = passes(model, lean=False)
    assert_near(passes(model, lean=True, by_kernels=True), expected, dtype, 32)


CHANGES = {
    "hook": lambda of: of.register_forward_hook(lambda _, args, output: output),
    "hook before": lambda of: of.register_forward_pre_hook(lambda _, args: args),
    "class": lambda of: setattr(of, "__class__", type("Other", (type(of),), {})),
    "forward": lambda of: setattr(of, "forward", MethodType(type(of).forward, of)),
    "part": lambda of: setattr(of, "another", torch.nn.Identity()),
    "weight": lambda of: setattr(of, "another", torch.nn.Parameter(torch.ones(1))),
    "training": lambda of: setattr(of, "training", True),
}


OF_A_LAYER = ("", ".self_attn", ".self_attn.k_norm", ".mlp", ".post_attention_layernorm")
PARTS = ["model", "model.norm", *(f"model.layers.1{part}" for part in OF_A_LAYER)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_part_rules_out_the_fused_forward(change, part):
    model = build(*FAMILIES["qwen3"])
    assert not unfused_reason(model)
    CHANGES[change](model.get_submodule(part))
    assert unfused_reason(model).startswith(part)


def test_other_families_hooks_and_classes_rule_out_the_fused_forward(monkeypatch):
    model = tiny_model("llama")
    assert not unfused_reason(model)
    assert unfused_reason(tiny_model("gpt_neox"))
    config = transformers.LlamaConfig(**{**SHAPE, "pad_token_id": 0})
    assert unfused_reason(transformers.AutoModelForSequenceClassification.from_config(config))
    settings = {**FAMILIES["gemma3"][1], "final_logit_softcapping": 3.0}
    assert unfused_reason(build("Gemma3TextConfig", settings))
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert unfused_reason(model)
    handle.remove()
    assert not unfused_reason(model)
    computed = modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda *args: -computed(*args))
    assert unfused_reason(model)


def negated(model, part):
    model.get_submodule(part).register_forward_hook(lambda _, args, output: -output)


def replaced(model, part):
    """Replace a projection, as quantization and adapters do."""
    projection = model.get_submodule(part)
    model.set_submodule(part, torch.nn.Sequential(projection, torch.nn.Tanh()))


@pytest.mark.parametrize(
    ("part", "change", "stays"),
    [
        ("layers.0.mlp", negated, False),
        ("layers.1.input_layernorm", negated, False),
        # A projection is called as it is, whatever it is and whatever hooks it has.
        ("layers.1.mlp.up_proj", negated, True),
        ("layers.0.mlp.down_proj", replaced, True),
        ("layers.0.self_attn.q_proj", replaced, True),
    ],
)
def test_texts_of_changed_models_equal_the_baseline(part, change, stays):
    model = build(*FAMILIES["llama"])
    free = plain_generate(model, **GREEDY)
    change(model.model, part)
    assert (unfused_reason(model) == "") == stays
    output = decodes_alike(model, verification="packed")
    assert output.sequences.tolist() != [free]
    why = f"no fused forward: model.{part} has a hook or a forward of its own"
    assert output.stats.reason == ("" if stays else why)


class Quantized(torch.Tensor):
    """A weight that supports the call of a linear layer only, as those of torchao."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            assert not torch.is_inference_mode_enabled()
            args = [of.as_subclass(torch.Tensor) if type(of) is cls else of for of in args]
            return func(args[0], args[1], args[2])
        return super().__torch_function__(func, types, args, kwargs or {})


def test_quantized_weights_are_called_through_their_layers():
    model = build(*FAMILIES["llama"])
    for layer in model.model.layers:
        weight = layer.mlp.up_proj.weight.data.as_subclass(Quantized)
        layer.mlp.up_proj.weight = torch.nn.Parameter(weight, requires_grad=False)
    assert decodes_alike(model, verification="packed").stats.reason == ""


def short_runner(model):
    runner = PackedRunner(model, prompt_length=9, max_length=10, max_nodes=0)
    runner.prefill_rows([prompt(9)])
    return runner


@torch.no_grad()
def test_cache_grown_in_inference_mode_can_be_written_outside():
    runner = short_runner(tiny_model("llama"))
    storage = runner.cache.storage
    while runner.cache.storage == storage:
        assert runner.verify_rows([5], [TREE])[0].is_inference()
        runner.commit_rows([[1, 4]])
    assert not any(block.is_inference() for block in runner.cache._blocks)

"""The fused forward: results of the model's own, and the models that have none."""

from types import MethodType

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama import modeling_llama

from models import (
    _MIXED,
    FAMILIES,
    SHAPE,
    WINDOW,
    build,
    prompt,
    tiny_model,
)
from specds._core import TokenTree
from specds.drafters.session import EMPTY_TREE
from specds.transformers.verify.fused_forward import unfused_reason
from specds.transformers.verify.packed import PackedRunner
from triton_on_cpu import interpreted

TREE = TokenTree([3, 4, 5, 6, 7], [-1, -1, 0, 2, 1], [0.5] * 5)
OTHER = TokenTree([8, 9], [-1, 0], [0.5] * 2)
WINDOWS = {"sliding_window": WINDOW, "layer_types": _MIXED}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
ALL = {"attention_bias": True, "use_sliding_window": True, **WINDOWS}
FLOAT, HALF = torch.float32, torch.bfloat16
SHARED = {"tie_word_embeddings": True, "num_key_value_heads": 1, "rope_parameters": YARN}
MODELS = {
    "biases": (FLOAT, "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "tied, one key head, scaled angles": (FLOAT, "LlamaConfig", SHARED),
    "gelu": (HALF, "LlamaConfig", {"hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 4}),
    "wide heads": (HALF, "MistralConfig", {"head_dim": 24, "sliding_window": None}),
    "windows": (HALF, "MistralConfig", {"sliding_window": WINDOW}),
    "qwen2": (HALF, "Qwen2Config", {"use_sliding_window": True, **WINDOWS}),
    "qwen3": (FLOAT, "Qwen3Config", ALL),
    "gemma3": (FLOAT, "Gemma3TextConfig", WINDOWS),
    "gemma3 in half precision": (HALF, "Gemma3TextConfig", WINDOWS),
}


def logits_and_states(model):
    """Return the logits of passes over one row and over two, and the states."""
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


def made(name):
    """Build a model whose vectors are not constant, so that each of their numbers matters."""
    dtype, config_class, of_name = MODELS[name]
    sizes = {**SHAPE, "head_dim": 16, "hidden_size": 40, "intermediate_size": 1100}
    model = build(config_class, {**sizes, **of_name}, dtype)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.add_(torch.linspace(-0.1, 0.1, len(weight)))
    return model


def assert_equals_the_packed_model(model):
    dtype, expected = model.dtype, logits_and_states(model)
    with interpreted():
        assert not unfused_reason(model)
        found = logits_and_states(model)
    for mine, theirs in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
        assert mine.dtype == theirs.dtype == dtype
        most = 32 * torch.finfo(dtype).eps * float(theirs.abs().max())
        assert float((mine - theirs).abs().max()) <= most
    # A control: another scale of a single norm changes far more.
    model.model.norm.weight.mul_(1.1)
    assert not torch.allclose(logits_and_states(model)[0], found[0], rtol=0.05)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_fused_forward_equals_the_packed_model(name):
    assert_equals_the_packed_model(made(name))


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


class Quantized(torch.Tensor):
    """A weight that supports the call of a linear layer only, as those of torchao."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            args = [of.as_subclass(torch.Tensor) if type(of) is cls else of for of in args]
            return func(args[0], args[1], args[2])
        return super().__torch_function__(func, types, args, kwargs or {})


@torch.no_grad()
def test_projections_are_called_as_they_are():
    model = made("biases")
    first, second = model.model.layers
    second.mlp.up_proj.register_forward_hook(lambda _, args, output: -output)
    for part, name in ((first.mlp, "down_proj"), (first.self_attn, "q_proj")):
        # As quantization and adapters do.
        setattr(part, name, torch.nn.Sequential(getattr(part, name), torch.nn.Tanh()))
    weight = second.mlp.gate_proj.weight.data.as_subclass(Quantized)
    second.mlp.gate_proj.weight = torch.nn.Parameter(weight, requires_grad=False)
    assert_equals_the_packed_model(model)


@torch.no_grad()
def test_models_without_a_fused_forward_have_a_reason():
    model = made("biases")
    model.model.layers[1].mlp.register_forward_hook(lambda _, args, output: -output)
    with interpreted():
        assert short_runner(model).reason == (
            "no fused forward: model.layers.1.mlp has a hook or a forward of its own"
        )


def short_runner(model):
    runner = PackedRunner(model, prompt_length=9, max_length=10, max_nodes=0)
    runner.prefill_rows([prompt(9)])
    return runner


@torch.no_grad()
def test_cache_grown_in_inference_mode_can_be_written_outside():
    runner = short_runner(tiny_model("llama"))
    storage = runner.cache.storage
    while runner.cache.storage == storage:
        with torch.inference_mode():
            runner.verify_rows([5], [TREE])
        runner.commit_rows([[1, 4]])
    assert not any(block.is_inference() for block in runner.cache._blocks)


class Launches(TorchDispatchMode):
    """Counts operations, which launch a kernel each unless they only make a view."""

    count = 0
    free = ("aten::empty", "aten::new_empty", "aten::_unsafe_view", "aten::detach")

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not (operation.is_view or operation.name().startswith(self.free))
        return operation(*args, **(kwargs or {}))


def num_launches(config_class, num_layers):
    """Return the launches of a pass over two tokens."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "vocab_size": 1000}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": num_layers}
    runner = PackedRunner(
        build(config_class, {**sizes, **heads}), prompt_length=20, max_length=512, max_nodes=2
    )
    runner.prefill_rows([torch.arange(20)[None]])
    buffers, end = runner._filled([0], [TokenTree([0], [-1])])
    numbers = buffers.inputs.numbers.clone()
    for launches in (Launches(), Launches()):  # the first pass fills caches
        with launches:
            buffers.inputs.numbers.copy_(numbers)
            runner._pass(buffers.inputs, end)
    runner.close()
    return launches.count


@pytest.mark.parametrize("config_class", ["LlamaConfig", "Qwen3Config", "Gemma3TextConfig"])
@torch.no_grad()
def test_a_layer_has_nine_launches_and_a_pass_at_most_twelve_others(config_class):
    with interpreted():
        one, two = (num_launches(config_class, num_layers) for num_layers in (1, 2))
    assert two - one == 9
    assert one - 9 <= 12
    assert num_launches(config_class, 1) > 30  # a control: transformers' own layer

"""The backend `native` on models of transformers: weights where they lie, in both precisions."""

from itertools import pairwise

import pytest
import torch
from transformers import DynamicCache

from models import (
    FAMILIES,
    GREEDY,
    SAMPLING,
    SHAPE,
    WIDE,
    WINDOW,
    build,
    decodes_alike,
    prompt,
    random_drafter,
    tree_generate,
)
from specds import UnsupportedModelError, generate, warm_up
from specds._core import ForwardCache
from specds.transformers.verify.in_place import core_of
from specds.transformers.verify.support import check_model, require_support

GEMMA = {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 9}
MODELS = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama with biases": ("LlamaConfig", {"mlp_bias": True, "attention_bias": True}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"rms_norm_eps": 1e-2}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": WINDOW, **GEMMA}),
}


def wide(family, dtype=torch.float32, **settings):
    """Build a model whose vectors are not constant, so that each of their numbers matters."""
    config_class, of_family = MODELS[family]
    model = build(config_class, {**WIDE, **of_family, **settings}, dtype)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.linspace(-0.1, 0.1, len(weight)))
    return model


def everything(model, mode, **settings):
    asked = {"return_dict_in_generate": True, "output_logits": True, **mode, **settings}
    return tree_generate(model, random_drafter(), **asked)


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING])
@pytest.mark.parametrize("family", MODELS)
def test_text_equals_the_baseline_and_logits_do_not_depend_on_drafts(family, mode):
    model = wide(family)
    output = decodes_alike(model, mode=mode)
    assert (output.stats.verification, output.stats.reason) == ("native", "")
    assert output.stats.num_accepted_tokens > 0
    drafted, plain = (everything(model, mode, max_nodes=number) for number in (12, 0))
    assert torch.equal(torch.cat(drafted.logits), torch.cat(plain.logits))


@pytest.mark.parametrize("family", MODELS)
def test_bfloat16_is_within_its_rounding_and_does_not_depend_on_drafts(family):
    model = wide(family, torch.bfloat16)
    found = check_model(model, verification="native")
    assert found.ok
    assert 0 < found.max_error < 0.06
    drafted, plain = (everything(model, GREEDY, max_nodes=number) for number in (12, 0))
    assert torch.equal(torch.cat(drafted.logits), torch.cat(plain.logits))


def test_batch_and_kept_cache_equal_the_baseline():
    model = wide("gemma3")
    decodes_alike(model, lambda _: random_drafter(), ids=torch.cat([prompt(), prompt(seed=1)]))
    cache = DynamicCache()
    first = everything(model, GREEDY, cache=cache)
    plain = model.generate(prompt(), max_new_tokens=32, return_dict_in_generate=True, **GREEDY)
    expected = getattr(plain, "cache", None) or plain.past_key_values
    for mine, theirs in zip(cache.layers, expected.layers, strict=True):
        length = theirs.keys.shape[2]  # without what a window has dropped
        torch.testing.assert_close(mine.keys[:, :, -length:], theirs.keys)
        torch.testing.assert_close(mine.values[:, :, -length:], theirs.values)
    longer = torch.cat([first.sequences, prompt(seed=3)], dim=1)
    settings = {"max_new_tokens": 20, **GREEDY}
    again = generate(model, longer, random_drafter(), cache=cache, max_nodes=9, **settings)
    assert torch.equal(again.sequences, model.generate(longer, **settings))
    warm_up(model)


@torch.no_grad()
def test_two_threads_compute_the_bits_of_one():
    core = core_of(wide("qwen3", hidden_size=256, intermediate_size=1024))
    logits = []
    for core.threads in (1, 2):
        cache = ForwardCache(core.weights)
        logits.append(core.compute(cache, [(0, prompt()[0], None, 21)]))
    assert (logits[0] == logits[1]).all()
    assert logits[0].std() > 0


@torch.no_grad()
def test_changes_of_weights_are_seen():
    model = wide("qwen3")
    texts = [decodes_alike(model).sequences.tolist()]
    for change in (
        lambda: model.model.layers[1].mlp.up_proj.weight.mul_(-1),
        lambda: model.model.layers[0].self_attn.k_norm.weight.mul_(-3),
        lambda: setattr(model.lm_head.weight, "data", model.lm_head.weight.flip(0)),
    ):
        change()
        texts.append(decodes_alike(model).sequences.tolist())
    assert all(one != other for one, other in pairwise(texts))


def set_epsilon(layers):
    for module in layers.modules():
        for name in {"variance_epsilon", "eps"} & vars(module).keys():
            setattr(module, name, 2.0)


def swap_layers(model):
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]


CONSTANTS = {
    "scaling of a layer": lambda model: setattr(model.model.layers[1].self_attn, "scaling", 3.0),
    "epsilon of a layer": lambda model: set_epsilon(model.model.layers[1]),
    "epsilon of all norms": set_epsilon,
    "epsilon of the configuration": lambda model: setattr(model.config, "rms_norm_eps", 3.0),
    "order of layers": swap_layers,
}


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("change", CONSTANTS)
def test_constants_that_change_after_a_request_are_seen(change, family):
    if (family, change) == ("gemma3", "order of layers"):
        pytest.skip("transformers itself fails: windows are chosen by the number of a layer")
    model = wide(family)
    before = decodes_alike(model, num_tokens=16)
    assert before.stats.verification == "native"
    CONSTANTS[change](model)
    output = decodes_alike(model, num_tokens=16)
    is_lasting = change in ("epsilon of all norms", "epsilon of the configuration")
    assert (output.stats.verification == "native") == is_lasting
    assert output.stats.num_accepted_tokens > 0


CHANGES = {
    "hook": lambda of: of.register_forward_hook(lambda _, args, output: output),
    "class": lambda of: setattr(of, "__class__", type("Other", (type(of),), {})),
}
PARTS = ["model.norm", "lm_head", "model.embed_tokens", "model.rotary_emb"]
PARTS += [f"model.layers.1{part}" for part in ("", ".self_attn.q_proj", ".mlp.act_fn")]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_part_is_verified_by_packed_for_a_reason(change, part):
    model = wide("llama")
    assert require_support(model, verification="auto")[0].name == "native"
    CHANGES[change](model.get_submodule(part))
    output = decodes_alike(model, num_tokens=2)
    assert output.stats.verification == "packed"
    assert output.stats.reason.startswith(part)


OTHERS = {
    "heads of 8": (SHAPE, "multiple of 16"),
    "hidden 72": ({**WIDE, "hidden_size": 72}, "not a multiple of 32"),
    "gelu": ({**WIDE, "hidden_act": "gelu"}, "act_fn is not"),
    "yarn": (
        {**WIDE, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4}},
        "scales rotations",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_model_that_the_core_does_not_compute_is_refused_with_the_reason(name):
    settings, reason = OTHERS[name]
    model = build("LlamaConfig", settings)
    assert reason in decodes_alike(model).stats.reason
    with pytest.raises(UnsupportedModelError, match=f"by 'native': .*{reason}"):
        tree_generate(model, random_drafter(), verification="native")


def test_half_precision_transposed_weights_and_autocast_are_left_to_packed():
    for model in (wide("llama", torch.float16), build(*FAMILIES["gpt_neox"])):
        assert require_support(model, verification="auto")[0].name == "packed"
    model = wide("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in require_support(model, verification="auto")[1]
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.T.contiguous().T
    assert "contiguous" in require_support(model, verification="auto")[1]

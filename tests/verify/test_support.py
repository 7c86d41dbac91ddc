"""Checks of models: unsupported ones are refused, and wrong logits are found."""

from functools import partial

import pytest
import torch
import transformers
from transformers import AttentionInterface

import specds.transformers.verify.support as support
from models import (
    _MIXED,
    FAMILIES,
    GREEDY,
    SHAPE,
    VOCAB_SIZE,
    WIDE,
    WINDOW,
    build,
    decodes_alike,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    random_drafter,
    tiny_model,
)
from specds.generation import generate
from specds.generation.runner import UnsupportedModelError
from specds.transformers.acceleration import accelerate
from specds.transformers.verify import inputs
from specds.transformers.verify.generic import Runner
from specds.transformers.verify.in_place import InPlaceRunner
from specds.transformers.verify.inputs import LocalAttention
from specds.transformers.verify.packed import PackedRunner
from specds.transformers.verify.path_rows import PathRows
from specds.transformers.verify.support import (
    RUNNERS,
    Support,
    check_model,
    is_recurrent,
    require_support,
    unsupported_reasons,
)

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "eos_token_id")
_HEADS = ("num_attention_heads", "num_key_value_heads", "pad_token_id")
_SMALL = {name: SHAPE[name] for name in (*_SIZES, *_HEADS)}
_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
_LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
_LOCAL = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}
_LOCAL |= {"attention_types": [[["global", "local"], 1]]}
_TUNED = {**FAMILIES["llama4"][1], "attn_temperature_tuning": True, "floor_scale": 8192}
_DECODER = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "is_decoder": True}

# name -> configuration class, its settings, why it is refused
REFUSED = {
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "alibi"),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4}, "alibi"),
    "falcon": ("FalconConfig", {**_PLAIN, "num_attention_heads": 4, "alibi": True}, "alibi"),
    "mamba": ("MambaConfig", _PLAIN, "layers of type linear_attention"),
    "qwen3_next": ("Qwen3NextConfig", _SMALL, "layers of type linear_attention"),
    "falcon_h1": ("FalconH1Config", _SMALL, "layers of type hybrid"),
    "rwkv": ("RwkvConfig", _PLAIN, "recurrent state"),
    "gpt_neo": ("GPTNeoConfig", _LOCAL, "local attention"),
    "longrope": ("Phi3Config", {**_SMALL, "rope_parameters": _LONGROPE}, "rope type longrope"),
    "dynamic": ("LlamaConfig", {**_SMALL, "rope_parameters": _DYNAMIC}, "rope type dynamic"),
    "mrope": ("LlamaConfig", {**_SMALL, "rope_parameters": _SECTIONS}, "mrope"),
    "llama4": ("Llama4TextConfig", _TUNED, "scales queries by cache slots"),
    "bart": ("BartConfig", _DECODER, "takes no `position_ids`"),
    "git": ("GitConfig", {**_SMALL, "vision_config": {"num_hidden_layers": 1}}, "of an image"),
    "gpt_neox_japanese": ("GPTNeoXJapaneseConfig", _SMALL, "no view of a cache of several rows"),
}


def generate_with(model, **kwargs):
    return generate(model, prompt(), random_drafter(), **{"max_new_tokens": 2, **kwargs})


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*")  # some of these families warn of missing kernels
def test_unsupported_family_is_refused_with_its_reason(name):
    config_class, settings, reason = REFUSED[name]
    settings = {"vocab_size": VOCAB_SIZE, **settings}
    with torch.device("meta"):
        config = getattr(transformers, config_class)(**settings)
        config.is_encoder_decoder = False
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    verdict = check_model(model)
    assert (verdict.ok, verdict.max_error) == (False, None)
    # `auto` runs recurrent models by chains, which a meta device cannot check.
    ways = ("packed", "model") if is_recurrent(model) else ("auto", "packed", "model")
    for verification in ways:
        with pytest.raises(UnsupportedModelError, match=f"cannot verify .*{reason}") as refused:
            require_support(model, verification=verification)
        can_chain = is_recurrent(model) and not unsupported_reasons(model, "chain")
        assert ("use verification='chain'" in str(refused.value)) is can_chain
        assert not is_recurrent(model) or "verification='model'" not in str(refused.value)


def test_encoder_decoder_model_is_refused():
    config = transformers.T5Config(d_model=32, num_layers=2, vocab_size=VOCAB_SIZE)
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModelError, match="it is an encoder-decoder model"):
        generate_with(model, decoder_start_token_id=0)


_FLEX = {"attn_implementation": "flex_attention", "verification": "model"}
UNFIT = {
    "attention": ({}, _FLEX, "'flex_attention' takes no tree"),
    "training": ({"attention_dropout": 0.1}, {"train": True}, r"call `model\.eval\(\)`"),
    "checkpointing": ({}, {"train": True, "checkpoint": True}, "which keeps no KV cache"),
    "tensor parallel": ({}, {"_tp_size": 2}, "weights are spread over processes"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_unsupported_setting_of_a_model_is_refused(name):
    settings, options, reason = UNFIT[name]
    attention = options.get("attn_implementation", "sdpa")
    model = build("LlamaConfig", {**_SMALL, **settings}, attn_implementation=attention)
    model.train("train" in options)
    model.model.gradient_checkpointing = "checkpoint" in options
    model._tp_size = options.get("_tp_size")
    with pytest.raises(UnsupportedModelError, match=reason):
        generate_with(model, verification=options.get("verification", "auto"))


def test_distributed_weights_are_refused(monkeypatch):
    monkeypatch.setattr(support, "is_deepspeed_zero3_enabled", lambda: True)
    generate_with(tiny_model("llama"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UnsupportedModelError, match="weights are spread over processes"):
        generate_with(tiny_model("llama"))


def test_model_in_training_without_dropout_decodes():
    model = build("LlamaConfig", _SMALL).train()
    decodes_alike(model)
    model.model.layers[0].mlp.append_dropout = torch.nn.Dropout(0.1)
    with pytest.raises(UnsupportedModelError, match="dropout is random"):
        generate_with(model)


def causal(module, query, key, value, attention_mask, scaling, **kwargs):
    """Attend as flash attention does, without a mask."""
    assert attention_mask is None
    seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    seen = seen.tril(key.shape[2] - query.shape[2])
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2), None


def test_model_loaded_with_flash_attention_decodes(monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", causal)
    model = build("LlamaConfig", WIDE)
    expected = plain_generate(model, **GREEDY)
    model.config._attn_implementation_internal = "flash_attention_2"
    output = decodes_alike(model, oracle_drafter)
    assert output.sequences.tolist() == [expected]
    assert output.stats.num_accepted_tokens > 12
    with pytest.raises(UnsupportedModelError, match="'flash_attention_2' takes no tree mask"):
        generate_with(model, verification="model")


@pytest.mark.parametrize("verification", sorted({*RUNNERS} - {"native"}))
@pytest.mark.parametrize("family", FAMILIES)
def test_check_accepts_correct_models(family, verification):
    assert check_model(tiny_model(family), verification=verification).ok
    if family != "deepseek_v3":  # which mixes dtypes
        # Errors are measured in float32, where no processor's way of adding up float64 is seen.
        exact = check_model(tiny_model(family, torch.float64), verification=verification)
        assert exact.max_error < torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_check_tolerates_rounding_of_the_dtype(family, dtype):
    assert check_model(tiny_model(family, dtype)).ok


def test_overflow_of_the_model_itself_is_a_reason():
    model = build("LlamaConfig", WIDE, torch.float16)
    with torch.no_grad():
        model.lm_head.weight[3] = 60_000
        model.model.norm.weight.fill_(60_000)
    (reason,) = check_model(model).reasons
    assert "own logits are not finite in torch.float16: load it in bfloat16" in reason


def test_check_tolerates_tensor_float_32(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(support, "tree_error", lambda *_: 0.01)
    assert "pass `check_model=False`" in check_model(model).reasons[0]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert check_model(model).ok


def test_check_finds_ignored_positions_and_accepts_shifted_ones():
    model = build("MptConfig", {**REFUSED["mpt"][1], "vocab_size": 97})
    forward = model.forward
    model.forward = lambda *args, position_ids=None, **kwargs: forward(*args, **kwargs)
    assert support.tree_error(model, prompt_length=12) > 0.01
    # Without `position_ids` it counts behind its padding token; `generate` gives them from 0 on.
    settings = {**_SMALL, "is_decoder": True, "pad_token_id": 1}
    del settings["num_key_value_heads"]
    assert decodes_alike(build("RobertaConfig", settings), max_nodes=8).stats.num_accepted_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_check_finds_a_window_missing_in_the_mask(monkeypatch, dtype):
    monkeypatch.setattr(inputs, "local_attention", lambda *_: LocalAttention())
    model = tiny_model("mistral", dtype)
    found = check_model(model)
    assert not found.ok
    assert check_model(tiny_model("llama", dtype)).ok
    # A prompt shorter than the window hides it, which is why the check crosses windows.
    assert support.tree_error(model, prompt_length=3) < found.max_error / 16


def test_failed_forward_pass_is_a_reason_by_its_type():
    settings = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB_SIZE}
    verdict = check_model(build("OpenAIGPTConfig", settings))  # has no KV cache
    assert verdict.reasons == ("a forward pass over a tree failed: RuntimeError",)


def test_check_runs_a_model_once_and_only_on_request(monkeypatch):
    model = build("LlamaConfig", WIDE)
    calls = []

    def counted(model, verification):
        calls.append((model, verification))
        return Support(False, ("logits differ",), 1.0)

    monkeypatch.setattr(support, "check_model", counted)
    generate_with(model, check_model=False)
    assert calls == []
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .*: logits differ"):
            generate_with(model)
    refused = pytest.raises(UnsupportedModelError, match="logits differ")
    with accelerate(model, random_drafter()), refused:
        model.generate(prompt(), max_new_tokens=2)
    assert calls == [(model, each) for each in (InPlaceRunner, PackedRunner, Runner)]
    with pytest.raises(UnsupportedModelError, match="cannot verify drafts by 'PathRows': logits"):
        generate_with(model, verification=PathRows)
    assert calls[3:] == [(model, PathRows)]


def test_old_transformers_are_refused(monkeypatch):
    for version in ("5.19.0", "5.24.0.dev0", "6.0.0"):
        monkeypatch.setattr(support.transformers, "__version__", version)
        require_support(tiny_model("llama"))
    monkeypatch.setattr(support.transformers, "__version__", "4.57.6")
    with pytest.raises(ImportError, match=r"needs transformers 5\.19 or newer, found 4\.57\.6"):
        require_support(tiny_model("llama"))


@pytest.mark.parametrize("verification", ["packed", "model"])
def test_layers_with_shared_states_are_verified(verification):
    settings = {**SHAPE, "num_hidden_layers": 4, "num_kv_shared_layers": 2}
    settings |= {"sliding_window": WINDOW, "layer_types": [*_MIXED, *_MIXED]}
    settings |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE}
    settings |= {"laurel_rank": 4, "altup_num_inputs": 2, "altup_active_idx": 0}
    settings |= {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4}
    model = build("Gemma3nTextConfig", settings)
    assert [layer.self_attn.is_kv_shared_layer for layer in model.model.layers][2:] == [True] * 2
    decodes_alike(model, partial(oracle_drafter, num_wrong=1), verification=verification)


def test_untested_device_selects_the_model_backend():
    with torch.device("meta"):
        model = build(*FAMILIES["llama"]).to("meta")
    runner, why = require_support(model, verification="auto", check_model=False)
    assert (runner, runner.name) == (Runner, "model")
    assert "`packed` is not tested on this kind of device" in why
    named = require_support(model, verification="packed", check_model=False)
    assert named == (PackedRunner, "")


@pytest.mark.parametrize(("capability", "is_proven"), [((9, 0), True), ((8, 6), False)])
def test_auto_is_packed_only_on_tested_capabilities(capability, is_proven, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert support._is_proven(torch.device("cuda")) == is_proven


def test_default_device_of_torch_does_not_affect_a_request():
    model = build("LlamaConfig", WIDE)
    expected = plain_generate(model, **GREEDY)
    drafter, ids = mixed_drafter(expected), prompt()
    with torch.device("meta"):
        output = generate(model, ids, drafter, max_nodes=8, max_new_tokens=32, **GREEDY)
    assert output.stats.verification == "native"
    assert output.sequences.tolist() == [expected]

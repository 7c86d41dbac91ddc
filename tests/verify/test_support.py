"""What a tree cannot do is refused by name, and a model that is wrong in silence is found out."""

import pytest
import torch
import transformers
from transformers import DynamicCache

import specds.verify.support as support
from models import FAMILIES, VOCAB_SIZE, build, prompt, random_drafter, tiny_model
from specds.generation import custom_generate, generate
from specds.verify import RUNNERS, Support, UnsupportedModelError, check_model

_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "pad_token_id": None,
    "eos_token_id": None,
}
_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE}
_ROPE = {"rope_theta": 1e4, "factor": 2.0}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0] * 4,
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 1.0,
}

# name -> configuration class, its settings, why it is refused
REFUSED = {
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "alibi"),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4}, "alibi"),
    "falcon": ("FalconConfig", {**_PLAIN, "num_attention_heads": 4, "alibi": True}, "alibi"),
    "mamba": ("MambaConfig", _PLAIN, "layers of type linear_attention"),
    "jamba": ("JambaConfig", {**_SMALL, "use_mamba_kernels": False}, "linear_attention"),
    "qwen3_next": ("Qwen3NextConfig", _SMALL, "layers of type linear_attention"),
    "falcon_h1": ("FalconH1Config", _SMALL, "layers of type hybrid"),
    "lfm2": (
        "Lfm2Config",
        {**_SMALL, "layer_types": ["conv", "full_attention"]},
        "layers of type conv",
    ),
    "rwkv": ("RwkvConfig", _PLAIN, "recurrent state"),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
        },
        "local attention",
    ),
    "longrope": (
        "Phi3Config",
        {**_SMALL, "rope_parameters": _LONGROPE, "original_max_position_embeddings": 64},
        "rope type longrope",
    ),
    "dynamic": (
        "LlamaConfig",
        {**_SMALL, "rope_parameters": {**_ROPE, "rope_type": "dynamic"}},
        "rope type dynamic",
    ),
    "bart": (
        "BartConfig",
        {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "is_decoder": True},
        "takes no `position_ids`",
    ),
}


def generate_with(model, **kwargs):
    return generate(model, prompt(), random_drafter(), **{"max_new_tokens": 2, **kwargs})


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*")  # some of these families warn of missing kernels
def test_families_are_refused_by_name(name):
    config_class, settings, reason = REFUSED[name]
    settings = {"vocab_size": VOCAB_SIZE, **settings}
    with torch.device("meta"):
        config = getattr(transformers, config_class)(**settings)
        config.is_encoder_decoder = False
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    verdict = check_model(model)
    assert not verdict.ok
    assert verdict.max_error is None
    assert any(reason in found for found in verdict.reasons)
    with pytest.raises(UnsupportedModelError, match="cannot verify a token tree") as refusal:
        support.require_support(model)
    assert reason in str(refusal.value)


def test_encoder_decoder_models_are_refused():
    config = transformers.T5Config(d_model=32, num_layers=2, vocab_size=VOCAB_SIZE)
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config).eval()
    assert "it is an encoder-decoder model" in check_model(model).reasons
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModelError, match="it is an encoder-decoder model"):
        generate_with(model, decoder_start_token_id=0)


_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
UNFIT = {
    "mrope": ({"rope_parameters": _SECTIONS}, {}, "mrope"),
    "attention": ({}, {"attn_implementation": "flex_attention"}, "'flex_attention' takes no tree"),
    "training": ({}, {}, r"call `model\.eval\(\)`"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_models_that_are_set_up_otherwise_are_refused(name):
    settings, options, reason = UNFIT[name]
    model = build("LlamaConfig", {**_SMALL, **settings}, **options).train(name == "training")
    with pytest.raises(UnsupportedModelError, match=reason):
        generate_with(model)


@pytest.mark.parametrize("verification", RUNNERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_self_check_passes_what_is_right(family, verification):
    verdict = check_model(tiny_model(family), verification=verification)
    assert verdict.ok
    assert verdict.reasons == ()
    assert verdict.max_error < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_the_self_check_allows_for_the_dtype(family, dtype):
    assert check_model(tiny_model(family, dtype)).ok


def test_the_self_check_allows_for_tensor_float_32(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(support, "tree_error", lambda *_: 0.01)
    assert not check_model(model).ok
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert check_model(model).ok


def test_the_self_check_finds_positions_that_are_ignored_or_start_elsewhere():
    model = build("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 97})
    assert support.tree_error(model, prompt_length=12) > 0.01
    settings = {**_SMALL, "is_decoder": True, "pad_token_id": 1}
    del settings["num_key_value_heads"]
    verdict = check_model(build("RobertaConfig", settings))
    assert not verdict.ok
    assert verdict.max_error > 0.01
    assert "pass `self_check=False`" in verdict.reasons[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_check_finds_a_window_that_is_not_in_the_mask(monkeypatch, dtype):
    monkeypatch.setattr("specds.verify.masks.first_visible", lambda *_: None)
    assert not check_model(tiny_model("mistral", dtype)).ok
    assert check_model(tiny_model("llama", dtype)).ok
    # A prompt shorter than the window hides it, which is why the check crosses windows.
    assert check_model(tiny_model("mistral", dtype), prompt_length=3).ok


def test_a_forward_that_fails_is_a_reason():
    settings = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB_SIZE}
    verdict = check_model(build("OpenAIGPTConfig", settings))  # has no KV cache
    assert not verdict.ok
    assert "a forward pass over a tree failed" in verdict.reasons[0]


def test_a_model_is_run_once_and_only_if_asked(monkeypatch):
    model = build("LlamaConfig", _SMALL)
    calls = []

    def counted(model, verification):
        calls.append((model, verification))
        return Support(False, ("logits differ",), 1.0)

    monkeypatch.setattr(support, "check_model", counted)
    generate_with(model, self_check=False)
    assert calls == []
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .*: logits differ"):
            generate_with(model)
    loop = custom_generate(random_drafter())
    with pytest.raises(UnsupportedModelError, match="logits differ"):
        model.generate(prompt(), custom_generate=loop, max_new_tokens=2)
    assert calls == [(model, "fast"), (model, "tree")]
    with pytest.raises(UnsupportedModelError, match="cannot verify a batch of rows: logits"):
        generate_with(model, verification="batched")
    assert calls[2:] == [(model, "batched")]


def test_old_transformers_are_refused():
    with pytest.raises(ImportError, match=r"needs transformers 5\.17 or newer, found 4\.57\.6"):
        support.require_transformers("4.57.6")
    for version in ("5.17.0", "5.23.0.dev0", "6.0.0"):
        support.require_transformers(version)
    support.require_transformers()


ARGUMENTS = {
    "beams": ({"num_beams": 2}, "generation mode 'beam_search'"),
    "dola": ({"dola_layers": "low"}, "generation mode 'dola_generation'"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "generation mode 'contrastive_search'"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "generation mode 'assisted_generation'"),
    "constrained": (
        {"force_words_ids": [[5]], "num_beams": 2},
        "generation mode 'constrained_beam_search'",
    ),
    "assistant": ({"assistant_model": object()}, "assistant_model cannot be used"),
    "loop": ({"custom_generate": print}, "custom_generate cannot be used"),
    "padding": (
        {"attention_mask": torch.tensor([[1] * 20 + [0]])},
        "attention_mask has zeros behind a token: pad prompts on the left",
    ),
    "hole": ({"attention_mask": torch.tensor([[1, 0] + [1] * 19])}, "attention_mask has zeros"),
    "cache": ({"past_key_values": DynamicCache()}, "past_key_values cannot be used"),
    "static": ({"cache_implementation": "static"}, "cache_implementation='static'"),
    "no_cache": ({"use_cache": False}, "use_cache must not be False"),
    "positions": ({"position_ids": torch.arange(1, 22)[None]}, "position_ids must count from 0"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 21, 32)}, "inputs_embeds cannot be used"),
    "attentions": (
        {"output_attentions": True, "return_dict_in_generate": True},
        "output_attentions cannot be used",
    ),
    "hidden": (
        {"output_hidden_states": True, "return_dict_in_generate": True},
        "output_hidden_states cannot be used",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_a_tree_cannot_honour_are_named(name):
    settings, message = ARGUMENTS[name]
    model = tiny_model("llama", attention="eager")
    with pytest.raises(ValueError, match=message):
        generate_with(model, **settings)


def test_prompts_and_masks_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"input_ids must not be empty, got shape \(0, 5\)"):
        nobody = torch.ones((0, 5), dtype=torch.long)
        generate(tiny_model("llama"), nobody, random_drafter(), max_length=9)
    mask = {"attention_mask": torch.ones((1, 1, 21, 21))}
    with pytest.raises(ValueError, match="attention_mask must have the shape of input_ids"):
        support.require_arguments(prompt(), transformers.GenerationConfig(use_cache=True), mask)


def test_a_mask_of_ones_is_no_padding():
    model = tiny_model("llama")
    output = generate_with(model, attention_mask=torch.ones_like(prompt()))
    assert output.sequences.shape == (1, 23)

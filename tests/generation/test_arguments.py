"""Arguments of a request: accepted forms, and errors that name the unsupported ones."""

import copy

import numpy as np
import pytest
import torch
import transformers
from transformers import GenerationConfig

import models
from models import _MIXED, GREEDY, SHAPE, Drafter, build, decodes_alike, prompt, random_drafter
from specds import Chat, FusedDrafter, build_datastore
from specds.generation import UnsupportedRequestError, generate
from specds.models.tokenization import TokenizerError
from specds.papers import RestDrafter
from specds.transformers.arguments import require_request

HEALING = "token_healing cannot be used: pass `model.heal_tokens"
REFUSED = {
    "beams": ({"num_beams": 2}, "num_beams=2 cannot be used: drafts are not for beam_search"),
    "healing asked for": ({"token_healing": True, "tokenizer": object()}, HEALING),
    "healing set": ({"generation_config": GenerationConfig(token_healing=True)}, HEALING),
    "dola": ({"dola_layers": "low"}, "dola_layers='low' cannot be used"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6 cannot be used"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3 cannot"),
    "constrained": (
        {"force_words_ids": [[5]], "num_beams": 2},
        r"num_beams=2 and force_words_ids=\[\[5\]\] cannot be used",
    ),
    "assistant": ({"assistant_model": object()}, "assistant_model cannot be used: the drafter"),
    "synced": ({"synced_gpus": True}, "synced_gpus cannot be used: each process"),
    "loop": ({"custom_generate": print}, "custom_generate cannot be used"),
    "padding": (
        {"attention_mask": torch.tensor([[1] * 20 + [0]])},
        "attention_mask has zeros behind a prompt: pad prompts on the left",
    ),
    "static": ({"cache_implementation": "static"}, "cache_implementation='static'"),
    "no_cache": ({"use_cache": False}, "use_cache must not be False"),
    "positions": ({"position_ids": torch.arange(1, 22)[None]}, "position_ids must count from 0"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 21, 32)}, "inputs_embeds cannot be used"),
    "token types": ({"token_type_ids": torch.zeros(1, 21).long()}, "token_type_ids"),
    **{
        name: ({name: True, "return_dict_in_generate": True}, f"{name} cannot be used")
        for name in ("output_attentions", "output_hidden_states")
    },
    "nobody": ({"inputs": torch.ones((0, 5)).long()}, r"must not be empty, got shape \(0, 5\)"),
    **{
        f"ids as {got}": ({"inputs": ids}, rf"input_ids must be a tensor of .*, got {got}")
        for got, ids in (
            ("list", [1, 2]),
            ("str", "some text"),
            ("BatchEncoding", transformers.BatchEncoding({"input_ids": prompt()})),
            (r"torch.int64 of shape \(21,\)", prompt()[0]),
            (r"torch.float32 of shape \(1, 21\)", prompt().float()),
        )
    },
    "model": ({"model": "gpt2"}, "model must be a model of transformers, got str: load it by"),
    "name": ({"drafter": "fused"}, "drafter must be a drafter or a datastore, and `fused` is a"),
    **{
        f"max_nodes {number!r}": ({"max_nodes": number}, f"of 0 or more, got {number!r}")
        for number in (-1, 1.5, True, "all", None)
    },
    "way": ({"verification": "twice"}, "or 'chain' or 'native', got 'twice'"),
    "drafter": ({"drafter": 5}, "expected a drafter, a datastore or the path of one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_argument_is_refused_by_its_name(name):
    settings, message = REFUSED[name]
    model = models.tiny_model("llama", attention="eager")
    usual = {"model": model, "inputs": prompt(), "drafter": random_drafter(), "max_new_tokens": 2}
    with pytest.raises((ValueError, TypeError), match=message):
        generate(**{**usual, **settings})


def test_datastore_of_another_tokenizer_is_refused(tmp_path, tiny_model):
    model, tokenizer = tiny_model[0], copy.deepcopy(tiny_model[1])
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<one more>"])
    other.chat_template = tokenizer.chat_template = "{{ messages }}"
    (tmp_path / "code.txt").write_text("import os\nimport sys\n")
    report = build_datastore(
        str(tmp_path / "code.txt"), tokenizer, tmp_path / "d", tokenizer_name="demo"
    )
    drafter = FusedDrafter(report.path)
    assert len(generate(model, prompt(), drafter, max_new_tokens=2).sequences[0]) == 23
    Chat(model, tokenizer, drafter)
    for refused in (
        lambda: FusedDrafter.resume("new.memory", report.path, tokenizer=other),
        lambda: Chat(model, other, report.path),
        lambda: Chat(model, other, drafter.for_request("ann")),
    ):
        with pytest.raises(TokenizerError, match="was built with the tokenizer `demo`, which has"):
            refused()
    # Without a known tokenizer, very different sizes are an error.
    for given in (report.path, drafter, drafter.for_request("ann"), RestDrafter(report.path)):
        with pytest.raises(TokenizerError, match="of 4,096 tokens, and the model has 97"):
            generate(models.tiny_model("llama"), prompt(), given, max_new_tokens=2)


def test_numpy_integer_is_accepted_as_max_nodes():
    for verification in ("packed", "model"):
        settings = {"verification": verification, "stream_interval": np.int32(10)}
        output = decodes_alike(models.tiny_model("llama"), max_nodes=np.int64(9), **settings)
        assert output.stats.num_accepted_tokens > 0


def test_mask_of_another_shape_is_refused():
    mask = {"attention_mask": torch.ones((1, 1, 21, 21))}
    with pytest.raises(UnsupportedRequestError, match="must have the shape of input_ids"):
        settings = GenerationConfig(use_cache=True)
        require_request(models.tiny_model("llama"), prompt(), settings, mask)


def test_prompt_is_accepted_by_two_names_and_optional():
    model = build("LlamaConfig", {**SHAPE, "bos_token_id": 3})
    settings = {"max_new_tokens": 9, **GREEDY}
    expected = model.generate(prompt(), **settings).tolist()
    mask = torch.ones_like(prompt())
    for named in ({"inputs": prompt()}, {"input_ids": prompt(), "attention_mask": mask}):
        output = generate(model, drafter=random_drafter(), **named, **settings)
        assert output.sequences.tolist() == expected
    # Without a drafter, drafts come from the request's own text.
    assert generate(model, prompt(), **settings).sequences.tolist() == expected
    from_nothing = generate(model, None, random_drafter(), **settings).sequences.tolist()
    assert from_nothing == model.generate(**settings).tolist()
    with pytest.raises(ValueError, match="give one of them"):
        generate(model, prompt(), inputs=prompt())


@pytest.mark.parametrize("how", ["by a mask", "as padding tokens"])
def test_hidden_tokens_inside_a_prompt_do_not_change_the_text(how):
    model, ids = models.tiny_model("llama"), prompt().clone()
    ids[0, [7, 11]] = 1
    mask = (ids != 1).long()
    settings = {"pad_token_id": 1, "eos_token_id": 2, "max_new_tokens": 24, **GREEDY}
    if how == "by a mask":
        settings["attention_mask"] = mask
    output = decodes_alike(model, ids=ids, mode=settings)
    # A control: the text is another where all tokens are seen.
    all_seen = settings | {"attention_mask": torch.ones_like(ids)}
    assert model.generate(ids, **all_seen).tolist() != output.sequences.tolist()
    with pytest.raises(UnsupportedRequestError, match="this model's windows count them"):
        generate(models.tiny_model("mistral"), ids, random_drafter(), **settings)


def test_token_outside_the_drafters_vocabulary_begins_a_session():
    model = models.tiny_model("llama")
    known = 80
    drafter = Drafter(None, vocab_size=known)
    output = decodes_alike(model, drafter, num_tokens=40, max_nodes=0)
    expected = output.sequences[0].tolist()
    last = max(place for place, token in enumerate(expected[:21]) if token >= known)
    texts = [[]]
    for token in expected[last:]:
        texts = [*texts, []] if token >= known else [*texts[:-1], [*texts[-1], token]]
    assert [session.token_ids for session in drafter.sessions] == [text for text in texts if text]
    assert len(drafter.sessions) > 1
    assert all(session.finished == 1 for session in drafter.sessions)


_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
_VISION |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def gemma3():
    text = {**SHAPE, "sliding_window": 8, "layer_types": _MIXED}
    marks = {"image_token_index": 96, "boi_token_index": 95, "eoi_token_index": 94}
    of_both = {"text_config": text, "vision_config": _VISION, "mm_tokens_per_image": 4}
    config = transformers.Gemma3Config(**of_both, **marks)
    return transformers.Gemma3ForConditionalGeneration(config)


def llava():
    vision = transformers.CLIPVisionConfig(**_VISION)
    text = transformers.LlamaConfig(**SHAPE)
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=96)
    return transformers.LlavaForConditionalGeneration(config)


@pytest.mark.parametrize("make", [gemma3, llava])
def test_multimodal_model_generates_from_text_and_refuses_images(make):
    torch.manual_seed(0)
    model = make().eval()
    model.generation_config.eos_token_id = None
    ids = prompt().clamp(max=90)
    settings = {"max_new_tokens": 20, "token_type_ids": torch.zeros_like(ids), **GREEDY}
    if make is llava:
        del settings["token_type_ids"]
    assert decodes_alike(model, ids=ids, mode=settings).stats.num_accepted_tokens > 0
    image = {"pixel_values": torch.zeros(1, 3, 28, 28)}
    with pytest.raises(UnsupportedRequestError, match=r"^pixel_values cannot be used: only"):
        generate(model, ids, random_drafter(), **settings, **image)

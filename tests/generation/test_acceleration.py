"""Acceleration of a model: the same calls and results, statistics, and undoing it."""

import copy
import logging
import pickle
from threading import Thread
from types import MethodType, SimpleNamespace

import pytest
import torch
import transformers
from transformers import DynamicCache, GenerationConfig, TextIteratorStreamer, pipeline

from datastores import build as build_datastore
from models import FAMILIES, GREEDY, SAMPLING, build, prompt, random_drafter
from specds import undo
from specds.generation import UnsupportedRequestError, generate
from specds.generation.runner import UnsupportedModelError
from specds.models.load import load_model
from specds.transformers.acceleration import accelerate
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.support import check_model


@pytest.fixture
def model():
    return build(*FAMILIES["llama"])


SETTINGS = {"max_new_tokens": 12, **GREEDY}
DICTIONARY = {"return_dict_in_generate": True, "output_scores": True}
CALLS = {
    "by position": lambda m: m.generate(prompt(), GenerationConfig(**SETTINGS)),
    "by name": lambda m: m.generate(inputs=prompt(), **SETTINGS),
    "by another name": lambda m: m.generate(input_ids=prompt(), **SETTINGS),
    "sampled": lambda m: m.generate(prompt(), max_new_tokens=9, **SAMPLING),
    "as a dictionary": lambda m: m.generate(prompt(), **DICTIONARY, **SETTINGS).sequences,
    "with a cache": lambda m: m.generate(prompt(), **{CACHE_NAME: DynamicCache()}, **SETTINGS),
    "a batch": lambda m: m.generate(prompt().repeat(3, 1), pad_token_id=1, **SETTINGS),
}


@pytest.mark.parametrize("name", CALLS)
def test_accelerated_call_returns_the_baseline_result(model, name):
    torch.manual_seed(2)
    expected = CALLS[name](model)
    drafter = random_drafter()
    with accelerate(model, drafter, max_nodes=5):
        torch.manual_seed(2)
        output = CALLS[name](model)
        assert type(output) is type(expected)
        assert output.tolist() == expected.tolist()
        assert len(drafter.sessions) == len(expected)
    CALLS[name](model)
    assert len(drafter.sessions) == len(expected)


def test_default_drafter_caches_calls_and_is_described(chat_model):
    model, tokenizer = load_model(str(chat_model), device="cpu")
    ids = tokenizer("def add(a, b):\n", return_tensors="pt")["input_ids"]
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), **SETTINGS).tolist()
    with accelerate(model) as handle:
        assert repr(handle) == "Acceleration(drafts from the request's own text, earlier calls)"
        for _ in range(2):
            assert model.generate(ids, **SETTINGS).tolist() == plain
        assert handle._options.drafter.memory.num_tokens > ids.shape[1]
        assert repr(handle).endswith(f", earlier calls; {handle.stats})")
    assert handle.stats.num_emitted_tokens == 2 * handle.last_stats.num_emitted_tokens == 24
    # The model's folder may name a datastore.
    build_datastore(chat_model / "its.specds", [[1, 2, 3]], vocab_size=4096, separator=0)
    (chat_model / "specds.json").write_text('{"datastore": "its.specds"}')
    try:
        with accelerate(model) as handle:
            assert repr(handle).endswith(f", the datastore {chat_model / 'its.specds'})")
            assert model.generate(ids, **SETTINGS).tolist() == plain
    finally:
        (chat_model / "specds.json").unlink()


def test_second_acceleration_replaces_the_first_and_undo_restores_the_models_own(model):
    first, second = random_drafter(), random_drafter()
    replaced = accelerate(model, first)
    handle = accelerate(model, second, on_unsupported="baseline")
    model.generate(prompt(), max_new_tokens=2)
    assert (len(first.sessions), len(second.sessions)) == (0, 1)
    beams = {"num_beams": 2, "max_new_tokens": 3, "do_sample": False}
    model.generate(prompt(), **beams)
    replaced.undo()
    assert model.generate is handle
    for restore in (handle.undo, handle.undo, lambda: undo(model)):
        restore()
        assert "generate" not in vars(model)
        assert "generate_batch" not in vars(model)
    accelerate(model, first)
    undo(model)
    model.generate(prompt(), **beams)
    assert first.sessions == []
    # An undone handle that someone kept is the baseline.
    assert handle(prompt(), **beams).tolist() == model.generate(prompt(), **beams).tolist()


def test_generate_batch_warns_that_it_does_not_draft(model, monkeypatch):
    monkeypatch.setattr(type(model), "generate_batch", lambda self, ids: ids)
    accelerate(model, random_drafter())
    with pytest.warns(UserWarning, match="generate_batch decodes without drafts"):
        assert model.generate_batch([[1, 2]]) == [[1, 2]]


UNSUPPORTED = {
    "T5Config": {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    },
    "BloomConfig": {"hidden_size": 32, "n_layer": 1, "n_head": 4},
    "MambaConfig": {"hidden_size": 32, "num_hidden_layers": 1},
}


def unsupported_model(name):
    config = getattr(transformers, name)(vocab_size=97, **UNSUPPORTED[name])
    config.decoder_start_token_id = 0
    auto = transformers.AutoModelForCausalLM
    if name == "T5Config":
        auto = transformers.AutoModelForSeq2SeqLM
    return auto.from_config(config).eval()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_model_is_refused_at_once_or_logged(name, caplog):
    model = unsupported_model(name)
    with pytest.raises(UnsupportedModelError, match=r"cannot verify .*: it"):
        accelerate(model)
    assert "generate" not in vars(model)
    with caplog.at_level(logging.INFO, "specds"):
        for _ in range(2):
            with accelerate(model, random_drafter(), on_unsupported="baseline") as handle:
                model.generate(prompt(), max_new_tokens=2)
    assert handle.stats.num_emitted_tokens == 0
    assert len([text for text in caplog.messages if "decodes without drafts" in text]) == 1
    assert "decodes without drafts: " in caplog.messages[0]


def test_reason_of_slow_verification_is_logged_once(caplog):
    model = build(*FAMILIES["gpt2"])
    with caplog.at_level(logging.INFO, "specds"):
        for _ in range(2):
            generate(model, prompt(), random_drafter(), max_new_tokens=2)
    assert [text for text in caplog.messages if "verified by" in text] == [
        "GPT2LMHeadModel is verified by 'packed': GPT2LMHeadModel is of another family"
    ]


def soft_prompt(model, input_ids, **kwargs):
    inputs = type(model).prepare_inputs_for_generation(model, input_ids, **kwargs)
    if inputs["input_ids"].shape[1] > 1:
        embedded = model.get_input_embeddings()(inputs["input_ids"])
        inputs |= {"inputs_embeds": 2 * embedded, "input_ids": None}
    return inputs


def longer_mask(model, input_ids, attention_mask=None, **kwargs):
    kwargs["attention_mask"] = torch.nn.functional.pad(torch.ones_like(input_ids), (3, 0), value=1)
    return type(model).prepare_inputs_for_generation(model, input_ids, **kwargs)


def new_cache(model, input_ids, **kwargs):
    kwargs[CACHE_NAME] = DynamicCache()
    return type(model).prepare_inputs_for_generation(model, input_ids, **kwargs)


CHANGED = {"input_ids, inputs_embeds": soft_prompt, "attention_mask": longer_mask}
CHANGED |= {CACHE_NAME: new_cache}


@pytest.mark.parametrize("names", CHANGED)
def test_changed_model_inputs_are_refused_by_their_names(model, names):
    model.prepare_inputs_for_generation = MethodType(CHANGED[names], model)
    refused = f"`prepare_inputs_for_generation` changes {names}: "
    with pytest.raises(UnsupportedRequestError, match=refused):
        generate(model, prompt(), random_drafter(), max_new_tokens=3)
    with accelerate(model, random_drafter(), on_unsupported="baseline"):
        changed = model.generate(prompt(), **SETTINGS).tolist()
    assert changed == model.generate(prompt(), **SETTINGS).tolist()


def test_unchanged_inputs_of_a_models_own_function_are_served(model):
    def same(model, input_ids, **kwargs):
        return type(model).prepare_inputs_for_generation(model, input_ids, **kwargs)

    expected = model.generate(prompt(), **SETTINGS).tolist()
    model.prepare_inputs_for_generation = MethodType(same, model)
    assert generate(model, prompt(), random_drafter(), **SETTINGS).sequences.tolist() == expected
    drafted = generate(model, prompt(), **SETTINGS, cache=DynamicCache()).sequences
    assert drafted.tolist() == expected


def test_prompt_learning_of_peft_is_refused_by_its_name(model):
    class Wrapper(torch.nn.Module):
        """The parts of PEFT's models that decide."""

        active_peft_config = SimpleNamespace(is_prompt_learning=True, peft_type="P_TUNING")

        def prepare_inputs_for_generation(self, *args, **kwargs):
            return type(model).prepare_inputs_for_generation(model, *args, **kwargs)

    model.prepare_inputs_for_generation = Wrapper().prepare_inputs_for_generation
    refused = r"PEFT's prompt learning \(P_TUNING\) puts states before the prompt"
    assert not check_model(model).ok
    for call in (accelerate, lambda model: generate(model, prompt(), max_new_tokens=2)):
        with pytest.raises(UnsupportedModelError, match=refused):
            call(model)


def test_failed_block_undoes_and_restores_a_replaced_generate(model):
    model.generate = print
    with pytest.raises(RuntimeError, match="block"), accelerate(model, random_drafter()):
        raise RuntimeError("block")
    assert model.generate is print


def test_custom_loop_bypasses_the_acceleration(model):
    drafter, other = random_drafter(), random_drafter()
    with accelerate(model, drafter):
        generate(model, prompt(), other, max_new_tokens=2)
        echo = {"custom_generate": lambda model, input_ids, **_: input_ids, "max_new_tokens": 2}
        assert model.generate(prompt(), **echo).tolist() == prompt().tolist()
    assert (len(drafter.sessions), len(other.sessions)) == (0, 1)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copy_of_the_model_is_not_accelerated(model, way):
    drafter = random_drafter()
    accelerate(model, drafter)
    copied = way(model)
    expected = copied.generate(prompt(), **SETTINGS).tolist()
    assert copied.generate.__self__ is copied.generate_batch.__self__ is copied
    assert len(drafter.sessions) == 0
    assert model.generate(prompt(), **SETTINGS).tolist() == expected
    assert len(drafter.sessions) == 1


def never(input_ids, scores, **kwargs):
    return torch.zeros(len(input_ids), dtype=torch.bool)


BEYOND = {
    "beams": {"num_beams": 2},
    "a criterion of one's own": {"stopping_criteria": [never], "num_return_sequences": 2},
}


@pytest.mark.parametrize("name", BEYOND)
def test_unsupported_call_is_refused_or_decoded_by_the_baseline(model, name):
    settings = {"max_new_tokens": 9, "do_sample": "beams" not in name, **BEYOND[name]}
    torch.manual_seed(1)
    expected = model.generate(prompt(), **settings).tolist()
    with accelerate(model, random_drafter()), pytest.raises(UnsupportedRequestError) as refused:
        model.generate(prompt(), **settings)
    assert "on_unsupported='baseline'" in refused.value.__notes__[0]
    drafter = random_drafter()
    with accelerate(model, drafter, on_unsupported="baseline"):
        torch.manual_seed(1)
        assert model.generate(prompt(), **settings).tolist() == expected
        assert drafter.sessions == []
        # Other errors are raised, and the call is not repeated.
        drafter.grow = None
        with pytest.raises(TypeError):
            model.generate(prompt(), max_new_tokens=9)
    with pytest.raises(ValueError, match="on_unsupported must be 'refuse' or 'baseline'"):
        accelerate(model, on_unsupported="perhaps")


def test_pipeline_and_streaming_thread_give_the_baseline_text(tiny_model):
    model, tokenizer = tiny_model
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    settings = {"max_new_tokens": 12, "do_sample": False}
    expected = pipe("def add(a, b):\n", **settings)[0]["generated_text"]
    drafter = random_drafter()
    ids = tokenizer("def add(a, b):\n", return_tensors="pt")
    with accelerate(model, drafter):
        assert pipe("def add(a, b):\n", **settings)[0]["generated_text"] == expected
        streamer = TextIteratorStreamer(tokenizer, timeout=30)
        arguments = {**ids, "streamer": streamer, **settings}
        thread = Thread(target=model.generate, kwargs=arguments)
        thread.start()
        assert "".join(streamer) == expected
        thread.join()
    assert len(drafter.sessions) == 2

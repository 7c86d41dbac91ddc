"""An accelerated model generates what it always does, through specds, until that is undone."""

import copy
import pickle
from threading import Thread

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    TextIteratorStreamer,
    pipeline,
)

from datastores import build as build_datastore
from models import FAMILIES, GREEDY, SAMPLING, build, prompt, random_drafter
from specds.generation import UnsupportedRequestError, accelerate, generate
from specds.models.load import load_model
from specds.verify.cache import CACHE_NAME


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
def test_calls_return_what_they_do_without(model, name):
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


def test_without_a_drafter_it_remembers_calls_and_says_what_it_drafts_from(chat_model):
    model, tokenizer = load_model(str(chat_model), device="cpu")
    ids = tokenizer("def add(a, b):\n", return_tensors="pt")["input_ids"]
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), **SETTINGS).tolist()
    with accelerate(model) as handle:
        assert repr(handle) == "Acceleration(drafts from the request's own text, earlier calls)"
        for _ in range(2):
            assert model.generate(ids, **SETTINGS).tolist() == plain
        assert handle._options.drafter.memory.num_tokens > ids.shape[1]
    # The model's folder may name a datastore.
    build_datastore(chat_model / "its.specds", [[1, 2, 3]], vocab_size=4096, separator=0)
    (chat_model / "specds.json").write_text('{"datastore": "its.specds"}')
    try:
        with accelerate(model) as handle:
            assert repr(handle).endswith(f", the datastore {chat_model / 'its.specds'})")
            assert model.generate(ids, **SETTINGS).tolist() == plain
    finally:
        (chat_model / "specds.json").unlink()


def test_the_last_acceleration_counts_and_each_is_undone_by_itself(model):
    drafters = [random_drafter() for _ in range(3)]

    def used():
        before = [len(drafter.sessions) for drafter in drafters]
        model.generate(prompt(), max_new_tokens=2)
        after = [len(drafter.sessions) for drafter in drafters]
        return [one != other for one, other in zip(before, after, strict=True)]

    first, second, third = [accelerate(model, drafter, max_nodes=2) for drafter in drafters]
    assert used() == [False, False, True]
    second.undo()
    assert used() == [False, False, True]
    third.undo()
    assert used() == [True, False, False]
    first.undo()
    first.undo()
    assert used() == [False, False, False]
    assert "generate" not in vars(model)


def test_it_is_undone_where_a_block_fails_and_puts_back_what_was_there(model):
    model.generate = print
    with pytest.raises(RuntimeError, match="block"), accelerate(model, random_drafter()):
        raise RuntimeError("block")
    assert model.generate is print


def test_other_loops_go_past_it(model):
    drafter, other = random_drafter(), random_drafter()
    with accelerate(model, drafter):
        generate(model, prompt(), other, max_new_tokens=2)
        echo = {"custom_generate": lambda model, input_ids, **_: input_ids, "max_new_tokens": 2}
        assert model.generate(prompt(), **echo).tolist() == prompt().tolist()
    assert (len(drafter.sessions), len(other.sessions)) == (0, 1)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_the_model_are_plain(model, way):
    drafter = random_drafter()
    accelerate(model, drafter)
    copied = way(model)
    expected = copied.generate(prompt(), **SETTINGS).tolist()
    assert copied.generate.__self__ is copied
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
def test_what_drafts_cannot_do_is_refused_or_plain_as_asked(model, name):
    settings = {"max_new_tokens": 9, "do_sample": "beams" not in name, **BEYOND[name]}
    torch.manual_seed(1)
    expected = model.generate(prompt(), **settings).tolist()
    with accelerate(model, random_drafter()), pytest.raises(UnsupportedRequestError):
        model.generate(prompt(), **settings)
    drafter = random_drafter()
    with accelerate(model, drafter, on_unsupported="baseline"):
        torch.manual_seed(1)
        assert model.generate(prompt(), **settings).tolist() == expected
        assert drafter.sessions == []
        # What fails for another reason is no reason to begin again.
        drafter.grow = None
        with pytest.raises(TypeError):
            model.generate(prompt(), max_new_tokens=9)
    with pytest.raises(ValueError, match="on_unsupported must be 'refuse' or 'baseline'"):
        accelerate(model, on_unsupported="perhaps")


def test_a_pipeline_and_a_thread_that_streams(tiny_model):
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

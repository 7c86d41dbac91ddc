"""The context of a GGUF file: prompts that do not fit, texts that fill it, conversations."""

import io
import json
import pickle
import sys

import pytest
import torch

from gguf_models import byte_tokenizer, write_model
from specds import Chat, FusedDrafter, accelerate, generate, load_gguf
from specds.models.context import ContextLengthError

TEMPLATE = "{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
SHORT = {"do_sample": False, "max_new_tokens": 4}
GREEDY = {"do_sample": False, "eos_token_id": None}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    extra = byte_tokenizer(TEMPLATE)
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    return write_model(path, "llama", ("Q8_0",), vocab=258, extra=extra, context_length=128)


@pytest.fixture(params=["numpy", "transformers"])
def loaded(path, request):
    return load_gguf(path, framework=request.param)


def prompt(model, length):
    ids = [[97 + place % 20 for place in range(length)]]
    return ids if type(model).__name__ == "GgufModel" else torch.tensor(ids)


@pytest.mark.parametrize("length", [128, 129, 400])
def test_prompt_that_does_not_fit_is_an_error_before_any_work(loaded, length):
    seen = []
    with pytest.raises(ContextLengthError) as refused:
        generate(loaded[0], prompt(loaded[0], length), None, on_prefill=lambda *_: seen.append(1))
    assert f"{length} tokens" in str(refused.value)
    assert "128 tokens" in str(refused.value)
    assert (refused.value.num_tokens, refused.value.context_length) == (length, 128)
    assert pickle.loads(pickle.dumps(refused.value)).args == refused.value.args
    assert seen == []


@pytest.mark.parametrize("max_nodes", [0, 12])
def test_text_ends_where_the_context_is_full(loaded, max_nodes):
    model, _ = loaded
    settings = {"max_new_tokens": 50, "max_nodes": max_nodes, **GREEDY}
    output = generate(model, prompt(model, 100), FusedDrafter(), **settings)
    assert output.sequences.shape == (1, 128)
    assert output.finish_reasons == ["context"]
    shorter = generate(
        model, prompt(model, 100), FusedDrafter(), **{**settings, "max_new_tokens": 9}
    )
    assert (shorter.sequences.shape, shorter.finish_reasons) == ((1, 109), ["length"])
    end = int(shorter.sequences[0, 104])
    stopped = generate(model, prompt(model, 100), None, **{**settings, "eos_token_id": end})
    assert stopped.finish_reasons == ["stop"]
    assert stopped.sequences.shape[1] <= 105


def test_longer_context_is_allowed_and_kept_by_copies(path):
    for framework in ("numpy", "transformers"):
        model, _ = load_gguf(path, framework=framework, context_length=200)
        output = generate(model, prompt(model, 140), None, max_new_tokens=20, **GREEDY)
        assert (output.sequences.shape, output.finish_reasons) == ((1, 160), ["length"])
    assert pickle.loads(pickle.dumps(model)).context_length == 200
    assert model.cache_type == "float32"
    model, _ = load_gguf(path, "int8", framework="transformers")
    assert pickle.loads(pickle.dumps(model)).cache_type == model.cache_type == "float16"
    with pytest.raises(ValueError, match="cache_type must be 'float32' or 'float16', got 'int8'"):
        load_gguf(path, cache_type="int8")
    with pytest.raises(ValueError, match="context_length must be at least 2, got 1"):
        load_gguf(path, context_length=1)


def test_generate_of_transformers_and_batches_have_the_same_limit(path):
    model, _ = load_gguf(path, framework="transformers")
    ids = prompt(model, 100).repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 50, "pad_token_id": 0, **GREEDY}
    expected = model.generate(ids, **settings)
    output = generate(model, ids, FusedDrafter(), max_nodes=9, **settings)
    assert torch.equal(output.sequences, expected)
    assert expected.shape == (2, 128)
    assert output.finish_reasons == ["context"] * 2
    long = prompt(model, 200)
    with pytest.raises(ContextLengthError):
        model.generate(long)
    with accelerate(model, on_unsupported="baseline"), pytest.raises(ContextLengthError):
        model.generate(long)


def test_conversation_counts_what_is_left_and_drops_its_oldest_turns(loaded):
    system = [{"role": "system", "content": "be short"}]
    chat = Chat(*loaded, FusedDrafter(), messages=system, **SHORT)
    assert (chat.context_length, chat.finish_reason) == (128, None)
    assert not chat.drop_oldest()
    left = [chat.tokens_left]
    for _ in range(2):
        chat.send("0123456789" * 2)
        left.append(chat.tokens_left)
    assert chat.finish_reason == "length"
    assert left == sorted(left, reverse=True)
    before = chat.messages
    with pytest.raises(ContextLengthError, match="does not fit"):
        chat.send("x" * 120)
    assert chat.messages == before
    assert chat.drop_oldest()
    assert chat.messages == [*system, *before[3:]]
    assert left[2] < chat.tokens_left < left[0]
    # The replies are those of a conversation that never had the dropped turn.
    other = Chat(*loaded, FusedDrafter(), messages=chat.messages, **SHORT)
    assert chat.send("again") == other.send("again")
    assert chat.drop_oldest()
    assert chat.drop_oldest()
    assert not chat.drop_oldest()
    assert chat.messages == system


def test_long_conversation_drops_its_oldest_turns_by_itself(loaded):
    system = [{"role": "system", "content": "be short"}]
    settings = {"messages": system, **SHORT}
    chat = Chat(*loaded, FusedDrafter(), drops_oldest=True, **settings)
    for number in range(9):
        chat.send(f"message {number} " + "y" * 20)
        assert chat.messages[0] == system[0]
        assert chat.messages[-2]["content"].startswith(f"message {number}")
    assert 3 <= len(chat.messages) < 9
    with pytest.raises(ContextLengthError):
        chat.send("x" * 200)
    assert chat.messages[-2]["content"].startswith("message 8")


def test_commands_say_how_much_is_left_and_why_a_text_ended(run, path, monkeypatch):
    options = ("--model", path, "--temperature", 0)
    text = "abcdefghij" * 11
    code, out, _ = run("generate", *options, text, "--json", "--max-new-tokens", 60)
    assert (code, json.loads(out)["finish_reason"]) == (0, "context")
    assert len(json.loads(out)["token_ids"]) == 18
    assert "note: ended: context of 128 tokens is full" in run("generate", *options, text)[2]
    small = ("--context", 50)
    code, _, err = run("generate", *options, *small, text)
    assert code == 1
    assert "the prompt of 110 tokens does not fit: the context of the model has 50 tokens" in err
    assert "is for GGUF files on a CPU" in run("generate", "--model", "demo", "--dtype", "bf16",
                                               *small, "a")[2]  # fmt: skip
    said = f"{'a' * 75}\n{'c' * 125}\n/drop\n/drop\n{'d' * 110}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    code, _, err = run("chat", *options, "--max-new-tokens", 30)
    assert code == 0
    notes = [line for line in err.splitlines() if line.startswith("note: ")]
    assert any("of the 128 tokens of the context are left: /drop" in note for note in notes)
    assert any("does not fit" in note and "/drop" in note for note in notes)
    assert sum("dropped the oldest message" in note for note in notes) == 1
    assert any("no reply yet" in note for note in notes)
    assert any("ended: context of 128 tokens is full: /drop" in note for note in notes)

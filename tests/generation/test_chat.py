"""Conversations: the baseline's replies, with each token computed once."""

import re
from unittest.mock import Mock

import pytest
import torch
from transformers import GenerationConfig

from models import FAMILIES, GREEDY, HYBRIDS, build, random_drafter, widths
from specds import Chat, FusedDrafter, generate
from specds._core import Memory
from specds.constraints.of_llguidance import grammar_source, matcher_of
from specds.constraints.processor import add_grammar
from specds.models.load import load_model
from specds.models.tokenization import vocab_size
from specds.models.tool_calls import example_tokens
from specds.papers import HierarchyDrafter

SAID = ["def add(a, b):", "def sub(a, b):", "import os, sys"]


@pytest.fixture
def loaded(chat_model):
    return load_model(str(chat_model), device="cpu")


def plain_chat(model, tokenizer, grammar=None, **settings):
    """Return the replies of `model.generate`, which computes the whole conversation each turn."""
    messages, replies = [], []
    as_tensors = {"return_tensors": "pt", "return_dict": True, "add_generation_prompt": True}
    for text in SAID:
        messages.append({"role": "user", "content": text})
        ids = tokenizer.apply_chat_template(messages, **as_tensors)["input_ids"]
        torch.manual_seed(len(messages))
        arguments = dict(settings)
        add_grammar(grammar, arguments)
        output = model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
        replies.append(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))
        messages.append({"role": "assistant", "content": replies[-1]})
    return replies


def replies_of(chat):
    replies = []
    for text in SAID:
        torch.manual_seed(len(chat.messages) + 1)
        replies.append(chat.send(text))
    return replies


@pytest.mark.parametrize("mode", ["greedy", "sampled", "without a cache"])
def test_chat_replies_equal_the_baseline(loaded, mode):
    if mode == "without a cache":  # chunked attention cannot be rolled back
        config_class, shape = FAMILIES["llama4"]
        sizes = {"vocab_size": vocab_size(loaded[1]), "max_position_embeddings": 512}
        loaded = build(config_class, shape | sizes), loaded[1]
    settings = {"do_sample": mode == "sampled", "max_new_tokens": 20}
    chat = Chat(*loaded, **settings)
    assert replies_of(chat) == plain_chat(*loaded, **settings)
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 3
    assert chat.stats.num_emitted_tokens == 60


def test_replies_by_a_grammar_equal_the_baseline(loaded):
    model, tokenizer = loaded
    eos = [model.generation_config.eos_token_id]
    source = grammar_source(None, "(yes|no), (because|although) [a-c]{3}")
    grammar = matcher_of(source, tokenizer, model.config.vocab_size, eos)
    settings = {"do_sample": False, "max_new_tokens": 40}
    chat = Chat(*loaded, grammar=grammar, max_nodes=8, **settings)
    replies = replies_of(chat)
    assert replies == plain_chat(*loaded, grammar=grammar, **settings)
    assert all(re.fullmatch("(yes|no), (because|although) [a-c]{3}", reply) for reply in replies)
    assert chat.stats.num_accepted_tokens > 9


def test_chat_computes_new_tokens_only(loaded):
    model, tokenizer = loaded
    ways = {"max_nodes": 0, "verification": "model", "check_model": False}
    chat = Chat(model, tokenizer, max_new_tokens=8, **ways, **GREEDY)
    with widths(model) as read:
        replies_of(chat)
    whole = tokenizer.apply_chat_template(chat.messages, return_dict=True)["input_ids"]
    assert len(read) == 3 * 8
    assert sum(read) < len(whole)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("family", HYBRIDS)
def test_recurrent_states_are_rolled_back_to_the_last_message(loaded, family, drops):
    tokenizer = loaded[1]
    config_class, shape = HYBRIDS[family]
    sizes = {"vocab_size": vocab_size(tokenizer), "max_position_embeddings": 512}
    model = build(config_class, shape | sizes)
    if drops:  # as templates drop the reasoning of earlier replies
        template = tokenizer.chat_template
        tokenizer.chat_template = template.replace("['content']", "['content'][:9]")
        assert tokenizer.chat_template != template
    settings = {"max_new_tokens": 20, **GREEDY}
    chat = Chat(model, tokenizer, check_model=False, max_nodes=0, **settings)
    with widths(model) as read:
        replies = replies_of(chat)
    assert replies == plain_chat(model, tokenizer, **settings)
    drafted = Chat(model, tokenizer, FusedDrafter(), max_nodes=6, **settings)
    assert replies == replies_of(drafted)
    assert drafted.stats.num_draft_tokens > 0
    assert drafted.stats.verification == ("model" if family == "lfm2" else "chain")
    whole = tokenizer.apply_chat_template(chat.messages, return_dict=True)["input_ids"]
    # Replies, which a random model's tokens are not once they are text, and nothing before them.
    assert sum(read) < len(whole) + 70


SHORT = {"max_new_tokens": 8, **GREEDY}


def test_changed_message_is_computed_again_from_there(loaded):
    chat = Chat(*loaded, **SHORT)
    replies_of(chat)
    chat.messages = [{"role": "user", "content": "def mul(a, b):"}]
    fresh = Chat(*loaded, messages=chat.messages, **SHORT)
    assert chat.send("class A:") == fresh.send("class A:")


def test_chat_uses_one_session_until_it_is_cleared(loaded):
    memory = Memory(vocab_size(loaded[1]))
    chat = Chat(*loaded, FusedDrafter(memory=memory), **SHORT)
    replies_of(chat)
    assert memory.num_tokens == 0
    length = len(chat._token_ids)
    chat.clear()
    # Each token of the conversation once, and a boundary.
    assert length <= memory.num_tokens <= length + 1
    assert chat.messages == []
    assert chat.send(SAID[0]) == plain_chat(*loaded, **SHORT)[0]


@pytest.mark.parametrize("name", ["core", "python", "python, few tokens", "hierarchy"])
def test_session_of_each_drafter_sees_all_turns(loaded, name):
    model, tokenizer = loaded
    if name == "core":
        drafter = FusedDrafter()
    elif name == "hierarchy":
        drafter = HierarchyDrafter([model])
    else:
        drafter = random_drafter()
        drafter.vocab_size = 300 if "few" in name else vocab_size(tokenizer)
    opened, start = [], drafter.session
    drafter.session = lambda prompt_ids: opened.append(start(prompt_ids)) or opened[-1]
    chat = Chat(model, tokenizer, drafter, **SHORT)
    assert replies_of(chat) == plain_chat(model, tokenizer, **SHORT)
    if "few" in name:  # a token that the drafter lacks ends a session
        assert len(opened) > 1
        assert all(session.finished == 1 for session in opened[:-1])
    else:
        assert len(opened) == 1
    # Each turn counts once.
    levels = chat.stats.levels.values()
    assert all(level.num_accepted == chat.stats.num_accepted_tokens for level in levels)
    assert len(levels) == (name == "hierarchy")


def test_stream_yields_the_reply_and_ends_when_it_is_left(loaded):
    chat, other = (Chat(*loaded, max_new_tokens=24, **GREEDY) for _ in range(2))
    assert "".join(chat.stream(SAID[0])).strip() == other.send(SAID[0]).strip()
    assert chat.last_stats.num_emitted_tokens == 24
    for _ in chat.stream(SAID[1]):
        break
    assert chat.messages[-1]["role"] == "assistant"
    with pytest.raises(ValueError, match="no_such_option"):
        list(chat.stream(SAID[0], no_such_option=1))


def test_conversation_begins_with_the_first_messages(loaded):
    system = {"role": "system", "content": "import re"}
    chat = Chat(*loaded, messages=[system], **SHORT)
    replies = []
    for _ in range(2):
        replies.append(chat.send(SAID[0]))
        chat.clear()
        assert chat.messages == [system]
    assert replies[0] == replies[1]


LENGTHS = {
    "none": ({}, 1024),
    "of a reply": ({"max_new_tokens": 3}, 3),
    "of all": ({"max_length": 60}, None),
    "in a configuration": ({"generation_config": GenerationConfig(max_new_tokens=3)}, 3),
    "in a configuration of other things": ({"generation_config": GenerationConfig(top_k=9)}, 1024),
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("where", ["chat", "turn"])
def test_reply_has_the_requested_length(loaded, monkeypatch, name, where):
    settings, expected = LENGTHS[name]
    asked = []

    def generates(*args, max_new_tokens=None, generation_config=None, **kwargs):
        asked.append(max_new_tokens or getattr(generation_config, "max_new_tokens", None))
        settings = {"max_new_tokens": 1, **GREEDY}
        return generate(*args, **{**kwargs, "max_length": None, **settings})

    monkeypatch.setattr("specds.generation.chat.generate", generates)
    chat = Chat(*loaded, **(settings if where == "chat" else {}))
    chat.send(SAID[0], **(settings if where == "turn" else {}))
    assert asked == [expected]


def test_failed_turn_leaves_the_conversation_unchanged(loaded):
    expected, chat = plain_chat(*loaded, **SHORT), Chat(*loaded, **SHORT)
    assert chat.send(SAID[0]) == expected[0]

    broken = Mock(put=Mock(side_effect=RuntimeError("line is down")))
    with pytest.raises(RuntimeError, match="line is down"):
        chat.send(SAID[1], streamer=broken)
    assert len(chat.messages) == 2
    assert chat.send(SAID[1]) == expected[1]


def test_tokenizer_without_a_chat_template_is_refused(tiny_model):
    with pytest.raises(ValueError, match="has no chat template"):
        Chat(*tiny_model)


TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}# {{ m['role'] }}:\n"
    "{{ m['content'] }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    "<|endoftext|>\n{% endfor %}{% if add_generation_prompt %}# assistant:\n{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "mode": {"enum": ["up", "down"]}}
}}}]  # fmt: skip


def test_replies_with_tools_equal_the_baseline(loaded):
    model, tokenizer = loaded
    tokenizer.chat_template = TOOL_TEMPLATE
    drafter = FusedDrafter(memory=Memory(vocab_size(tokenizer)))
    chat = Chat(model, tokenizer, drafter, tools=TOOLS, do_sample=False, max_new_tokens=16)
    said = ["def add(a, b):", {"role": "tool", "content": "3", "tool_call_id": "x"}]
    messages = []
    for each in [*said, [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]]:
        more = [{"role": "user", "content": each}] if isinstance(each, str) else each
        messages += [more] if isinstance(more, dict) else more
        as_tensors = {"return_tensors": "pt", "return_dict": True, "add_generation_prompt": True}
        given = tokenizer.apply_chat_template(messages, tools=TOOLS, **as_tensors)
        output = model.generate(**given, do_sample=False, max_new_tokens=16)
        reply = tokenizer.decode(output[0, given["input_ids"].shape[1] :], skip_special_tokens=True)
        assert chat.send(each) == reply
        messages.append({"role": "assistant", "content": reply})
    assert chat.messages == messages
    with pytest.raises(ValueError, match="a message has `role` and `content`"):
        chat.send([{"content": "no role"}])


def test_calls_of_tools_are_drafted_unless_there_is_a_grammar(loaded):
    _, tokenizer = loaded
    tokenizer.chat_template = TOOL_TEMPLATE
    text = tokenizer.decode(example_tokens(tokenizer, TOOLS))
    for mode in ("up", "down"):
        assert f'{{"name": "add", "arguments": {{"a": 0, "mode": "{mode}"}}}}' in text
    assert '"description"' not in text
    assert example_tokens(tokenizer, []) == example_tokens(tokenizer, ["odd"]) == []
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert example_tokens(tokenizer, TOOLS) == []
    chat = Chat(*loaded, tools=TOOLS)
    tokenizer.chat_template = TOOL_TEMPLATE
    assert chat._drafter_of({}) is not chat._drafter
    assert chat._drafter_of({"grammar": object()}) is chat._drafter

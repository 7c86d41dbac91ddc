"""Control tokens in messages of users: by default the tokens, with `SpelledPrompts` text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specds import Chat
from specds.models.load import load_encoder, load_model
from specds.models.spelled import SpelledPrompts
from specds.models.tokenization import FastTokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
CONTROL = ("<s>", "<|end|>", "<|end|>x")


def tokenizer_of(kind):
    """A tokenizer of characters with merges, with or without a space in front of texts."""
    letters = [*dict.fromkeys("▁ <|>/\nabcdefghijklmnopqrstuvwxyz")]
    merges = [("a", "b"), ("<", "|"), ("e", "n"), ("en", "d"), ("▁", "a"), ("\n", "a")]
    tokens = ["<unk>", *letters, *("".join(pair) for pair in merges)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    if kind != "plain":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
        backend.decoder = decoders.Metaspace(prepend_scheme=kind)
    ends = AddedToken("<|end|>", special=True, rstrip=kind == "first", normalized=False)
    backend.add_special_tokens(["<s>", ends, "<|end|>x"])
    return FastTokenizer("made", backend, None, TEMPLATE, {})


KINDS = {kind: tokenizer_of(kind) for kind in ("plain", "first", "always")}


def reference(tokenizer, messages):
    """The ids, part by part, with control tokens only where the template writes them."""
    text = tokenizer.backend_tokenizer.to_str()
    spelled = Tokenizer.from_str(text)
    later = Tokenizer.from_str(text.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"'))
    spelled.encode_special_tokens = later.encode_special_tokens = True
    ids_of = {name: tokenizer.backend_tokenizer.token_to_id(name) for name in CONTROL}
    ids = []
    for role, content in [*messages, ("assistant", None)]:
        ids.append(ids_of["<s>"])
        whole = role + "\n" + ("" if content is None else content)
        ids += later.encode(whole, add_special_tokens=False).ids
        if content is not None:
            ids.append(ids_of["<|end|>"])
    return ids


TEXTS = st.lists(st.sampled_from(["a", "b", " ", "\n", "end", "<", "|", ">", *CONTROL])).map(
    "".join
)


@pytest.mark.parametrize("kind", KINDS)
@given(contents=st.lists(TEXTS, min_size=1, max_size=3))
def test_users_write_no_control_token(kind, contents):
    tokenizer = KINDS[kind]
    messages = [{"role": "user", "content": content} for content in contents]
    about = {"add_generation_prompt": True}
    found = SpelledPrompts(tokenizer).token_ids(messages, **about)
    assert found == reference(tokenizer, [("user", content) for content in contents])
    plain = tokenizer.apply_chat_template(messages, **about)
    if not any(control in content for content in contents for control in CONTROL):
        assert found == plain
    control = {tokenizer.backend_tokenizer.token_to_id(name) for name in CONTROL}
    assert sum(token in control for token in found) == 2 * len(contents) + 1


def test_messages_of_the_model_and_the_operator_keep_their_control_tokens():
    tokenizer, text = KINDS["plain"], "a<|end|>b"
    end = tokenizer.backend_tokenizer.token_to_id("<|end|>")
    for role, number in {"system": 2, "assistant": 2, "user": 1, "tool": 1}.items():
        for content in (text, [{"type": "text", "text": text}]):
            ids = SpelledPrompts(tokenizer).token_ids([{"role": role, "content": content}])
            assert ids.count(end) == number
            assert "a<|end|>b" in tokenizer.decode(ids).replace(" ", "")


def test_chat_spells_control_tokens_if_asked(chat_model):
    loaded = load_model(str(chat_model), device="cpu")
    end = loaded[1].convert_tokens_to_ids("<|endoftext|>")
    said = "a<|endoftext|>b"
    for spells in (False, True):
        chat = Chat(*loaded, max_new_tokens=4, spells_control_tokens=spells)
        prompts = []
        chat.send(said, streamer=_Kept(prompts))
        assert prompts[0].count(end) == 2 - spells
        assert chat.messages[0]["content"] == said
    encoder = load_encoder(str(chat_model))
    ids = SpelledPrompts(encoder).token_ids([{"role": "user", "content": said}])
    assert ids == SpelledPrompts(loaded[1]).token_ids([{"role": "user", "content": said}])
    assert json.dumps(encoder.decode(ids)).count("<|endoftext|>") == 2


class _Kept:
    """A streamer that keeps the prompt."""

    def __init__(self, prompts):
        self.prompts = prompts

    def put(self, value):
        self.prompts.append(value.reshape(-1).tolist())

    def end(self):
        pass


def test_tokenizer_without_a_backend_is_refused():
    with pytest.raises(ValueError, match="control tokens can be spelled with a fast tokenizer"):
        SpelledPrompts(object())

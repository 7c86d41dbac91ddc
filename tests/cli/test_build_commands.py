"""The commands that write datastores: what they make, what they leave behind, how they fail."""

import json
import re
import shutil
import signal
import time

import pytest

from commands import started
from datastores import names
from specds import Datastore
from specds.models.resolve import demo_models

TEXT = "def mul(a, b):\n    return a * b\n" * 9


@pytest.fixture
def corpora(tmp_path, monkeypatch):
    """A folder of two files, a text, and ten rows of chat: one bad, the others of two kinds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for name in ("src/a.py", "src/b.rs", "code.txt"):
        (tmp_path / name).write_text(f"{name}: {TEXT}")
    answers = ["ok"] * 10
    answers[5] = "well"
    rows = [{"messages": [{"role": "user", "content": TEXT}, {"role": "gpt", "content": answer}]}
            for answer in answers]  # fmt: skip
    rows[2] = {"id": 2}
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))


SKIP = "--corpus rows.jsonl --on-bad-row skip"


@pytest.mark.parametrize(
    ("options", "num_documents", "corpus"),
    [
        ("--corpus src", 2, "src"),
        ("--corpus src --include *.py", 1, "src include=*.py"),
        ("--corpus src --corpus code.txt", 3, "src + code.txt"),
        ("--corpus src,code.txt --max-shard-tokens 1k", 3, "src + code.txt"),
        (SKIP, 2, "rows.jsonl on_bad_row=skip"),
        (f"{SKIP} --keep-duplicates", 9, "rows.jsonl on_bad_row=skip"),
        (f"{SKIP} --keep-duplicates --max-documents 4", 4, "rows.jsonl on_bad_row=skip"),
        (f"{SKIP} --keep-duplicates --max-tokens 0.2k", 1, "rows.jsonl on_bad_row=skip"),
    ],
)
def test_build_report_is_printed_as_a_table_and_as_json(
    run, corpora, options, num_documents, corpus
):
    build = ["build", "--tokenizer", "demo", "--out", "o", *options.split()]
    code, out, _ = run(*build)
    assert (code, "bytes/token" in out, "tokens/s" in out) == (0, True, False)
    code, out, _ = run(*build, "--overwrite", "--json")
    report = json.loads(out)
    assert (code, report["num_documents"]) == (0, num_documents)
    assert report["bytes_per_token"] == pytest.approx(report["num_bytes"] / report["num_tokens"])
    if options == SKIP:
        assert (sum(report["skipped"].values()), report["num_duplicates"]) == (1, 7)
    assert Datastore("o").corpus == [corpus]
    assert json.loads(run("verify", "o", "--json")[1])["ok"] is True


def test_add_merge_and_compact(run, tmp_path, datastore):
    (tmp_path / "more.txt").write_text("class Stack:\n    def push(self, item):\n        pass\n")
    shutil.copytree(datastore, tmp_path / "a")
    code, out, _ = run("add", tmp_path / "a", "--corpus", tmp_path / "more.txt", "--json")
    report = json.loads(out)
    assert code == 0
    figures = ("num_documents", "num_added_documents", "num_shards")
    assert [report[name] for name in figures] == [2, 1, 2]
    _, out, _ = run("add", tmp_path / "a", "--corpus", datastore.with_name("code.txt"))
    assert re.search(r"duplicates +│ +1 ", out)
    code, out, _ = run("compact", tmp_path / "a", "--max-memory", "1GB", "--json")
    assert code == 0
    assert json.loads(out)["num_shards"] == 1
    code, out, _ = run("merge", tmp_path / "a", datastore, "--out", tmp_path / "b", "--json")
    assert code == 0
    assert json.loads(out)["num_documents"] == 3
    _, out, _ = run("compact", tmp_path / "b", "--drop-duplicates")
    assert "documents" in out
    facts = json.loads(run("info", tmp_path / "b", "--json")[1])
    assert (facts["num_documents"], facts["tokenizer"], facts["vocab_size"]) == (2, "demo", 4096)
    for name in ("a", "b"):
        assert run("verify", tmp_path / name)[0] == 0


def test_interrupted_build_reports_what_is_kept(tmp_path):
    words = ["build", "--corpus", "stdlib", "--tokenizer", "demo", "--out", "o.specds"]
    build = started(*words, cwd=tmp_path, text=True)
    deadline = time.monotonic() + 60
    while not names(tmp_path) and build.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert names(tmp_path), "the build has begun to write"
    build.send_signal(signal.SIGINT)
    _, err = build.communicate(timeout=60)
    assert build.returncode == 130
    assert "error: interrupted" in err
    assert ("is kept" in err) == ("nothing was read yet" not in err) == bool(names(tmp_path))
    assert set(names(tmp_path)) <= {".o.specds.build"}


def test_relative_tokenizer_opens_from_another_folder(run, tmp_path, monkeypatch):
    shutil.copytree(demo_models() / "tiny", tmp_path / "here/tokenizer")
    (tmp_path / "here/a.txt").write_text("def add(a, b):\n" * 9)
    monkeypatch.chdir(tmp_path / "here")
    build = ("build", "--corpus", "a.txt", "--tokenizer", "./tokenizer", "--out", "d")
    code, out, _ = run(*build)
    assert code == 0
    assert "bytes/token" in out
    assert "share read" not in out
    assert "share read" in run(*build, "--overwrite", "--verbose")[1]
    monkeypatch.chdir(tmp_path)
    assert run("lookup", "here/d", "def add(")[0] == 0
    (tmp_path / "here").rename(tmp_path / "there")
    assert run("lookup", "there/d", "def add(")[0] == 0

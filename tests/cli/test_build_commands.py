"""The commands that write datastores: what they make, what they leave behind, how they fail."""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Annotated

import pytest
import typer

from specds import Datastore, build_datastore, open_corpus

TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n" * 3
SPECDS = [sys.executable, "-m", "specds"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def datastore(tmp_path_factory, demo_tokenizer):
    """A datastore of a small text file."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "code.txt").write_text(TEXT)
    corpus = open_corpus(str(folder / "code.txt"))
    build_datastore(corpus, demo_tokenizer, folder / "code.specds", tokenizer_name="demo")
    return folder / "code.specds"


def test_build_prints_a_summary_for_people_and_for_programs(run, tmp_path):
    (tmp_path / "code.txt").write_text(TEXT)
    options = ["--corpus", tmp_path / "code.txt", "--tokenizer", "demo"]
    code, out, _ = run("build", *options, "--out", tmp_path / "a.specds")
    assert code == 0
    assert "bytes/token" in out
    assert "tokens/s" in out
    code, out, _ = run("build", *options, "--out", tmp_path / "b.specds", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["num_documents"] == 1
    assert report["bytes_per_token"] == pytest.approx(report["num_bytes"] / report["num_tokens"])


@pytest.mark.parametrize("joined", [False, True])
def test_several_corpora_are_one_datastore(run, tmp_path, joined):
    files = [tmp_path / f"{name}.txt" for name in "ab"]
    for path in files:
        path.write_text(f"{path.name} = {TEXT}")
    corpora = [argument for path in files for argument in ("--corpus", path)]
    if joined:
        corpora = ["--corpus", ",".join(map(str, files))]
    code, out, _ = run(
        "build", *corpora, "--tokenizer", "demo", "--out", tmp_path / "d.specds", "--json"
    )
    assert (code, json.loads(out)["num_documents"]) == (0, 2)
    (corpus,) = Datastore.open(tmp_path / "d.specds").corpus
    assert corpus == f"{tmp_path / 'a.txt'} + {tmp_path / 'b.txt'}"


@pytest.fixture
def rows(tmp_path):
    """Ten chat rows, the third of them bad, and the options that read them."""
    good = {"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "ok"}]}
    lines = [json.dumps({**good, "id": i}) if i != 2 else '{"id": 2}' for i in range(10)]
    lines[5] = lines[5].replace("ok", "well")
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return ["--corpus", tmp_path / "rows.jsonl", "--tokenizer", "demo"]


def test_a_bad_row_is_named_or_skipped(run, tmp_path, rows):
    code, _, err = run("build", *rows, "--out", tmp_path / "a")
    assert code == 1
    assert "rows.jsonl:3" in err
    code, out, _ = run("build", *rows, "--out", tmp_path / "a", "--on-bad-row", "skip", "--json")
    report = json.loads(out)
    assert code == 0
    assert sum(report["skipped"].values()) == 1
    assert (report["num_documents"], report["num_duplicates"]) == (2, 7)


def test_limits_samples_and_duplicates(run, tmp_path, rows):
    rows = [*rows, "--on-bad-row", "skip", "--json"]
    options = {
        ("--keep-duplicates",): 9,
        ("--keep-duplicates", "--limit-documents", 4): 4,
        ("--keep-duplicates", "--limit-tokens", "0.1k"): 1,
    }
    for index, (extra, expected) in enumerate(options.items()):
        _, out, _ = run("build", *rows, "--out", tmp_path / str(index), *extra)
        assert json.loads(out)["num_documents"] == expected, extra
    code, _, err = run("build", *rows, "--out", tmp_path / "x", "--limit-tokens", "many")
    assert code == 2
    assert "`many` is no size: try 500M, 8GB or 8GiB" in err


def test_options_of_a_command_are_the_fields_of_its_record():
    from specds import BuildOptions, CorpusOptions
    from specds.cli.records import Only, Without, with_records

    seen = []

    @with_records
    def command(
        build: Annotated[BuildOptions, Only("max_tokens", "drop_duplicates")],
        corpus: Annotated[CorpusOptions, Without("without", "max_file_bytes")],
        name: str = "",
    ):
        seen.append((build, corpus, name))

    app = typer.Typer()
    app.command()(command)
    given = ["--limit-tokens", "2k", "--keep-duplicates", "--lang", "c", "--include", "*.py"]
    app([*given, "--on-bad-row", "skip", "--sample", "0.5"], standalone_mode=False)
    app([], standalone_mode=False)
    assert seen == [
        (
            BuildOptions(max_tokens=2000, drop_duplicates=False),
            CorpusOptions(language="c", include=("*.py",), on_bad_row="skip", sample=0.5),
            "",
        ),
        (BuildOptions(), CorpusOptions(), ""),
    ]


def test_an_estimate_builds_nothing(run, tmp_path, rows):
    options = [*rows, "--on-bad-row", "skip", "--out", tmp_path / "a", "--estimate"]
    code, out, _ = run("build", *options)
    assert code == 0
    assert "memory" in out
    _, out, _ = run("build", *options, "--json")
    estimate = json.loads(out)
    assert estimate["num_documents"] == 9
    assert estimate["disk_bytes"] > 0
    assert names(tmp_path) == ["rows.jsonl"]


def test_add_merge_and_compact(run, tmp_path, datastore):
    (tmp_path / "more.txt").write_text("class Stack:\n    def push(self, item):\n        pass\n")
    (tmp_path / "code.txt").write_text(TEXT)
    shutil.copytree(datastore, tmp_path / "a")
    code, out, _ = run("add", tmp_path / "a", "--corpus", tmp_path / "more.txt", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["num_documents"], report["num_added_documents"], report["num_shards"]) == (
        2,
        1,
        2,
    )
    _, out, _ = run("add", tmp_path / "a", "--corpus", tmp_path / "code.txt")
    assert re.search(r"duplicates +│ +1 ", out)
    code, out, _ = run("compact", tmp_path / "a", "--max-memory", "1GB", "--json")
    assert code == 0
    assert json.loads(out)["num_shards"] == 1
    code, out, _ = run("merge", tmp_path / "a", datastore, "--out", tmp_path / "b", "--json")
    assert code == 0
    assert json.loads(out)["num_documents"] == 3
    code, _, err = run("merge", tmp_path / "a", datastore, "--out", tmp_path / "b")
    assert code == 1
    assert "exists already" in err
    _, out, _ = run("compact", tmp_path / "b", "--drop-duplicates")
    assert "documents" in out
    assert json.loads(run("info", tmp_path / "b", "--json")[1])["num_documents"] == 2
    for name in ("a", "b"):
        assert run("verify", tmp_path / name)[0] == 0
    code, _, err = run("add", tmp_path / "none", "--corpus", tmp_path / "more.txt")
    assert code == 1
    assert "none" in err


def test_a_build_killed_by_force_goes_on_when_the_command_is_given_again(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for index in range(400):
        text = f"def f{index}(x):\n    return x * {index}\n" * 90
        (tmp_path / "src" / f"{index:03}.py").write_text(text)
    command = ["build", "--corpus", "src", "--tokenizer", "demo", "--out", "o.specds"]
    command += ["--max-shard-tokens", "10k", "--json"]
    build = subprocess.Popen([*SPECDS, *command], stdout=subprocess.DEVNULL)
    noted = tmp_path / ".o.specds.build" / "00003" / "shard.json"
    deadline = time.monotonic() + 90
    while not noted.exists() and build.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    build.kill()
    assert build.wait() == -signal.SIGKILL, "killed in time"
    code, out, _ = run(*command)
    report = json.loads(out)
    assert code == 0
    assert report["num_taken_up"] > 0
    assert report["num_documents"] == 400
    assert names(tmp_path) == ["o.specds", "src"]


def test_existing_output_is_kept_unless_overwritten(run, tmp_path):
    (tmp_path / "code.txt").write_text(TEXT)
    arguments = [
        "build",
        "--corpus",
        tmp_path / "code.txt",
        "--tokenizer",
        "demo",
        "--out",
        tmp_path / "o",
    ]
    assert run(*arguments)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "o").rglob("*") if path.is_file()}
    code, _, err = run(*arguments)
    assert code == 1
    assert "--overwrite" in err
    assert before == {path: path.read_bytes() for path in before}
    assert run(*arguments, "--overwrite")[0] == 0
    assert run("verify", tmp_path / "o")[0] == 0


def test_empty_corpus_leaves_nothing(run, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    code, _, err = run(
        "build", "--corpus", tmp_path / "empty.txt", "--tokenizer", "demo", "--out", tmp_path / "o"
    )
    assert code == 1
    assert "the corpus is empty: 0 documents read, none with text; 1 left out: empty" in err
    assert names(tmp_path) == ["empty.txt"]


def test_an_interrupted_build_says_whether_anything_is_kept(tmp_path):
    build = subprocess.Popen(
        [*SPECDS, "build", "--corpus", "stdlib", "--tokenizer", "demo", "--out", "o.specds"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell runs in the background ignores interrupts, and so do its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
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


def test_full_disk_is_one_clear_line_and_leaves_no_trace(run, tmp_path):
    (tmp_path / "code.txt").write_text(TEXT * 2000)
    options = ["--corpus", tmp_path / "code.txt", "--tokenizer", "demo"]
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, unlimited[1]))
    try:
        code, _, err = run("build", *options, "--out", tmp_path / "o.specds")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert code == 1
    assert "file too large" in err
    assert "Traceback" not in err
    assert names(tmp_path) == ["code.txt"]

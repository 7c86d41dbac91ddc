"""The `specds` command: what it prints, what it leaves behind, and how it fails."""

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from specds import build_datastore, open_corpus

TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n" * 3


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


SPECDS = [sys.executable, "-m", "specds"]


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


def test_build_reads_folders_and_jsonl(run, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(TEXT)
    (tmp_path / "src" / "b.bin").write_bytes(b"\0\1")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"answer": TEXT}) + "\n")
    code, out, _ = run(
        "build", "--corpus", tmp_path / "src", "--tokenizer", "demo", "--out", tmp_path / "a"
    )
    assert code == 0
    assert "not text" in out
    code, _, _ = run(
        "build", "--corpus", tmp_path / "rows.jsonl", "--field", "answer", "--tokenizer", "demo",
        "--out", tmp_path / "b",
    )  # fmt: skip
    assert code == 0


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
    assert "1: duplicates" in out
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
        text = f"def f{index}(x):\n    return x * {index}\n" * 30
        (tmp_path / "src" / f"{index:03}.py").write_text(text)
    command = ["build", "--corpus", "src", "--tokenizer", "demo", "--out", "o.specds"]
    command += ["--max-shard-tokens", "10k", "--json"]
    build = subprocess.Popen([*SPECDS, *command], stdout=subprocess.DEVNULL)
    noted = tmp_path / ".o.specds.build" / "00003.json"
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


def test_info_and_verify(run, datastore):
    code, out, _ = run("info", datastore, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["tokenizer"] == "demo"
    assert facts["vocab_size"] == 4096
    assert run("info", datastore)[0] == 0
    code, out, _ = run("verify", datastore)
    assert code == 0
    assert "ok" in out
    assert json.loads(run("verify", datastore, "--json")[1])["ok"] is True


def test_lookup_shows_match_and_continuations(run, datastore):
    code, out, _ = run("lookup", datastore, "zzz\n    return a", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["match_text"].endswith("return a")
    assert result["match_count"] == 6
    assert [(row["text"], row["count"]) for row in result["continuations"]] == [
        (" +", 3),
        (" -", 3),
    ]
    assert "return a" in run("lookup", datastore, "return a")[1]


def test_lookup_shows_where_in_the_corpus_the_match_occurs(run, datastore):
    _, out, _ = run("lookup", datastore, "return a +", "--sources", 2, "--json")
    first, second = json.loads(out)["sources"]
    assert first["position"] < second["position"]
    assert first["document"] == second["document"] == 0
    assert first["match"].strip() == "return a +"
    assert first["before"].startswith("def add(a, b):")
    assert first["after"].startswith(" b")
    _, out, _ = run("lookup", datastore, "return a +", "--sources", 1)
    assert "document 0, token" in out


def test_generate_writes_what_the_model_would_have_written(run, datastore, tiny_model):
    import torch

    model, tokenizer = tiny_model
    ids = tokenizer("def add(a, b):", return_tensors="pt")["input_ids"]
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
    )
    options = ["--model", "demo-tiny", "--datastore", datastore, "--max-new-tokens", 24]
    code, out, _ = run("generate", *options, "--prompt", "def add(a, b):", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["token_ids"] == expected[0, ids.shape[1] :].tolist()
    assert len(result["drafted"]) == len(result["token_ids"])
    code, out, err = run("generate", *options, "--prompt", "def add(a, b):")
    assert code == 0
    assert tokenizer.decode(result["token_ids"]).strip() in out
    assert "mean acceptance length" in err


def test_generate_takes_a_budget(run, datastore):
    options = ["generate", "--model", "demo-tiny", "--datastore", datastore, "--prompt", "def "]
    options += ["--max-new-tokens", 24, "--json"]
    texts = set()
    for budget in ("auto", 0, 3):
        code, out, _ = run(*options, "--budget", budget)
        assert code == 0
        result = json.loads(out)
        texts.add(result["text"])
        if budget != "auto":
            assert len(result["stats"]["num_drafts_per_size"]) <= 1 + budget
    assert len(texts) == 1
    for wrong in ("some", -1, 1.5):
        code, _, err = run(*options, "--budget", wrong)
        assert code == 2
        assert "is no budget" in err


@pytest.mark.parametrize("drafter", ["n-grammys", "n-grammys:parts=context", "prompt-lookup"])
def test_drafters_without_a_datastore_write_the_same_in_rows(run, tiny_model, drafter):
    import torch

    model, tokenizer = tiny_model
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
    )
    options = ["--model", "demo-tiny", "--drafter", drafter, "--max-new-tokens", 24, "--json"]
    results = {}
    for way in ("fast", "tree", "batched"):
        code, out, _ = run("generate", *options, "--verification", way, "--prompt", TEXT)
        assert code == 0
        results[way] = json.loads(out)
        assert results[way]["token_ids"] == expected[0, ids.shape[1] :].tolist()
    assert results["tree"]["drafted"] == results["batched"]["drafted"]
    assert results["tree"]["drafted"] == results["fast"]["drafted"]
    stats = results["tree"]["stats"]
    assert stats["num_accepted_tokens"] > 0
    if drafter == "n-grammys":  # by its own budget of a hundred nodes, not the usual 8
        assert stats["num_draft_tokens"] > 16 * stats["num_drafts"]


def test_sampled_generation_repeats_with_its_seed(run, datastore):
    options = ["--model", "demo-tiny", "--datastore", datastore, "--max-new-tokens", 16, "--json"]
    arguments = ["generate", *options, "--prompt", "def ", "--temperature", 1.0]
    first, again, other = (
        json.loads(run(*arguments, "--seed", seed)[1])["token_ids"] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_memory_is_kept_from_request_to_request_for_each_tenant(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path / "cache"))
    memory = tmp_path / "requests.bin"
    options = ["generate", "--model", "demo-tiny", "--max-new-tokens", 24, "--prompt", "def add(a"]
    options += ["--memory", memory, "--json"]
    first, second, other = (
        json.loads(run(*options, *extra)[1])
        for extra in ([], ["--model-tables"], ["--tenant", "ann"])
    )
    assert first["token_ids"] == second["token_ids"] == other["token_ids"]
    assert second["sources"]["memory"] > 0
    assert {"memory", "datastore"}.isdisjoint({*first["sources"], *other["sources"]})
    assert sum(first["sources"].values()) == first["stats"]["num_accepted_tokens"]
    assert len(list((tmp_path / "cache").glob("tables-*"))) == 1

    kept = memory.read_bytes()
    memory.write_bytes(kept[:-1])
    code, _, error = run(*options)
    assert code == 1
    assert "begin with an empty one" in error
    assert memory.read_bytes() == kept[:-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tenant", "ann"], "a tenant is whose requests a memory keeps: give it by --memory"),
        (["--drafter", "prompt-lookup", "--memory", "m"], "keeps no memory: leave out --memory"),
        (["--drafter", "prompt-lookup", "--model-tables"], "takes no tables"),
        (["--memory", "/nowhere/m"], "/nowhere: no such folder"),
    ],
)
def test_a_memory_that_makes_no_sense_is_refused_before_anything_is_loaded(run, options, message):
    code, _, error = run("generate", "--model", "no-model", "--prompt", "a", *options)
    assert code == 1
    assert message in error


BUILD = ["build", "--out", "o"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "--corpus", "x"], 2, "Missing option '--tokenizer'"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["lookup", "--top", "0", "a", "b"], 2, "--top"),
        ([*BUILD, "--corpus", "nowhere", "--tokenizer", "demo"], 1, "no corpus `nowhere`"),
        ([*BUILD, "--corpus", "stdlib", "--tokenizer", "/no/such"], 1, "no tokenizer"),
        (["info", "missing.specds"], 1, "missing.specds"),
        (["info", "."], 1, "is not a datastore"),
        ([*BUILD, "--corpus", "stdlib", "--tokenizer", "demo", "--lang", "c"], 1, "language"),
        (["merge", "a", "--out", "b"], 1, "a"),
        (
            ["generate", "--model", "demo", "--prompt", "a", "--drafter", "rest"],
            1,
            "drafter `rest` needs a datastore: give one by --datastore",
        ),
        (
            ["generate", "--model", "demo", "--prompt", "a", "--verification", "x"],
            2,
            "'x' is not one of 'auto', 'fast', 'tree', 'batched'",
        ),
    ],
)
def test_an_error_is_one_line_and_its_exit_code_says_whose(
    run, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    got, out, err = run(*arguments)
    assert got == code
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("error: ")


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
    assert "empty" in err
    assert names(tmp_path) == ["empty.txt"]


def test_another_tokenizer_is_refused(run, datastore, tmp_path, demo_tokenizer):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a").save_pretrained(tmp_path)
    code, _, err = run("lookup", datastore, "a b", "--tokenizer", tmp_path)
    assert code == 1
    assert "was built with the tokenizer `demo`" in err


def test_interrupted_build_leaves_no_trace(tmp_path):
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
    assert names(tmp_path) == []


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


def test_help_shows_examples(run):
    commands = ("build", "add", "merge", "compact", "info", "verify", "lookup",
                "generate", "demo")  # fmt: skip
    for command in commands:
        code, out, _ = run(command, "--help")
        assert code == 0
        assert f"specds {command}" in out.split("Example")[1]


def test_version(run):
    import specds

    assert run("--version")[1].strip() == f"specds {specds.__version__}"


def test_module_runs_as_the_command():
    done = subprocess.run([*SPECDS, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("specds ")

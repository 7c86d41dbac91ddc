"""The `specds` command: what it prints, what it leaves behind, and how it fails."""

import json
import os
import subprocess
import sys

import pytest

import specds
from specds import build_datastore, open_corpus

TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n" * 3


@pytest.fixture(scope="module")
def datastore(tmp_path_factory, demo_tokenizer):
    """A datastore of a small text file."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "code.txt").write_text(TEXT)
    corpus = open_corpus(str(folder / "code.txt"))
    build_datastore(corpus, demo_tokenizer, folder / "code.specds", tokenizer_name="demo")
    return folder / "code.specds"


SPECDS = [sys.executable, "-m", "specds"]


def imported_by(*arguments):
    """Which heavy modules a command imports."""
    program = (
        "import sys; from specds.cli import main\n"
        "try: main()\n"
        "finally: print(*{'numpy', 'torch', 'transformers'} & set(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split()) & {"numpy", "torch", "transformers"}


def test_commands_import_no_more_than_they_need(tmp_path, datastore):
    (tmp_path / "more.txt").write_text("b" + TEXT)
    assert imported_by("--help") == imported_by("build", "-h") == set()
    assert imported_by("info", datastore) == set()
    assert imported_by("lookup", datastore, "return a") == {"numpy"}
    building = ("--corpus", tmp_path / "more.txt", "--tokenizer", "demo", "--out", tmp_path / "d")
    assert imported_by("build", *building) == {"numpy"}


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
    assert "24 tokens in" in err
    assert "share of time" not in err
    assert "share of time: forward" in run("generate", *options, "def", "--verbose")[2]


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
def test_drafters_without_a_datastore_write_the_same_in_both_ways(run, tiny_model, drafter):
    import torch

    model, tokenizer = tiny_model
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
    )
    options = ["--model", "demo-tiny", "--drafter", drafter, "--max-new-tokens", 24, "--json"]
    results = {}
    for way in ("fast", "tree"):
        code, out, _ = run("generate", *options, "--verification", way, "--prompt", TEXT)
        assert code == 0
        results[way] = json.loads(out)
        assert results[way]["token_ids"] == expected[0, ids.shape[1] :].tolist()
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
        (["--memory", __file__], "is no memory of specds: name another file by --memory"),
        (["--drafter", "hierarchy:a", "--memory", "m"], "a hierarchy keeps no memory"),
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
        (
            [*BUILD, *("--corpus=stdlib", "--tokenizer=demo", "--field=a", "--messages-field=b")],
            2,
            "text_field and messages_field exclude each other",
        ),
        (
            [*BUILD, "--corpus", "stdlib", "--tokenizer", "demo", "--engine", "x"],
            2,
            "'x' is not one of 'local', 'ray'",
        ),
        (["merge", "a", "--out", "b"], 1, "a"),
        (
            ["bench", "generate", "--model", "demo", "--limit", "3", "--batch", "1,4"],
            1,
            "3 prompts make no batch of 4: give a larger --limit, or a smaller --batch",
        ),
        (
            ["generate", "--model", "demo", "--prompt", "a", "--drafter", "rest"],
            1,
            "drafter `rest` needs a datastore: give one by --datastore",
        ),
        (
            ["generate", "--model", "demo", "a", "--device", "foo"],
            1,
            "no device `foo`: try auto, cpu or cuda",
        ),
        (["generate", "--model", "./no", "a"], 1, "no model `./no`: there is no such folder"),
        (
            [
                "build",
                "--corpus",
                "stdlib",
                "--tokenizer",
                "demo",
                "--out",
                "o",
                "--limit-tokens=0",
            ],
            2,
            "max_tokens must be at least 1, got 0",
        ),
        (
            ["generate", "--model", "demo", "--prompt", "a", "--verification", "x"],
            2,
            "'x' is not one of 'auto', 'fast', 'tree'",
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


def test_another_tokenizer_is_refused(run, datastore, tmp_path, demo_tokenizer):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a").save_pretrained(tmp_path)
    code, _, err = run("lookup", datastore, "a b", "--tokenizer", tmp_path)
    assert code == 1
    assert "was built with the tokenizer `demo`" in err


def test_help_shows_examples(run):
    commands = ("build", "add", "merge", "compact", "info", "verify", "lookup",
                "generate", "demo")  # fmt: skip
    for command in commands:
        code, out, _ = run(command, "--help")
        assert code == 0
        assert f"specds {command}" in out.split("Example")[1]


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_module_runs_as_the_command(option):
    done = subprocess.run([*SPECDS, option], capture_output=True, text=True, check=True)
    assert done.stdout == f"specds {specds.__version__}\n"


def test_places_of_outputs_are_checked_before_work_begins(run, datastore, tmp_path):
    there = tmp_path / "there"
    there.write_text("mine")
    corpus = ["--corpus", "no-corpus", "--tokenizer", "no-tokenizer"]
    replay = ["bench", "replay", "--transcripts", "no-file", "--datastore", datastore]
    measured = ["bench", "generate", "--model", "demo"]
    fitted = ["fit", "--transcripts", "no-file", "--datastore", datastore]
    for command, option in (
        (["build", *corpus], "--out"),
        (replay, "--html"),
        (measured, "--html"),
        (fitted, "--out"),
    ):
        code, out, err = run(*command, option, tmp_path / "no" / "x")
        assert (code, out) == (1, "")
        assert "no such folder" in err
        code, out, err = run(*command, option, there)
        assert (code, out) == (1, "")
        assert "exists: choose another" in err
    assert "nothing else is replaced" in run("build", *corpus, "--out", there, "--overwrite")[2]
    assert there.read_text() == "mine"


WITHOUT_TORCH = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "


@pytest.mark.parametrize(
    "program",
    [
        "import specds; specds.generate",
        "from specds.cli import main; sys.argv[1:] = ['bench', 'generate', '--model', 'demo']; "
        "main()",
        "from specds.cli import main; sys.argv[1:] = ['generate', '--model', 'demo', 'a']; main()",
    ],
)
def test_what_is_not_installed_is_told_with_the_way_to_it(program):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + program], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "is not installed: pip install 'specds[transformers]'" in done.stderr.splitlines()[-1]


def test_a_terminal_of_ascii_shows_what_it_can(datastore):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for command in (["info"], ["verify"], ["lookup"]):
        text = ["return é"] if command == ["lookup"] else []
        done = subprocess.run(
            [*SPECDS, *command, datastore, *text], capture_output=True, text=True, env=environment
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()

"""The `specds` command: what it prints, what it leaves behind, and how it fails."""

import json
import os
import subprocess
import sys

import pytest

import specds
from datastores import last_head, stored

HEAVY = {"numpy", "torch", "transformers", "rich.progress"}
SPECDS = [sys.executable, "-m", "specds"]


def imported_by(*arguments):
    """Return the heavy modules that a command imports."""
    program = (
        "import sys; from specds.cli import main\n"
        "try: main()\n"
        f"finally: print(*{HEAVY} & set(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split()) & HEAVY


def test_commands_import_no_more_than_they_need(tmp_path, datastore):
    (tmp_path / "more.txt").write_text("for i in range(9):\n    print(i)\n" * 9)
    assert imported_by("--help") == imported_by("build", "-h") == set()
    assert imported_by("info", datastore) == set()
    assert imported_by("lookup", datastore, "return a") == {"numpy"}
    building = ("--corpus", tmp_path / "more.txt", "--tokenizer", "demo", "--out", tmp_path / "d")
    assert imported_by("build", *building) == {"numpy", "rich.progress"}


def test_lookup_shows_the_match_what_followed_and_where_it_occurs(run, datastore):
    code, out, _ = run("lookup", datastore, "zzz\n    return a", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["match_text"].endswith("return a")
    assert result["match_count"] == 6
    found = [(row["text"], row["count"]) for row in result["continuations"]]
    assert found == [(" +", 3), (" -", 3)]
    assert "return a" in run("lookup", datastore, "return a")[1]
    _, out, _ = run("lookup", datastore, "return a +", "--occurrences", 2, "--json")
    first, second = json.loads(out)["occurrences"]
    assert first["position"] < second["position"]
    assert first["document"] == second["document"] == 0
    assert first["match"].strip() == "return a +"
    assert first["before"].startswith("def add(a, b):")
    assert first["after"].startswith(" b")
    _, out, _ = run("lookup", datastore, "return a +", "--occurrences", 1)
    assert "code.txt, token" in out


def test_drafters_do_not_change_the_text(run, datastore, tiny_model):
    model, tokenizer = tiny_model
    ids = tokenizer("def add(a, b):", return_tensors="pt")
    text = model.generate(**ids, max_new_tokens=24, do_sample=False)[0]
    expected = text[ids["input_ids"].shape[1] :].tolist()
    options = ["generate", "--model", "demo-tiny", "--datastore", datastore]
    options += ["--max-new-tokens", 24, "def add(a, b):"]
    most = {}
    for way in ("--max-nodes auto", "--max-nodes 0", "--max-nodes 3", "--verification model",
                "--verification packed", "--drafter n-grammys"):  # fmt: skip
        code, out, _ = run(*options, "--json", *way.split())
        assert code == 0
        result = json.loads(out)
        assert result["token_ids"] == expected
        assert len(result["drafted"]) == len(expected)
        most[way] = len(result["stats"]["acceptance_histogram"]) - 1
        verification = way.partition("verification ")[2] or result["stats"]["verification"]
        assert result["stats"]["verification"] == verification
    assert max(most["--max-nodes 0"], 0) == 0
    assert most["--max-nodes 3"] <= 3
    assert most["--drafter n-grammys"] > 64, "its own draft has a hundred nodes"
    _, out, err = run(*options)
    assert tokenizer.decode(expected).strip() in out
    assert "24 tokens in" in err
    assert "share of time" not in err
    assert "share of time: forward" in run(*options, "--verbose")[2]


def test_sampled_generation_repeats_with_its_seed(run, datastore):
    options = ["--model", "demo-tiny", "--datastore", datastore, "--max-new-tokens", 16, "--json"]
    sampled = ["generate", *options, "def ", "--temperature", 1.0, "--seed"]
    first, again, other = (json.loads(run(*sampled, seed)[1])["token_ids"] for seed in (1, 1, 2))
    assert first == again != other


def test_a_memory_is_kept_from_request_to_request_for_each_tenant(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path / "cache"))
    memory = tmp_path / "requests.bin"
    options = ["generate", "--model", "demo-tiny", "--max-new-tokens", 24, "def add(a"]
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

    last_head(memory).write_bytes(b"damaged")
    kept = stored(memory)
    code, _, error = run(*options)
    assert code == 1
    assert "begin with an empty one" in error
    assert stored(memory) == kept


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_module_runs_as_the_command(option):
    done = subprocess.run([*SPECDS, option], capture_output=True, text=True, check=True)
    assert done.stdout == f"specds {specds.__version__}\n"


WITHOUT_TORCH = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
COMMAND = "from specds.cli import main; sys.argv[1:] = '{}'.split(); main()"
BENCH, GENERATE = "bench generate --model demo --baseline generate", "generate --model demo-tiny a"


@pytest.mark.parametrize(
    "program", ["import specds; specds.accelerate", COMMAND.format(BENCH), COMMAND.format(GENERATE)]
)
def test_missing_package_error_names_its_extra(program):
    command = [sys.executable, "-c", WITHOUT_TORCH + program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        "is not installed: in a checkout of specds, run pip install '.[transformers]'"
        in done.stderr.splitlines()[-1]
    )


def test_a_terminal_of_ascii_shows_what_it_can(datastore):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for name, *text in (["info"], ["verify"], ["lookup", "return é"]):
        command = [*SPECDS, name, datastore, *text]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()

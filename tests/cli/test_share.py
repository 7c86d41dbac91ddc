"""Build commands and acceptance on cards, and the datastore that a model's folder names."""

import json
import shlex
from pathlib import Path

import pytest

from specds import Datastore
from specds._core import read_manifest
from specds.cli.model_options import Running
from specds.cli.share import _acceptance
from specds.hub.names import HubName
from specds.hub.upload import card_of


@pytest.fixture
def built(run, tmp_path):
    """A datastore that the command line built, and its corpus."""
    corpus, out = tmp_path / "a b.txt", tmp_path / "d.specds"
    corpus.write_text("for i in range(10):\n    print(i)\n" * 20)
    given = ["--corpus", corpus, "--tokenizer", "demo"]
    shaping = ["--keep-duplicates", "--max-tokens", 300]
    code, _, err = run("build", *given, *shaping, "--out", out, "--json")
    assert code == 0, err
    return out, corpus


def test_command_that_gives_the_same_shards_is_kept(built, run, tmp_path):
    out, corpus = built
    (command,) = Datastore(out).commands
    assert shlex.split(command) == [
        *("specds", "build", "--corpus", str(corpus), "--tokenizer", "demo"),
        *("--keep-duplicates", "--max-tokens", "300"),
    ]
    again = tmp_path / "again"
    assert run(*shlex.split(command)[1:], "--out", again, "--json")[0] == 0
    assert (again / "manifest.json").read_bytes() == (out / "manifest.json").read_bytes()
    assert run("merge", out, again, "--out", tmp_path / "both", "--json")[0] == 0
    assert Datastore(tmp_path / "both").commands == [command]


def test_acceptance_is_that_of_a_replay(built, tmp_path):
    answers = tmp_path / "answers.jsonl"
    row = {"prompt": "for i in range(", "completion": "10):\n    print(i)\nfor i in range(10):\n"}
    answers.write_text(json.dumps(row) + "\n")
    rows = _acceptance(built[0], [answers])
    assert [(row["transcripts"], row["drafter"], row["max_nodes"]) for row in rows] == [
        ("answers", "fused", 16),
        ("answers", "fused", 64),
    ]
    assert all(row["mean_acceptance_length"] > 1 for row in rows)
    card = card_of(HubName("org/name"), json.loads(read_manifest(built[0])), 1, None, rows)
    assert f"| `answers` | `fused` | 16 | {rows[0]['mean_acceptance_length']:.2f} |" in card


def test_model_s_datastore_is_used_unless_another_is_given(tmp_path, capsys):
    (tmp_path / "specds.json").write_text('{"datastore": "org/name"}')
    model = str(tmp_path)
    assert Running(model=model).with_datastore().datastore == Path("org/name")
    assert "drafting from `org/name`, which" in capsys.readouterr().err.replace("\n", " ")
    for given, used in (("mine", Path("mine")), ("none", None)):
        running = Running(model=model, datastore=Path(given))
        assert running.with_datastore().datastore == used
    assert Running(model="demo").with_datastore().datastore is None

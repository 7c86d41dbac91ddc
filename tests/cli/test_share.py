"""Build commands on cards, and the datastore that a model's folder names."""

import shlex
from pathlib import Path

import pytest

from specds import Datastore
from specds.cli.model_options import Running


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


def test_model_s_datastore_is_used_unless_another_is_given(tmp_path, capsys):
    (tmp_path / "specds.json").write_text('{"datastore": "org/name"}')
    model = str(tmp_path)
    assert Running(model=model).with_datastore().datastore == Path("org/name")
    assert "drafting from `org/name`, which" in capsys.readouterr().err.replace("\n", " ")
    for given, used in (("mine", Path("mine")), ("none", None)):
        running = Running(model=model, datastore=Path(given))
        assert running.with_datastore().datastore == used
    assert Running(model="demo").with_datastore().datastore is None

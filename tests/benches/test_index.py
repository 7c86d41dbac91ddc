"""The index beside its rivals: a run over a small text."""

import json

import numpy as np
import pytest

from datastores import build
from rivals import index
from specds.build.local import facts_of


@pytest.fixture(scope="module")
def files(tmp_path_factory, demo_tokenizer):
    """A datastore of documents of a hundred tokens, and an answer."""
    folder = tmp_path_factory.mktemp("index")
    texts = np.random.default_rng(0).integers(4000, size=(40, 100)).tolist()
    build(folder / "code.specds", texts, **facts_of(demo_tokenizer, "demo"))
    row = {"prompt_ids": texts[0][:50], "completion_ids": texts[0][50:]}
    (folder / "one.jsonl").write_text(json.dumps(row))
    return folder


def command(files, *more):
    given = ("--datastore", files / "code.specds", "--transcripts", files / "one.jsonl", *more)
    index.main([*map(str, given), "--runs", "1"])


def test_each_index_has_its_figures_or_says_that_it_is_absent(files, monkeypatch, capsys):
    monkeypatch.setattr(index, "NUM_QUERIES", 50)
    command(files, "--rivals-python", index.sys.executable, "--json", files / "out.json")
    found = json.loads((files / "out.json").read_text())
    assert found["tokengrams"].keys() == found["infini-gram"].keys() == {"absent"}
    for name in ("specds", "specds, two shards"):
        assert found[name].keys() == index.COLUMNS.keys()
        assert min(found[name].values()) > 0
    assert "bytes a token" in capsys.readouterr().out


def test_an_index_that_counts_otherwise_than_a_scan_is_refused(files, monkeypatch):
    monkeypatch.setattr(index, "NUM_QUERIES", 50)
    monkeypatch.setattr(index, "scan", lambda _, patterns: [-1] * len(patterns))
    with pytest.raises(RuntimeError, match="specds counts otherwise than a scan"):
        command(files)

"""The benchmark of the index: a run of all of it, and of its growth."""

import json

import pytest

from index import __main__ as command
from index import made_text, scale


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    rows = [json.dumps({"text": " ".join(WORDS[i : i + 60])}) for i in range(300)]
    path = tmp_path_factory.mktemp("bench") / "corpus.jsonl"
    path.write_text("\n".join(rows))
    return path


WORDS = [f"word{index * index % 97}" for index in range(400)]


def test_the_whole_benchmark_runs(corpus_file, tmp_path, capsys):
    answer = {"prompt": " ".join(WORDS[:20]), "completion": " ".join(WORDS[20:60])}
    (tmp_path / "answers.jsonl").write_text(json.dumps(answer))
    command.main(
        corpus=str(corpus_file),
        transcripts=[tmp_path / "answers.jsonl"],
        part=[command.Part.SERVING, command.Part.DEGENERATE],
        cache=tmp_path / "cache",
        json_file=tmp_path / "result.json",
        check=True,
    )
    assert "B/token" in capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    names = {figure["name"] for figure in result["figures"]}
    assert {"build, specds: disk", "open", "draft, p99"} <= names
    assert "build of ten copies: times that of text" in names
    assert result["measured"]["wrong answers"] == {}
    # The tokens are kept for the next run, and nothing else.
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_growth_is_measured(corpus_file, tmp_path, capsys):
    scale.main(
        corpus=str(corpus_file),
        sizes="60k,20k",
        cache=tmp_path / "cache",
        answers=1,
        json_file=tmp_path / "result.json",
    )
    assert "killed twice" in capsys.readouterr().out
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [round(row["num_tokens"], -4) for row in rows] == [20_000, 60_000]
    for row in rows:
        assert row["killed"] == row["killed"] | {"is_equal": True}
        assert row["killed"]["kept_documents"] == row["num_tokens"] // (made_text.LENGTH + 1)
        assert row["fused"]["warm"]["acceptance_length"] >= 1

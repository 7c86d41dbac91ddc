"""Benchmark of real models, and their texts with drafts."""

import json

import pytest

from real import __main__ as bench
from real import tables
from real.measure import AskedModel
from real.models import FOLDER
from specds.bench.generation.target import BenchTarget
from specds.indexing import build_from_token_ids
from specds.models.load import load_model

REQUEST = {"model": "m", "threads": 1, "instructions": "auto", "mode": "greedy", "kind": "chat"}
MEASURED = {"number": 0, "passes": 2, "shares": {"prefill": 0.25, "forward": 0.5}}
MEASURED |= {"tokens": 4, "drafted": 5, "accepted": 2}
SECONDS = {"transformers": 8.0, "llama.cpp": 4.0, "plain": 4.0, "specds": 2.0}
SECONDS |= {"plain-int8": 2.0, "specds-int8": 1.0}


def rows(**texts):
    return [
        {
            **REQUEST,
            **MEASURED,
            "way": way,
            "seconds": seconds,
            "texts": [texts.get(way, [1, 2, 3, 4])],
        }
        for way, seconds in SECONDS.items()
    ]


def test_ratios_compare_tokens_per_second(capsys):
    tables.print_tables(rows())
    printed = capsys.readouterr().out
    assert "| all | llama.cpp | 1.0 | 2.00 | 2.00 to 2.00 " in printed
    line = "| chat | specds | 2.0 | 4.00 | 4.00 to 4.00 | 2/5 | 2.00 | 1.86 "
    assert f"{line}| 25%, 50%, 25.0% | 1 of 1 |" in printed


def test_given_rows_are_shown_without_measuring(tmp_path, capsys):
    written = tmp_path / "rows.jsonl"
    found = rows(specds=[0, 1, 2, 5])
    found[-1]["tie"] = 5e-5
    written.write_text("".join(json.dumps(row) + "\n" for row in found))
    assert bench.main(["--rows", str(written)]) == 1  # a text differs
    printed = capsys.readouterr().out
    over = "2.00 (2.00 to 2.00) | 4.00 (4.00 to 4.00)"
    assert f"| specds | 2.0 | 2.0 | {over} | 0 of 1 | 0 of 1 |" in printed
    assert "differ by at most 5e-05" in printed


def test_default_datastore_is_compared_with_the_same_way_without_it(capsys):
    more = {**rows()[3], "way": "specds-default-datastore", "seconds": 1.6}
    tables.print_summary([*rows(), more])
    printed = capsys.readouterr().out
    assert "| specds-default-datastore over specds | 1.250 | 1.250 |" in printed
    assert not bench.any_differs([*rows(), more])
    assert bench.any_differs([*rows(), more | {"texts": [[0]]}])


def test_text_that_drafts_change_fails():
    assert not bench.any_differs(rows())
    assert not bench.any_differs(rows(**{"llama.cpp": [0]}))
    assert bench.any_differs(rows(specds=[0, 1, 2, 5]))
    assert bench.any_differs(rows(**{"specds-int8": [0]}))
    int8 = {"plain-int8": [0], "specds-int8": [0]}
    assert not bench.any_differs(rows(**int8))


@pytest.mark.parametrize("way", ["plain", "specds", "specds-default-datastore"])
def test_ways_of_specds_write_the_same_text(way, tmp_path):
    asked, (model, _) = AskedModel.__new__(AskedModel), load_model("demo-tiny", device="cpu")
    asked._targets = {"float32": BenchTarget(model)}
    size = model.config.vocab_size
    asked._datastore = build_from_token_ids([[1, 2, 3]], tmp_path / "default", vocab_size=size)
    settings = {"max_new_tokens": 8, "do_sample": False}
    rows = [asked.start(each, [])([5, 6, 7], settings) for each in ("plain", way)]
    assert rows[0]["texts"] == rows[1]["texts"]
    assert rows[1]["passes"] <= rows[1]["tokens"] == 8


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_model_text_is_unchanged_by_drafts(tmp_path):
    """SmolLM2 of 135 million parameters, a package of 98 MB; a request of each kind."""
    out = tmp_path / "rows.jsonl"
    few = ["--threads", "1", "--limit", "1", "--new-tokens", "32", "--out", str(out)]
    few += ["--ways", "transformers", "plain", "specds", "--modes", "greedy", "T 0.7"]
    assert bench.main(["--models", "smollm2", *few]) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(written) == 9 * 2 * 3
    assert (FOLDER / "smollm2" / "model.safetensors").is_file()
    # The control: drafts were accepted.
    ours = [row for row in written if row["way"] == "specds"]
    assert sum(row["tokens"] for row in ours) > 1.2 * sum(row["passes"] for row in ours)

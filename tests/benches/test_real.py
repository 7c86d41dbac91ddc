"""A real model's text stays the same with drafts, and the benchmark that says how fast it comes."""

import json

import pytest

from real import __main__ as bench
from real.models import FOLDER

REQUEST = {"model": "m", "dtype": "float32", "threads": 1, "mode": "greedy", "kind": "chat"}
MEASURED = {"number": 0, "passes": 2, "wall_s": 2.0, "shares": {"prefill": 0.25, "forward": 0.5}}
SECONDS = {"generate": 4.0, "prompt lookup": 8.0, "our loop": 4.0, "specds": 2.0}


def rows(**texts):
    return [
        {**REQUEST, **MEASURED, "way": way, "cpu_s": seconds, "text": texts.get(way, [1, 2, 3, 4])}
        for way, seconds in SECONDS.items()
    ]


def test_ratios_are_of_tokens_in_a_second(capsys):
    bench.print_tables(rows())
    line = "| chat | 2.0 (CPU 1.0) | 0.50 | 1.00 | **2.00** (1.00) | 2.00 to 2.00 | 2.00 "
    assert f"{line}| 25%, 50%, 25.0% | 1 of 1 |" in capsys.readouterr().out


def test_tables_of_rows_that_are_there_are_written_as_figures(tmp_path, capsys):
    written, out = tmp_path / "rows.jsonl", tmp_path / "figures.json"
    written.write_text("".join(json.dumps(row) + "\n" for row in rows(specds=[1, 2, 3, 5])))
    named = ["--rows", str(written), "--figures", str(out), "--conditions", "idle"]
    assert bench.main(named) == 1  # a text differs
    assert "| chat | 2.0" in capsys.readouterr().out
    (figure,) = json.loads(out.read_text())["rows"]
    assert figure.pop("over_generate") == {"prompt lookup": [0.5], "our loop": [1], "specds": [2]}
    assert figure == {
        **REQUEST,
        "num_requests": 1,
        "tokens_a_pass": 2,
        "num_differing": 1,
        "shares": MEASURED["shares"],
        "conditions": "idle",
    }


def test_a_text_that_differs_fails_where_rounding_is_no_excuse():
    assert not bench.any_differs(rows())
    assert not bench.any_differs(rows(**{"prompt lookup": [1]}))
    assert bench.any_differs(rows(specds=[1, 2, 3, 5]))
    assert not bench.any_differs([{**row, "dtype": "bfloat16"} for row in rows(specds=[5])])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_real_models_text_stays_the_same(tmp_path):
    """SmolLM2 of 135 million parameters, a package of 98 MB; a request of each kind."""
    out = tmp_path / "rows.jsonl"
    few = ["--threads", "1", "--limit", "1", "--new-tokens", "32", "--out", str(out)]
    assert bench.main(["--models", "smollm2", "--dtypes", "float32", *few]) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(written) == 9 * 2 * 4
    assert (FOLDER / "smollm2" / "model.safetensors").is_file()
    # The control: drafts were accepted.
    ours = [row for row in written if row["way"] == "specds"]
    assert sum(len(row["text"]) for row in ours) > 1.2 * sum(row["passes"] for row in ours)

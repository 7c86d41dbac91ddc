"""Benchmark of structured output: its schemas, its tables, and what it says without a library."""

import json
import sys

import pytest

from grammars import GRAMMARS, TEXTS, VOCABULARY
from real import __main__ as bench
from real import structured
from specds.generation.budget import FixedBudget

ROW = {"grammar": "xgrammar", "mode": "greedy", "drafts": "8", "backend": "b", "kind": "enums"}
ROW |= {"number": 0, "tokens": 12, "plain_seconds": 6.0, "forced": [8, 6], "same": True}
ALONE = {"way": structured.ALONE, "passes": 6, "seconds": 4.0, "host": 0.006}
ALONE |= {"draft_us": [10.0, 20.0, 90.0], "masks": 6}
NO_VALUES = {**ALONE, "way": structured.NO_VALUES, "passes": 4, "seconds": 3.0}
GUIDED = {**ALONE, "way": structured.GUIDED, "passes": 3, "seconds": 2.0}
GUIDED |= {"draft_us": [30.0, 40.0], "masks": 1}


def test_written_grammars_are_valid_and_ten_requests_of_each_kind_are_measured():
    from llguidance import LLMatcher

    for kind in structured.structured_kinds():
        asked = structured.requests(kind)
        assert len(asked) == 10
        for source in {source["frame"]: source for source, _ in asked}.values():
            if "regex" in source:
                grammar = LLMatcher.grammar_from_regex(source["regex"])
            else:
                schema = structured.json_schema(source["schema"])
                grammar = LLMatcher.grammar_from_json_schema(schema)
            assert not LLMatcher.validate_grammar(grammar)
    assert len(structured.log()) == 10


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(("grammar", "masks"), [("llguidance", "0.33"), ("xgrammar", "")])
def test_tables_of_rows_compare_drafts_with_plain_and_with_each_other(
    grammar, masks, same, tmp_path, capsys
):
    written = tmp_path / "rows.jsonl"
    rows = [ROW | ALONE, ROW | NO_VALUES, ROW | GUIDED | {"same": same}]
    lines = (json.dumps(row | {"grammar": grammar}) + "\n" for row in rows)
    written.write_text("".join(lines))
    assert bench.main(["--rows", str(written)]) == 1 - same
    printed = capsys.readouterr().out
    figures = "2.00 | 3.00 | 4.00 | 2.00 | +33.3% | 1.50 | 2.00 | 3.00 | 20 | 20 | 35"
    figures += f" | {masks} | 0.750 | 1.00 | {2 + same} of 3"
    assert f"| {grammar}, greedy, 8, b | {figures} |" in printed
    assert f"| {grammar}, greedy, 8, b | 2.00 / 3.00 / 4.00 |" in printed


def test_times_of_calls_are_noted_and_the_method_is_put_back():
    draft = FixedBudget.draft
    with structured._noted_times("specds.generation.budget.FixedBudget.draft") as found:
        FixedBudget(4, 9).draft([], [])
    assert len(found) == 1
    assert FixedBudget.draft is draft


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_forced_tokens_of_a_text_are_counted(library):
    grammars = structured.CompiledGrammars.__new__(structured.CompiledGrammars)
    grammars.of = lambda _: GRAMMARS[library]()
    tokens = [VOCABULARY.index(bytes([byte])) for byte in TEXTS[0]]
    drafted, right = grammars.forced(None, tokens)
    assert 0 < right < drafted <= len(tokens)


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(SystemExit, match="needs xgrammar: pip install xgrammar"):
        structured.CompiledGrammars("xgrammar-any-whitespace", None, 9)


def test_kinds_with_and_without_grammars_are_measured_apart(capsys):
    with pytest.raises(SystemExit):
        bench.parsed(["--kinds", "chat", "tools"])
    assert "are measured apart" in capsys.readouterr().err

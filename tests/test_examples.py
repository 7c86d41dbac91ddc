"""Programs of `examples/`, run without a network."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints(program, capsys):
    lines = program.read_text().count("\n")
    names = runpy.run_path(str(program))
    assert capsys.readouterr().out.strip()
    assert lines <= 40
    if program.stem == "chat_memory":  # the second run drafts from the first answer
        assert names["chat"].stats.mean_acceptance_length > 4

"""Programs and the notebook of `examples/`, run without a network."""

import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints(program, capsys):
    lines = program.read_text().count("\n")
    names = runpy.run_path(str(program))
    assert capsys.readouterr().out.strip()
    assert lines <= 40
    if program.stem == "chat_memory":  # the second run drafts from the first answer
        assert names["chat"].stats.mean_acceptance_length > 4


def test_notebook_runs_and_displays():
    cells = json.loads((FOLDER / "notebook.ipynb").read_text())["cells"]
    programs = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict = {}
    for program in programs:
        exec(program, names)
        assert eval(program.splitlines()[-1], names)._repr_html_()
    assert names["output"].stats.num_accepted_tokens > 0

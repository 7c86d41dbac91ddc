"""Programs and the notebook of `examples/`, run without a network."""

import json
import runpy
from pathlib import Path

import pytest

from without_torch import ROOT, make_environment, run_without_torch

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


def cells():
    found = json.loads((FOLDER / "notebook.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def test_notebook_runs_and_displays():
    names: dict = {}
    for program in cells():
        exec(program, names)
        assert eval(program.splitlines()[-1], names)._repr_html_()
    assert names["output"].stats.num_accepted_tokens > 0


def test_notebook_runs_with_what_its_first_lines_install(tmp_path):
    environment = make_environment(tmp_path / "packages")
    demo = "specds_demo"
    (environment / demo).symlink_to(ROOT / "packages/demo" / demo)
    done = run_without_torch(environment, "-c", "\n".join(cells()), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tokens" in done.stdout

"""The benchmark of the papers' ablations: its replay is that of `bench replay`, and its counts."""

import json
from operator import lt

import numpy as np
import pytest
import torch

from datastores import build
from models import VOCAB_SIZE, tiny_model
from papers import __main__ as command
from papers import hsddw, n_grammys
from papers.answers import Answer, Setup, markdown

TEXT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 4, 6] * 3


@pytest.fixture
def datastore(tmp_path):
    return build(tmp_path / "d", [TEXT], vocab_size=VOCAB_SIZE, separator=VOCAB_SIZE)


def answer(number=0, source="mtbench"):
    rng = np.random.default_rng(number)
    completion = np.array([*TEXT[:9], *rng.integers(7, size=6)])
    return Answer(source, np.array([4, 1]), completion, id=f"mtbench-{81 + 10 * number}-0")


@pytest.fixture
def setup(datastore, monkeypatch):
    made = Setup(new_tokens=8)
    made.__dict__.update(datastores=[datastore], recorded=[answer(0), answer(1)])
    model = tiny_model("llama")
    made.__dict__["demo"] = (model, None)
    monkeypatch.setattr(Setup, "written", lambda *_, **__: [answer(0, "demo")])
    monkeypatch.setattr(hsddw, "load_model", lambda *_, **__: (model, None))
    return made


# One part indexes the whole standard library.
@pytest.mark.parametrize("part", [p for p in command.PARTS if p != "aded-sampling"])
def test_every_part_makes_a_table(setup, monkeypatch, part):
    for name, value in {"ROWS": (1, 3), "LENGTHS": (2, 4), "REPEATS": 1}.items():
        monkeypatch.setattr(n_grammys, name, value)
    head, line, *rows = markdown([*command.PARTS[part][1](setup)]).splitlines()
    assert rows
    assert {row.count("|") for row in (head, line, *rows)} == {head.count("|")}


def test_a_model_that_drafts_for_itself_is_never_rejected_and_never_pays(setup):
    model = setup.demo[0]
    with torch.inference_mode():
        ids = torch.tensor([[4, 1]])
        written = model.generate(ids, do_sample=False, max_new_tokens=12)[0, 2:].numpy()
    found = hsddw.replay(setup, ["small"], "sd", [Answer("demo", ids[0].numpy(), written)], 5)
    assert found.accepted == found.windows == [5, 5]
    assert found.entropies[1] == []
    assert found.cost == pytest.approx(2 + 10 * 0.19)
    other = hsddw.replay(setup, ["small"], "sd", [answer()], 5)
    assert len(other.entropies[1]) == sum(map(lt, other.accepted, other.windows))


def test_a_part_reads_transcripts_and_says_if_they_are_missing(tmp_path, capsys):
    with pytest.raises(SystemExit, match="this part needs --transcripts"):
        command.main(["n-grammys-context"])
    path = tmp_path / "answers.jsonl"
    row = {"id": "mtbench-81-0", "prompt_ids": [1, 2], "completion_ids": [3, 1, 2, 3, 1, 2]}
    path.write_text(json.dumps(row) + "\n")
    command.main(["n-grammys-context", "--transcripts", str(path), "--tokenizer", "demo"])
    assert "| q | answers |" in capsys.readouterr().out

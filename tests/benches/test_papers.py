"""The benchmark of the papers' ablations: its replay is that of `bench replay`, and its counts."""

import json
from operator import lt

import numpy as np
import pytest
import torch

from models import VOCAB_SIZE, tiny_model
from papers import __main__ as command
from papers import hsddw, n_grammys, retrieval
from papers.answers import Answer, Setup, lengths, markdown
from specds import RestDrafter
from specds.build import DatastoreBuilder
from specds.drafters import RestConfig

TEXT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 4, 6] * 3


@pytest.fixture
def datastore(tmp_path):
    with DatastoreBuilder(tmp_path / "d", vocab_size=VOCAB_SIZE, separator=VOCAB_SIZE) as builder:
        builder.add_documents(TEXT, [len(TEXT)])
        return builder.finish()


def answer(number=0, source="mtbench"):
    rng = np.random.default_rng(number)
    completion = np.array([*TEXT[:9], *rng.integers(7, size=6)])
    return Answer(source, np.array([4, 1]), completion, id=f"mtbench-{81 + 10 * number}-0")


@pytest.fixture
def setup(datastore, monkeypatch):
    made = Setup()
    made.__dict__.update(datastores=[datastore], recorded=[answer(0), answer(1)])
    model = tiny_model("llama")
    made.__dict__["demo"] = (model, None)
    monkeypatch.setattr(Setup, "written", lambda *_, **__: [answer(0, "demo")])
    monkeypatch.setattr(hsddw, "load_model", lambda *_, **__: (model, None))
    return made


def test_a_table_has_a_row_a_drafter_and_a_column_a_set(datastore):
    drafters = {"2": RestDrafter(datastore, RestConfig(max_match=2)), "16": RestDrafter(datastore)}
    rows = [*lengths("n_max", drafters, [answer(0), answer(1, "other")], budget=8)]
    assert [list(row) for row in rows] == [["n_max", "mtbench", "other"]] * 2
    assert markdown(rows).splitlines()[:2] == [
        "| n_max | mtbench | other |",
        "| --- | ---: | ---: |",
    ]


def test_random_continuations_are_eight_of_eight_tokens_that_occur(setup):
    session = retrieval.RandomDrafter(setup.datastore).session([1, 2])
    tree = session.draft(64)
    paths = [tuple(tree.token_ids[path].tolist()) for path in tree.paths()]
    text = [*TEXT, VOCAB_SIZE]
    ends = [tuple(text[i + 2 : i + 10]) for i in range(len(TEXT)) if text[i : i + 2] == [1, 2]]
    assert 0 < len(paths) <= 8
    assert all(any(end[: len(path)] == path for end in ends) for path in paths)


def test_tasks_are_told_by_the_number_of_the_question(setup):
    assert list(next(retrieval.aded_tasks(setup))) == ["task", "writing", "roleplay"]


def test_rows_of_a_mixed_draft_are_counted_by_their_source(setup):
    rows = {row.pop("share of drafts"): row for row in n_grammys.mixed(setup)}
    allocated = rows["rows from the context"]
    assert sum(int(share.rstrip(" %")) for share in allocated.values()) == pytest.approx(100, abs=5)
    assert allocated["0"] not in ("0 %", "100 %")
    assert rows["tokens accepted of context"]["0"] == "0 %"


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


def test_a_call_of_many_rows_is_timed_beside_one_of_a_token(setup, monkeypatch):
    for name, value in {"ROWS": (1, 3), "LENGTHS": (2, 4), "REPEATS": 1}.items():
        monkeypatch.setattr(n_grammys, name, value)
    times = n_grammys.slow_downs(setup.demo[0], 8)
    assert times[1, 0] == 1
    assert sorted(times) == [(1, 0), (1, 2), (1, 4), (3, 2), (3, 4)]


def test_parts_are_chosen_by_name_and_say_what_they_need(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["rest-figure"])
    assert "no part rest-figure: choose of rest-match" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="this part needs --datastore"):
        command.main(["rest-match"])
    with pytest.raises(SystemExit, match="this part needs --transcripts"):
        command.main(["n-grammys-context"])
    path = tmp_path / "answers.jsonl"
    row = {"id": "mtbench-81-0", "prompt_ids": [1, 2], "completion_ids": [3, 1, 2, 3, 1, 2]}
    path.write_text(json.dumps(row) + "\n")
    command.main(["n-grammys-context", "--transcripts", str(path), "--tokenizer", "demo"])
    assert "| q | answers |" in capsys.readouterr().out

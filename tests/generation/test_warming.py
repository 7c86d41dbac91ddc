"""What is warmed up is there in the first request, until it is released."""

import pytest
import torch

import specds
from models import FAMILIES, GREEDY, build, mixed_drafter, plain_generate, prompt, unpackable
from recorded import Recorded, kept_of, record
from specds.budget import step_cost
from specds.verify import recordings, release


@pytest.fixture(autouse=True)
def _measuring_takes_no_second(monkeypatch):
    monkeypatch.setattr(step_cost, "_MEASURING_S", 0.01)


def model_of(family="llama"):
    return build(FAMILIES[family][0], {**FAMILIES[family][1], "max_position_embeddings": 4096})


def test_a_first_request_sets_nothing_up(monkeypatch):
    record(monkeypatch, 0, 7, 63)
    model, drafter = model_of(), specds.FusedDrafter()
    specds.warm_up(model, drafter, max_context=600, rows=[1, 2])
    kept = kept_of(model)
    # Those of the self-check went with its small cache.
    assert 0 < sum(len(made.recordings) for made in kept.passes.values()) < Recorded.made
    assert kept.cache.num_slots >= 2 * 600

    def fail(*_):
        raise AssertionError("the first request measured")

    monkeypatch.setattr(step_cost, "measure", fail)
    storage = kept.cache.storage
    settings = {"max_nodes": 7, "max_new_tokens": 12, **GREEDY}
    for num_rows in (1, 2):
        ids = prompt().repeat(num_rows, 1)
        made = Recorded.made
        output = specds.generate(model, ids, drafter, **settings)
        assert (
            output.sequences.tolist() == model.generate(ids, max_new_tokens=12, **GREEDY).tolist()
        )
        assert Recorded.made == made
        specds.generate(model, ids, drafter, **{**settings, "max_nodes": "auto"})
    assert kept_of(model).cache.storage == storage
    release(model)
    assert model not in recordings._free


def test_on_a_processor_steps_are_measured(monkeypatch):
    model = model_of("gpt_neox")
    specds.warm_up(model, max_context=1500)
    lengths = {key[-1] for key in step_cost._models[model]}
    assert lengths == {1024, 2048}


def test_a_model_that_is_verified_by_tree_is_warmed_up_too():
    model = unpackable()
    with pytest.warns(UserWarning, match="cannot be exchanged"):
        specds.warm_up(model, max_context=64, rows=2)
    expected = plain_generate(model, **GREEDY)
    torch.manual_seed(0)
    output = specds.generate(model, prompt(), mixed_drafter(expected), max_new_tokens=32, **GREEDY)
    assert output.sequences.tolist() == [expected]

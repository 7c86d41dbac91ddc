"""What is warmed up is there in the first request, until it is released."""

from itertools import product
from unittest.mock import Mock

import pytest

import specds
from models import FAMILIES, build, decodes_alike, prompt, unpackable
from recorded import Recorded, kept_of, record
from specds.decoding import step_cost
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

    monkeypatch.setattr(step_cost, "measure", Mock(side_effect=AssertionError))
    storage, made = kept.cache.storage, Recorded.made
    for num_rows, max_nodes in product((1, 2), (7, "auto")):
        ids = prompt().repeat(num_rows, 1)
        decodes_alike(model, drafter, 12, ids=ids, max_nodes=max_nodes)
        assert Recorded.made == made
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
    decodes_alike(model)

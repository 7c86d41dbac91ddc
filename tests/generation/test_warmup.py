"""Warm-up, whose results last until they are released."""

from itertools import product

import specds
from models import FAMILIES, build, decodes_alike, prompt, unpackable
from recorded import Recorded, kept_of, record
from specds.transformers.verify import recordings
from specds.transformers.verify.recordings import release


def model_of(family="llama"):
    return build(FAMILIES[family][0], {**FAMILIES[family][1], "max_position_embeddings": 4096})


def test_first_request_after_warm_up_allocates_and_records_nothing(monkeypatch):
    record(monkeypatch, 0, 7, 63)
    model, drafter = model_of(), specds.FusedDrafter()
    specds.warm_up(model, drafter, max_context=600, rows=[1, 2], verification="packed")
    kept = kept_of(model)
    # Those of the self-check went with its small cache.
    assert 0 < sum(len(made.recordings) for made in kept.passes.values()) < Recorded.made
    assert kept.cache.num_slots >= 2 * 600

    storage, made = kept.cache.storage, Recorded.made
    for num_rows, max_nodes in product((1, 2), (7, "auto")):
        ids = prompt().repeat(num_rows, 1)
        asked = {"max_nodes": max_nodes, "verification": "packed"}
        decodes_alike(model, drafter, 12, ids=ids, **asked)
        assert Recorded.made == made
    assert kept_of(model).cache.storage == storage
    release(model)
    assert model not in recordings._free


def test_warm_up_supports_the_model_backend():
    model = unpackable()
    specds.warm_up(model, max_context=64, rows=2)
    decodes_alike(model)

"""Passes of fixed shapes that are recorded once and replayed give the same text."""

import gc
import weakref
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from models import (
    FAMILIES,
    GREEDY,
    Drafter,
    build,
    decodes_alike,
    prompt,
    random_drafter,
    random_tree,
    tiny_model,
    tree_generate,
)
from passes import WIDE_SHAPE
from recorded import CHANGES, Recorded, kept_of, record, texts_follow
from specds.transformers.verify import recordings
from specds.transformers.verify.cache import TreeCache
from specds.transformers.verify.recordings import release


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    record(monkeypatch, 0, 4, 16, slots=(64, 128))


same_text = partial(decodes_alike, verification="packed")
fast = partial(tree_generate, verification="packed", **GREEDY)


@pytest.fixture
def model():
    return build("LlamaConfig", FAMILIES["llama"][1])


def test_recordings_are_reused_until_the_cache_grows(model):
    made = []
    for num_tokens in (32, 32, 32, 150):
        same_text(model, num_tokens=num_tokens)
        made.append((Recorded.made, kept_of(model).cache.storage))
    assert made[0] == made[1] == made[2]
    assert made[0][0] > 0
    assert made[3][0] > made[2][0]
    assert made[3][1] != made[2][1]
    release(model)
    assert model not in recordings._free


def test_larger_slots_at_the_same_address_are_recorded_again():
    workspace, memory, found = recordings.Workspace(), torch.zeros(64), []
    for num_slots in (4, 4, 8):
        workspace.cache._blocks = [memory[: 2 * num_slots].view(1, num_slots, 1, 2)]
        found.append(workspace.buffers((1, 1, 4), memory.device))
    assert found[0] is found[1]
    assert found[0] is not found[2]


def change_where_it_lies(model):
    model.lm_head.weight.mul_(-1)


def put_another_in_its_place(model):
    up = model.model.layers[0].mlp.up_proj
    up.weight = torch.nn.Parameter(-2 * up.weight)


def transpose_in_place(model):
    square = model.model.layers[0].self_attn.o_proj.weight
    square.data = square.data.t()


@torch.no_grad()
def test_replaced_weights_are_recorded_again_and_changed_values_are_used(model):
    fast(model, random_drafter())
    replaced = (put_another_in_its_place, transpose_in_place, torch.nn.Module.double)
    for change in (change_where_it_lies, *replaced):
        kept = kept_of(model)
        change(model)
        same_text(model)
        assert (kept_of(model) is kept) == (change is change_where_it_lies)


@pytest.mark.filterwarnings("ignore:.*jit.trace")
def test_traced_module_is_part_of_what_passes_depend_on(model):
    model.traced = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    before = recordings.fingerprint(model)
    assert recordings.fingerprint(model) == before
    model.traced.weight.data = torch.ones(2, 2)
    assert recordings.fingerprint(model) != before


def test_passes_under_autocast_are_recorded_separately(model):
    with torch.autocast("cpu", torch.bfloat16):  # which the self-check allows for
        tree_generate(model, random_drafter(), **GREEDY)
    made = Recorded.made
    assert made > 0
    same_text(model)
    assert Recorded.made > made


@pytest.mark.parametrize("change", CHANGES)
def test_model_changed_in_python_is_recorded_again(change, model):
    texts_follow(change, model)


def test_slots_fit_a_request_and_not_the_product_of_maxima():
    model = build("LlamaConfig", WIDE_SHAPE)
    for ids in (prompt(2000), prompt(8).repeat(8, 1)):
        decodes_alike(model, num_tokens=2, ids=ids, max_nodes=0)
        (block,) = kept_of(model).cache._blocks
        assert block.shape[1] <= 2176


def test_kept_resources_do_not_keep_a_model_alive():
    model = build(*FAMILIES["llama"])
    fast(model, random_drafter())
    kept, seen = weakref.ref(kept_of(model)), weakref.ref(model)
    del model
    gc.collect()
    assert (kept(), seen()) == (None, None)


def test_failed_start_releases_the_workspace(monkeypatch, model):
    fast(model, random_drafter())
    kept = kept_of(model)

    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(TreeCache, "restart", Mock(side_effect=torch.OutOfMemoryError("short")))
        fast(model, random_drafter())
    assert kept_of(model) is kept


def test_overlapping_requests_reuse_recordings_until_release(model):
    taken = [recordings.acquire(model) for _ in range(2)]
    for number in range(10):
        recordings.release_workspace(model, taken[number % 2])
        assert recordings.acquire(model) is taken[number % 2]
    release(model)
    recordings.release_workspace(model, taken[0])
    assert recordings.acquire(model) is not taken[0]


def test_unrecordable_pass_is_computed_after_a_warning(monkeypatch, model):
    fail = Mock(side_effect=RuntimeError("operation not permitted when stream is capturing"))
    monkeypatch.setattr(recordings, "recorder", lambda _: fail)
    with pytest.warns(UserWarning, match="not recorded as CUDA graphs.*not permitted") as warned:
        output = same_text(model, check_model=False)
    assert len(warned) == 1
    assert "not permitted" in output.stats.reason
    same_text(model)


@pytest.mark.parametrize("within", [False, True], ids=["before", "while recording"])
def test_out_of_memory_does_not_mark_a_model_as_unsupported(monkeypatch, within, model):
    class Short(Recorded):
        def __init__(self, *arguments):
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            except torch.OutOfMemoryError:
                if within:  # what ends the recording fails because of it
                    raise RuntimeError("capture_end")  # noqa: B904
                raise

    with monkeypatch.context() as patched:
        patched.setattr(recordings, "recorder", lambda _: Short)
        for verification in ("auto", "packed"):
            with pytest.raises(torch.OutOfMemoryError):
                decodes_alike(model, verification=verification)
    kept = kept_of(model)
    output = decodes_alike(model)
    assert output.stats.verification == "packed"
    assert kept_of(model) is kept
    assert Recorded.made > 0


@pytest.mark.parametrize("after", [1, 2, 9])
def test_interrupted_request_leaves_the_next_one_intact(after):
    model = tiny_model("mistral")
    puts = iter([None] * after)
    streamer = SimpleNamespace(put=lambda _: next(puts), end=None)  # StopIteration after some
    with pytest.raises(StopIteration):
        same_text(model, streamer=streamer)
    kept = kept_of(model)
    same_text(model)
    assert kept_of(model) is kept


def test_nested_request_has_its_own_cache(model):
    inner = []

    def grow(rng, position, max_nodes):
        if position == 30:
            inner.append(same_text(model))
        return random_tree(rng, 5)

    same_text(model, Drafter(grow))
    assert inner

"""Controls of text equality: each breaks one part of verification, and the text changes."""

import pytest
import torch

from models import GREEDY, SAMPLING, oracle_drafter, plain_generate, tiny_model, tree_generate
from specds.transformers.verify.cache import TreeCache
from specds.transformers.verify.inputs import Inputs, MaskBuilder
from specds.transformers.verify.path_rows import PathRows
from specds.transformers.verify.support import check_model


def siblings_see_each_other(build, self, visible, *args):
    return build(self, torch.ones_like(visible).tril(), *args)


def positions_count_slots(fill, inputs, *rows):
    fill(inputs, *rows)
    inputs.depths.copy_(torch.arange(inputs.depths.shape[1]))


def the_wrong_slot_is_kept(commit, self, kept, _):
    commit(self, [range(len(kept[0]))])


def rejected_slots_are_kept(commit, self, kept, _):
    commit(self, [range(max(kept[0]) + 1)])


def the_first_row_is_kept(commit, self, kept, _):
    commit(self, [[slot - kept[0][0] for slot in kept[0]]])


def rows_begin_one_position_late(forward, self, ids, positions, mask, **kwargs):
    return forward(self, ids, positions + (mask is not None), mask, **kwargs)


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
@pytest.mark.parametrize(
    ("verification", "of", "method", "instead"),
    [
        ("model", None, "", None),
        ("model", MaskBuilder, "build", siblings_see_each_other),
        ("model", Inputs, "fill", positions_count_slots),
        ("model", TreeCache, "commit", the_wrong_slot_is_kept),
        ("model", TreeCache, "commit", rejected_slots_are_kept),
        (PathRows, None, "", None),
        (PathRows, MaskBuilder, "build", siblings_see_each_other),
        (PathRows, TreeCache, "commit", the_first_row_is_kept),
        (PathRows, PathRows, "_forward", rows_begin_one_position_late),
    ],
)
def test_broken_verification_changes_the_text(monkeypatch, verification, of, method, instead, mode):
    model = tiny_model("llama")
    expected = plain_generate(model, num_tokens=48, **mode)
    if instead is not None:
        plain = getattr(of, method)
        monkeypatch.setattr(of, method, lambda *args, **named: instead(plain, *args, **named))
    # The check of a model finds wrong passes; wrong commits it cannot find.
    if method in ("", "build", "_forward"):
        assert check_model(model, verification=verification).ok is (instead is None)
    settings = {"check_model": False, "verification": verification, **mode}
    drafter = oracle_drafter(expected, num_wrong=1)
    output = tree_generate(model, drafter, num_tokens=48, **settings)
    assert (output.sequences.tolist() == [expected]) is (instead is None)

"""What the equality of texts is worth: each of these breaks one thing, and the text changes."""

import numpy as np
import pytest
import torch

from models import GREEDY, SAMPLING, oracle_drafter, plain_generate, tiny_model, tree_generate
from reference import TokenTree
from specds.verify import BatchedRunner, MaskBuilder, TreeCache


def siblings_see_each_other(monkeypatch):
    of_row = MaskBuilder.of_row
    monkeypatch.setattr(
        MaskBuilder,
        "of_row",
        lambda self, visible, *args: of_row(self, torch.ones_like(visible).tril(), *args),
    )


def positions_count_slots(monkeypatch):
    monkeypatch.setattr(TokenTree, "depths", lambda self: np.arange(1, len(self) + 1))


def the_wrong_slot_is_kept(monkeypatch):
    commit = TreeCache.commit
    monkeypatch.setattr(TreeCache, "commit", lambda self, keep: commit(self, range(len(keep))))


def rejected_slots_are_kept(monkeypatch):
    monkeypatch.setattr(TreeCache, "commit", lambda self, keep: self.advance(max(keep) + 1))


def the_first_row_is_kept(monkeypatch):
    commit = TreeCache.commit
    monkeypatch.setattr(
        TreeCache, "commit", lambda self, keep: commit(self, [i - keep[0] for i in keep])
    )


def rows_begin_one_position_late(monkeypatch):
    forward = BatchedRunner._forward
    monkeypatch.setattr(
        BatchedRunner,
        "_forward",
        lambda self, ids, positions, mask, **kwargs: forward(
            self, ids, positions + (mask is not None), mask, **kwargs
        ),
    )


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
@pytest.mark.parametrize(
    ("verification", "breaks"),
    [
        ("tree", None),
        ("tree", siblings_see_each_other),
        ("tree", positions_count_slots),
        ("tree", the_wrong_slot_is_kept),
        ("tree", rejected_slots_are_kept),
        ("batched", None),
        ("batched", siblings_see_each_other),
        ("batched", the_first_row_is_kept),
        ("batched", rows_begin_one_position_late),
    ],
)
def test_broken_verification_changes_the_text(monkeypatch, verification, breaks, mode):
    model = tiny_model("llama")
    expected = plain_generate(model, num_tokens=48, **mode)
    if breaks is not None:
        breaks(monkeypatch)
    output = tree_generate(
        model,
        oracle_drafter(expected, num_wrong=1),
        num_tokens=48,
        self_check=False,
        verification=verification,
        **mode,
    )
    assert (output.sequences.tolist() == [expected]) is (breaks is None)

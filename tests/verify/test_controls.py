"""What the equality of texts is worth: each of these breaks one thing, and the text changes."""

import pytest
import torch

from models import GREEDY, SAMPLING, oracle_drafter, plain_generate, tiny_model, tree_generate
from specds.papers.path_rows import PathRows
from specds.verify import MaskBuilder, TreeCache, check_model
from specds.verify.inputs import Inputs


def siblings_see_each_other(monkeypatch):
    build = MaskBuilder.build
    monkeypatch.setattr(
        MaskBuilder,
        "build",
        lambda self, visible, *args: build(self, torch.ones_like(visible).tril(), *args),
    )


def positions_count_slots(monkeypatch):
    def fill(inputs, *rows):
        plain(inputs, *rows)
        inputs.depths.copy_(torch.arange(inputs.depths.shape[1]))

    plain = Inputs.fill
    monkeypatch.setattr(Inputs, "fill", fill)


def the_wrong_slot_is_kept(monkeypatch):
    commit = TreeCache.commit
    monkeypatch.setattr(
        TreeCache, "commit", lambda self, kept, _: commit(self, [range(len(kept[0]))])
    )


def rejected_slots_are_kept(monkeypatch):
    commit = TreeCache.commit
    monkeypatch.setattr(
        TreeCache, "commit", lambda self, kept, _: commit(self, [range(max(kept[0]) + 1)])
    )


def the_first_row_is_kept(monkeypatch):
    commit = TreeCache.commit
    monkeypatch.setattr(
        TreeCache, "commit", lambda self, kept, _: commit(self, [[i - kept[0][0] for i in kept[0]]])
    )


def rows_begin_one_position_late(monkeypatch):
    forward = PathRows._forward
    monkeypatch.setattr(
        PathRows,
        "_forward",
        lambda self, ids, positions, mask, **kwargs: forward(
            self, ids, positions + (mask is not None), mask, **kwargs
        ),
    )


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
@pytest.mark.parametrize(
    ("verification", "breaks"),
    [
        ("model", None),
        ("model", siblings_see_each_other),
        ("model", positions_count_slots),
        ("model", the_wrong_slot_is_kept),
        ("model", rejected_slots_are_kept),
        (PathRows, None),
        (PathRows, siblings_see_each_other),
        (PathRows, the_first_row_is_kept),
        (PathRows, rows_begin_one_position_late),
    ],
)
def test_broken_verification_changes_the_text(monkeypatch, verification, breaks, mode):
    model = tiny_model("llama")
    expected = plain_generate(model, num_tokens=48, **mode)
    if breaks is not None:
        breaks(monkeypatch)
    # Where passes are wrong, and not only what is kept of them, the self-check tells.
    if breaks in (None, siblings_see_each_other, rows_begin_one_position_late):
        assert check_model(model, verification=verification).ok is (breaks is None)
    output = tree_generate(
        model,
        oracle_drafter(expected, num_wrong=1),
        num_tokens=48,
        self_check=False,
        verification=verification,
        **mode,
    )
    assert (output.sequences.tolist() == [expected]) is (breaks is None)

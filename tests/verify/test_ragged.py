"""Rows of different numbers of tokens in one pass give what they give padded."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList

import ragged_passes
from models import build, prompt, random_tree
from passes import WIDE_SHAPE
from ragged_passes import Padded
from specds.accept.on_device import Chooser, PassRequest
from specds.verify import PackedRunner, ragged
from specds.verify.ragged import RaggedLayout

FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "windows": (
        "Qwen2Config",
        {
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def drafted(size, seed):
    return random_tree(np.random.default_rng(seed), size)


def passes(runner_class, model, trees):
    """The logits of a pass over these trees, and of one after the first nodes were kept."""
    num_rows = len(trees)
    runner = runner_class(model, prompt_length=30, max_length=120, max_nodes=64, num_rows=num_rows)
    for row in range(num_rows):
        runner.prefill(prompt(5 + 7 * row % 26, row), row=row)
    first = runner.verify_rows(range(num_rows), trees)
    runner.commit_rows([[] if tree is None else [0] for tree in trees])
    return first, runner.verify_rows([3] * num_rows, trees[::-1])


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=25)
@given(sizes=st.lists(st.integers(0, 12), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_a_pass_is_that_of_padded_rows(family, sizes, seed):
    config_class, own = FAMILIES[family]
    model = build(config_class, {**WIDE_SHAPE, **own})
    trees = [drafted(size, seed + row) if size else None for row, size in enumerate(sizes)]
    pairs = zip(passes(PackedRunner, model, trees), passes(Padded, model, trees), strict=True)
    for rows, padded in pairs:
        for mine, expected in zip(rows, padded, strict=True):
            assert mine.shape == expected.shape
            assert torch.allclose(mine, expected, atol=1e-4)


@torch.no_grad()
def test_no_token_pads_another_row(monkeypatch):
    model = build("LlamaConfig", WIDE_SHAPE)
    trees = [None, drafted(9, 1), None, drafted(2, 2)]
    counts = []
    forward = torch.nn.functional.embedding

    def spy(token_ids, *args, **kwargs):
        counts.append(token_ids.numel())
        return forward(token_ids, *args, **kwargs)

    runner = PackedRunner(model, prompt_length=9, max_length=60, max_nodes=16, num_rows=4)
    for row in range(4):
        runner.prefill(prompt(9, row), row=row)
    monkeypatch.setattr(torch.nn.functional, "embedding", spy)
    runner.verify_rows([1] * 4, trees)
    assert counts == [4 + 9 + 2]


@torch.no_grad()
def test_the_control_another_order_of_tokens_is_seen(monkeypatch):
    model = build("LlamaConfig", WIDE_SHAPE)
    trees = [None, drafted(9, 1), drafted(2, 2)]
    _, expected = passes(Padded, model, trees)

    class Wrong(RaggedLayout):
        def __init__(self, *args):
            super().__init__(*args)
            self.order = self.order.flip(0)

    monkeypatch.setattr("specds.verify.packed_runner.RaggedLayout", Wrong)
    _, wrong = passes(PackedRunner, model, trees)
    assert not torch.allclose(wrong[1], expected[1], atol=1e-2)


@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=40))
def test_a_layout_has_each_token_once(sizes):
    layout = RaggedLayout(sizes, max(sizes))
    assert len(layout.places) == len(layout.order) == sum(sizes)
    assert layout.rows.tolist() == [row for row, size in enumerate(sizes) for _ in range(size)]
    # What was attended: the token of each common place, then those of each row that has more.
    attended = layout.common.tolist()
    for _, tokens, places in layout.further:
        assert tokens.stop - tokens.start == places.stop - places.start
        attended += range(tokens.start, tokens.stop)
    assert [attended[place] for place in layout.order] == list(range(sum(sizes)))


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_the_common_width_costs_least_of_all(sizes):
    def cost(width):
        further = [size - width for size in sizes if size > width]
        return width * len(sizes) + sum(further) + ragged._OF_A_CALL * len(further)

    assert cost(ragged._common_width(sizes)) == min(map(cost, range(1, 1 + max(sizes))))


def test_passes_are_timed_both_ways(capsys):
    assert ragged_passes.main(["--rows", "2", "--length", "20", "--repeats", "1"]) == 0
    told = capsys.readouterr().out
    assert "2 rows of 20 tokens" in told
    assert all(name in told for name in ragged_passes.CASES)


@torch.no_grad()
def test_a_pass_that_also_accepts_tells_of_each_row():
    model = build("LlamaConfig", WIDE_SHAPE)
    runner = PackedRunner(model, prompt_length=9, max_length=60, max_nodes=16, num_rows=2)
    for row in range(2):
        runner.prefill(prompt(9, row), row=row)
    asked = PassRequest(Chooser(LogitsProcessorList(), do_sample=False))
    logits, decided = runner.accept_rows([1, 2], [None, drafted(5, 1)], [(), ()], asked)
    assert [len(row) for row in logits] == [1, 6]
    assert [decision.tokens[0] for decision in decided] == [int(row[0].argmax()) for row in logits]

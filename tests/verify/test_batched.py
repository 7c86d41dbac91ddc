"""Rows of a batch share one prefix: it is never copied, and what cannot share it is refused."""

import numpy as np
import pytest
import torch

from models import VOCAB_SIZE, build, prompt, random_drafter, tiny_model
from passes import WIDE_SHAPE, Allocations, rows_tree
from reference import TokenTree
from specds.generation import generate
from specds.verify import BatchedRunner, UnsupportedModelError, check_model

LONG = 3000


def prefilled(model, num_rows, width):
    runner = BatchedRunner(
        model, prompt_length=LONG, max_length=LONG + 500, max_nodes=num_rows * (width + 1)
    )
    runner.prefill(prompt(LONG), 500)
    tree = rows_tree(num_rows, width)
    runner.verify(5, tree)  # masks and rows have their memory now
    return runner, tree


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_prefix_is_read_where_it_is(monkeypatch, implementation):
    model = build("LlamaConfig", WIDE_SHAPE, attn_implementation=implementation)
    num_rows, width = 25, 3
    runner, tree = prefilled(model, num_rows, width)
    seen = []
    computed = torch.nn.functional.scaled_dot_product_attention

    def spy(query, key, value, **kwargs):
        seen.append((key, value, query.shape))
        return computed(query, key, value, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    with Allocations() as made:
        runner.verify(5, tree)
    assert len(seen) == 2
    num_slots = num_rows * (width + 1)
    for layer, (key, value, query_shape) in zip(runner.cache.layers, seen, strict=True):
        assert key.data_ptr() == layer.keys.data_ptr()
        assert value.data_ptr() == layer.values.data_ptr()
        assert key.shape == value.shape == (1, 2, LONG + num_slots, 8)
        assert query_shape == (1, 2, 2 * num_slots, 8)
    prefix_bytes = LONG * 2 * 8 * 4
    mask_bytes = 2 * num_slots * (LONG + num_slots) * 4  # of queries and slots, heads in a group
    assert max(made.num_bytes) == mask_bytes
    # But for the mask, and one of the packed heads in each of two layers.
    assert sorted(made.num_bytes)[-4] < prefix_bytes


@torch.no_grad()
def test_without_shared_heads_nothing_of_the_size_of_the_prefix_is_made():
    model = build("LlamaConfig", {**WIDE_SHAPE, "num_key_value_heads": 4})
    sizes = []
    for num_rows in (2, 25):
        runner, tree = prefilled(model, num_rows, 3)
        with Allocations() as made:
            runner.verify(5, tree)
        sizes.append(sorted(made.num_bytes)[-2])  # the largest is the mask
        assert sizes[-1] < LONG * 4 * 8 * 4
    assert sizes[1] <= 2 * max(sizes[0], 25 * 4 * VOCAB_SIZE * 4)


@torch.no_grad()
def test_a_row_more_leaves_the_others_as_they_were():
    model = tiny_model("gemma3")
    runner = BatchedRunner(model, prompt_length=21, max_length=99, max_nodes=16)
    runner.prefill(prompt())
    wide, narrow = rows_tree(4, 3), rows_tree(2, 3)
    rows, fewer = runner.verify(3, wide), runner.verify(3, narrow)
    assert torch.allclose(rows[: len(fewer)], fewer, atol=1e-4)


@torch.no_grad()
def test_commits_take_the_states_of_a_row_that_has_the_whole_path():
    model = tiny_model("llama")
    # Two leaves below one node: the second row has states of its own for that node.
    tree = TokenTree([4, 5, 6, 7], [-1, 0, 0, 2], [0.0] * 4)
    for path in ([], [0], [0, 1], [0, 2], [0, 2, 3]):
        runner = BatchedRunner(model, prompt_length=21, max_length=99, max_nodes=16)
        runner.prefill(prompt())
        runner.verify(3, tree)
        runner.commit(path)
        known = [*prompt()[0].tolist(), 3, *tree.token_ids[path].tolist()]
        fresh = BatchedRunner(model, prompt_length=21, max_length=99, max_nodes=16)
        fresh.prefill(torch.tensor([known]))
        assert runner.cache.length == len(known)
        for layer, other in zip(runner.cache.layers, fresh.cache.layers, strict=True):
            states = (x.keys[:, :, : len(known)] for x in (layer, other))
            assert torch.allclose(*states, atol=1e-4)


REFUSED = {
    "gpt_oss": (
        "GptOssConfig",
        {**WIDE_SHAPE, "num_local_experts": 2, "num_experts_per_tok": 1},
        "attention with s_aux cannot be packed: use verification='tree'",
    ),
    "gemma2": ("Gemma2Config", WIDE_SHAPE, "its attention caps logits: use verification='tree'"),
    "gptj": (
        "GPTJConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": VOCAB_SIZE},
        "its attention cannot be exchanged: use verification='tree'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attention_of_another_kind_is_refused(name):
    config_class, settings, reason = REFUSED[name]
    settings = {**settings, "pad_token_id": None, "eos_token_id": None}
    model = build(config_class, settings, attn_implementation="eager")
    assert check_model(model).ok
    verdict = check_model(model, verification="batched")
    assert not verdict.ok
    assert reason in verdict.reasons[0]
    assert model.config._attn_implementation == "eager"
    with pytest.raises(UnsupportedModelError, match="cannot verify a batch of rows") as refusal:
        generate(model, prompt(), random_drafter(), max_new_tokens=3, verification="batched")
    assert reason in str(refusal.value)


@pytest.mark.parametrize("broken", ["mask", "positions"])
def test_the_self_check_finds_rows_that_are_wrong(monkeypatch, broken):
    if broken == "mask":
        monkeypatch.setattr(np, "eye", lambda n, dtype: np.ones((n, n), dtype))
    else:
        forward = BatchedRunner._forward
        monkeypatch.setattr(
            BatchedRunner,
            "_forward",
            lambda self, ids, positions, mask, **kwargs: forward(
                self, ids, positions + (mask is not None), mask, **kwargs
            ),
        )
    model = tiny_model("llama")
    assert check_model(model).ok
    assert not check_model(model, verification="batched").ok


def test_ways_to_check_that_there_are_not_are_an_error():
    with pytest.raises(
        ValueError, match="verification must be 'fast' or 'tree' or 'batched', got 'rows'"
    ):
        check_model(tiny_model("llama"), verification="rows")

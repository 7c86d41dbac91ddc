"""Timing side channel: the number of tokens that arrive at once (arXiv 2411.01076)."""

from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gpu.forced import Forces
from models import (
    GREEDY,
    VOCAB_SIZE,
    Recorder,
    mixed_drafter,
    prompt,
    random_drafter,
    tiny_model,
    widths,
)
from specds import FusedConfig, FusedDrafter, accelerate, generate
from specds.transformers.verify.generic import Runner

BUDGET, EVERY, LENGTH = 7, 8, 64


class ForcedTree(Forces, Runner):
    """A runner whose model writes given texts."""


def observed(repeats_at_end, seed, **settings):
    """Return tokens at once, tokens of each pass, and passes between releases of a text."""
    random, model = np.random.default_rng(seed), tiny_model("llama")
    phrase, new = random.integers(3, VOCAB_SIZE, 12), random.integers(3, VOCAB_SIZE, LENGTH - 36)
    parts = [phrase, phrase, phrase, new]
    text = np.concatenate(parts[::-1] if repeats_at_end else parts)
    ids, at = prompt(), []  # after which pass of the model each token came
    Forces.texts = torch.tensor([[*ids[0].tolist(), *text.tolist()]])
    drafter = FusedDrafter(config=FusedConfig(recycled=False))
    own = {"max_nodes": BUDGET, "verification": ForcedTree, "check_model": False}
    with widths(model) as passes:  # tokens of each pass: how long it takes
        streamer = Mock(put=lambda _: at.append(len(passes)))
        generate(model, ids, drafter, max_new_tokens=LENGTH, streamer=streamer, **own, **settings)
    # The prompt comes before any pass, and the last pass cannot emit a node.
    releases = Counter(at[1:])
    assert releases.total() == LENGTH
    return [*releases.values()], passes[1:-1], np.diff([0, *releases]).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_stream_interval_hides_which_of_two_texts_is_written(seed):
    one, other = observed(True, seed), observed(False, seed)
    assert one[0] != other[0]
    assert one[1] != other[1]
    one, other = (observed(text, seed, stream_interval=EVERY) for text in (True, False))
    assert one[0] == other[0] == [EVERY] * (LENGTH // EVERY)
    assert {*one[1]} == {*other[1]} == {1 + BUDGET}
    # The time between releases still differs (docs/RELIABILITY.md).
    assert one[2] != other[2]


@pytest.mark.parametrize("every", [1, 4, 100])
def test_accelerated_model_releases_the_same_tokens_at_intervals(every):
    model, ids = tiny_model("llama"), prompt()
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 10, **GREEDY}
    plain = Recorder()
    expected = model.generate(ids, streamer=plain, **settings)
    drafter, ours = mixed_drafter(expected[0].tolist()), Recorder()
    with accelerate(model, drafter, max_nodes=5, stream_interval=every):
        model.generate(ids, streamer=ours, **settings)
    assert ours.received == plain.received


def test_stream_interval_without_fixed_nodes_is_refused():
    with pytest.raises(ValueError, match="stream_interval must be at least 1, got 0"):
        generate(tiny_model("llama"), prompt(), stream_interval=0)
    with pytest.raises(ValueError, match="requires an integer max_nodes: 'auto'"):
        accelerate(tiny_model("llama"), random_drafter(), stream_interval=4)

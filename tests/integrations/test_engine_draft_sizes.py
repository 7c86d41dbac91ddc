"""Draft sizes and search effort of `EngineDrafter`, by the cost of the engine's steps."""

import numpy as np
import pytest

from datastores import build
from reference_engine import sync
from specds import EngineDrafter


def repeats(drafter, num_rows):
    sync(drafter, *([row, 1, 2, 3, 1, 2, 3, 1] for row in range(num_rows)))


def test_larger_batches_get_smaller_drafts_by_the_cost_of_a_step():
    cost = [[1, 1.0], [64, 1.0], [128, 2.0]]
    lengths = {}
    for num_rows in (1, 8, 16, 64):
        drafter = EngineDrafter(step_cost=cost)
        repeats(drafter, num_rows)
        lengths[num_rows] = drafter.draft_chains(8)[1]
    assert lengths[1].tolist() == [8]
    assert lengths[8].sum() in range(8 * 4, 8 * 7 + 1)  # those without cost
    assert 0 < lengths[16].sum() < 16 * 4
    assert lengths[64].sum() == 0
    free = EngineDrafter(step_cost=[(1, 1.0)])
    repeats(free, 64)
    assert free.draft_chains(8)[1].tolist() == [8] * 64


def test_measured_steps_determine_the_size_of_drafts():
    lengths = {}
    for cost in (0.02, 0.9):
        drafter = EngineDrafter(times_steps=True)
        for _ in range(300):
            repeats(drafter, 8)
            drafted = drafter.draft_chains(8)[1]
            drafter.observe_step_time(0.02 * (1 + cost * drafted.sum() / 8))
            lengths.setdefault(cost, []).append(drafted.sum())
    for steps in lengths.values():
        assert steps[0] == 0  # the baseline step is not measured yet
    assert np.median(lengths[0.02]) >= 8 * 7
    assert np.median(lengths[0.9]) == 0
    for seconds in (0, -1, float("nan"), float("inf")):
        drafter.observe_step_time(seconds)


def test_usual_token_cost_counts_after_one_step():
    drafted = {}
    for token_cost in (None, 0.01, 3.0):
        drafter = EngineDrafter(times_steps=True, token_cost=token_cost)
        for _ in range(2):
            repeats(drafter, 8)
            drafted[token_cost] = drafter.draft_chains(8)[1].sum()
            drafter.observe_step_time(0.02)
    assert drafted[None] == drafted[3.0] == 0 < drafted[0.01]
    with pytest.raises(ValueError, match="`token_cost` must be"):
        EngineDrafter(token_cost=-1.0)


def test_effort_follows_the_time_of_a_step(tmp_path):
    random = np.random.default_rng(0)
    documents = [(random.zipf(1.3, 300) % 20).tolist() for _ in range(30)]
    store = build(tmp_path / "d", documents, vocab_size=20)
    contexts = [(random.zipf(1.3, 40) % 20).tolist() for _ in range(8)]

    def drafted(step_s=None, **config):
        drafter = EngineDrafter(datastore=store.path, **config)
        sync(drafter, *contexts)
        if step_s is not None:
            drafter.draft_trees(33)
            drafter.observe_step_time(step_s)
        return drafter.draft_trees(33)[0].tolist()

    low, normal = drafted(effort="low"), drafted(effort="normal")
    assert low != normal
    assert drafted() == drafted(1e-4) == low
    assert drafted(1.0) == normal


def test_reset_acceptance_returns_to_the_first_sizes():
    drafter = EngineDrafter(step_cost=[(1, 1.0), (2, 1.3), (9, 4.0)])
    text, lengths = [1, 2, 3, 1, 2, 3, 1], []
    for request in range(41):
        if request == 40:
            drafter.reset_acceptance()
        for context in (text, [*text, 9]):  # another token than the drafted one
            drafter.sync([context], [str(request)])
            lengths.append(int(drafter.draft_chains(8)[1][0]))
    first, *rejected, again = lengths[::2]
    assert first == again > 0
    assert rejected[-1] == 0


def test_reset_acceptance_keeps_the_texts_and_not_the_weights():
    first = np.random.default_rng(0).integers(0, 50, 40).tolist()
    text = first + [*first[:20], 49, *first[21:30], 48] * 6

    def drafted(*, learns, resets):
        drafter = EngineDrafter(memory_scope="shared", vocab_size=50)
        for length in range(50 if learns else len(text), len(text) + 1, 3):
            drafter.sync([text[:length]], ["a"])
            drafter.draft_chains(8)
        drafter.end(["a"])
        if resets:
            drafter.reset_acceptance()
        drafter.sync([first[:20]], ["b"])
        return drafter.draft_chains(8, min_prob=0.0)

    learned = drafted(learns=True, resets=False)
    again = drafted(learns=True, resets=True)
    new = drafted(learns=False, resets=False)
    assert learned[0].tolist() == again[0].tolist() == new[0].tolist()
    assert abs(again[2] - new[2]).max() < 0.2 * abs(learned[2] - new[2]).max()

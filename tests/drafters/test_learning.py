"""What fused drafters learn from what is accepted, and how soon."""

import numpy as np
import pytest

from datastores import build
from replays import phrases, text_of, transcript
from specds import FusedConfig, FusedDrafter
from specds.bench.replay.measure import follow
from specds.drafters import Memory, fit_weights

NOTHING = fit_weights(None, [])


def replayed(drafter, text, start, max_nodes):
    """Where each step began, and how many tokens it emitted, as if a model wrote the text."""
    steps = follow(drafter.session(text[:start]), transcript(text[:start], text[start:]), max_nodes)
    return [(start + step.position, len(step.step.token_ids)) for step in steps]


def stored(path, documents):
    return build(path, documents, vocab_size=64, separator=64, prior_tokens=0)


def test_a_drafter_learns_and_a_drafter_that_does_not_stays_as_it_is():
    random = np.random.default_rng(2)
    text = text_of(random, phrases(random, 6, 6, 30), 300)
    for learns in (True, False):
        drafter = FusedDrafter(config=FusedConfig(learns=learns))
        replayed(drafter, text, 100, 16)
        assert (drafter.weights() != NOTHING) == learns
        assert drafter.stats()["context"] > 50


def test_when_the_useful_source_changes_the_new_one_is_trusted_within_some_tens_of_tokens(tmp_path):
    random = np.random.default_rng(3)
    # Both know how every pair of tokens goes on, and each is wrong in the other's domain.
    known, remembered = (phrases(random, 40, 12, 12) for _ in range(2))
    store = stored(tmp_path / "d", [text_of(random, known, 4000)] * 4)
    memory = Memory(64)
    memory.insert("", text_of(random, remembered, 4000))
    text = [token for of in (known, remembered, known) for token in text_of(random, of, 600)]
    steps = replayed(FusedDrafter(store, FusedConfig(context=False), memory), text, 20, 8)

    def speed(start, end):
        return np.mean([emitted for begin, emitted in steps if start <= begin < end])

    for change in (600, 1200):
        assert speed(change + 50, change + 250) > 0.85 * speed(change + 300, change + 580)


def test_a_datastore_that_does_not_fit_the_text_costs_next_to_nothing(tmp_path):
    random = np.random.default_rng(4)
    useless = stored(tmp_path / "d", [random.integers(0, 40, 20_000).tolist()] * 3)
    text = text_of(random, phrases(random, 60, 8, 40), 12_000)
    steps = [len(replayed(FusedDrafter(store), text, 10, 16)) for store in (useless, None)]
    assert steps[0] < 1.01 * steps[1]


@pytest.mark.parametrize(("verified", "tolerance"), [([16, 16, 16], 0.03), ([0, 1, 4], 0.1)])
def test_the_expected_acceptance_length_is_what_comes_also_of_few_nodes(verified, tolerance):
    random = np.random.default_rng(5)
    text = text_of(random, phrases(random, 50, 6, 30), 12_000)
    session, begin, expected, came = FusedDrafter().session(text[:10]), 10, 0.0, 0
    while begin < len(text):
        tree, rest, number = session.draft(16), text[begin : begin + 20], verified[begin % 3]
        emitted = rest[: 1 + len(tree.limited(number).follow(rest))]
        session.observe(emitted, number)
        if begin > len(text) // 3:
            expected += 1 + tree.probs.sum()
            came += 1 + len(tree.follow(rest))
        begin += len(emitted)
    assert expected / came == pytest.approx(1, abs=tolerance)


def test_a_bonus_token_that_was_drafted_and_not_verified_is_not_accepted():
    drafter = FusedDrafter()
    session = drafter.session([1, 2, 3, 1, 2])
    assert session.draft(2).token_ids.tolist() == [3, 1]
    session.observe([3, 1], 1)
    assert drafter.stats() == {"context": 1}


def test_fitted_weights_draft_better_from_the_start(tmp_path):
    random = np.random.default_rng(6)
    # What is stored says nothing: only a drafter that was shown so does not draft it.
    store = stored(tmp_path / "d", [random.integers(0, 20, 20_000).tolist()])
    held_out, texts = (
        [text_of(random, phrases(random, 10, 6, 20), 300) for _ in range(10)] for _ in range(2)
    )
    fitted, default = (
        sum(len(replayed(FusedDrafter(store, weights=weights), text, 2, 8)) for text in texts)
        for weights in (fit_weights(store, held_out, weights=NOTHING), NOTHING)
    )
    assert fitted * 50 < default * 49


def test_weights_come_back_from_their_bytes_and_no_others_do():
    drafter = FusedDrafter()
    replayed(drafter, [1, 2, 1, 2, 1, 2, 1, 2, 3, 1], 4, 8)
    whole = drafter.weights()
    assert FusedDrafter(weights=whole).weights() == whole != NOTHING
    changed = [whole[:length] for length in (0, 7, 8, 15, len(whole) - 8, len(whole) - 1)]
    for place in (0, 7, 8, 1000, len(whole) - 9, len(whole) - 1):
        changed.append(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
    for wrong in (*changed, whole + b"\0"):
        with pytest.raises(ValueError, match="`weights`"):
            FusedDrafter(weights=wrong)

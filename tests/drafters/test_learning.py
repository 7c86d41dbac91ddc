"""Adaptation of fused drafters to accepted tokens."""

import argparse
import configparser
import inspect
import optparse
import shlex
import textwrap

import numpy as np
import pytest

from datastores import build
from pages import ROOT
from replays import phrases, text_of, transcript, zero_shot
from specds import FusedConfig, FusedDrafter
from specds._core import FusedState
from specds.bench.acceptance.measure import follow
from specds.drafters import Memory
from specds.models.load import load_encoder


def replayed(drafter, text, start, max_nodes):
    """Return the position and new tokens of each step, as if a model wrote the text."""
    found, written = [], transcript(text[:start], text[start:])
    for step in follow(drafter.session(text[:start]), written, max_nodes):
        found.append((start, len(step.step.token_ids)))
        start += found[-1][1]
    return found


def stored(path, documents):
    return build(path, documents, vocab_size=64, separator=64)


def test_weights_change_only_if_learning_is_enabled():
    random = np.random.default_rng(2)
    text = text_of(random, phrases(random, 6, 6, 30), 300)
    for learns in (True, False):
        drafter = FusedDrafter(config=FusedConfig(learns=learns))
        replayed(drafter, text, 100, 16)
        assert (drafter._state.learned() != b"") == learns
        assert drafter.stats()["context"] > 50


def test_new_useful_source_gains_weight_within_tens_of_tokens(tmp_path):
    random = np.random.default_rng(3)
    # Both know the continuation of every pair of tokens, and are wrong in the other's domain.
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


def test_unrelated_datastore_costs_little_acceptance(tmp_path):
    random = np.random.default_rng(4)
    useless = stored(tmp_path / "d", [random.integers(0, 40, 20_000).tolist()] * 3)
    text = text_of(random, phrases(random, 60, 8, 40), 12_000)
    steps = [len(replayed(FusedDrafter(store), text, 10, 16)) for store in (useless, None)]
    assert steps[0] < 1.01 * steps[1]


@pytest.mark.parametrize(("verified", "tolerance"), [([16, 16, 16], 0.03), ([0, 1, 4], 0.1)])
def test_expected_acceptance_length_is_calibrated(verified, tolerance):
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


def test_unverified_bonus_token_is_not_accepted():
    drafter = FusedDrafter()
    session = drafter.session([1, 2, 3, 1, 2])
    assert session.draft(2).token_ids.tolist() == [3, 1]
    session.observe([3, 1], 1)
    assert drafter.stats() == {"context": 1}


def test_format_has_the_number_of_weights():
    page = (ROOT / "docs/FORMAT.md").read_text()
    assert f"(`weights/initial`): {FusedState.NUM_WEIGHTS:,} little-endian" in page


def test_prior_improves_first_drafts(tmp_path):
    tokenizer, size = load_encoder("demo"), 4096

    def tokens(module):
        return tokenizer.encode(inspect.getsource(module), add_special_tokens=False)

    stored = [tokens(module) for module in (argparse, optparse, configparser)]
    store = build(tmp_path / "d", stored, vocab_size=size, separator=size)
    texts = [
        tokens(module)[at : at + 80] for module in (textwrap, shlex) for at in range(0, 2000, 80)
    ]
    taught, nothing = (
        sum(len(replayed(drafter(), text, 20, 16)) for text in texts)
        for drafter in (lambda: FusedDrafter(store), lambda: zero_shot(FusedDrafter(store)))
    )
    assert taught < 0.99 * nothing


def test_single_earlier_use_of_a_token_has_a_low_probability():
    memory = Memory(100)
    memory.insert("", [*range(30), *range(50, 60)])

    def prob(length):
        prompt = [*range(70, 90), *range(30 - length, 30)]
        return FusedDrafter(memory=memory).session(prompt).draft(1).probs[0]

    assert prob(1) < 0.2 < prob(4) < prob(16)

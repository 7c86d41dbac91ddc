"""Drafts after speculative tokens, and external proposals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastores import build
from reference import shown
from reference_datastore import SMALL, corpora
from specds import FusedConfig, FusedDrafter
from specds.drafters import SOURCES, Memory, ModelTables, Session
from specds.papers import (
    AdedConfig,
    AdedDrafter,
    NGrammysConfig,
    NGrammysDrafter,
    PromptLookupDrafter,
    RestConfig,
    RestDrafter,
)

TOKENS = st.lists(st.integers(0, 3), max_size=7)
FEW = corpora(most=8, vocabularies=SMALL)
CASES = settings(max_examples=40)
TABLES = ModelTables([[1, 0], [2, 1], [3, 2], [0, 3]], [[0.5, 0.25]] * 4, range(4))


def fused(store, **config):
    memory = Memory(4)
    memory.insert("", [0, 1, 2, 0, 1, 3, 0, 1, 2])
    return FusedDrafter(store, FusedConfig(**config), memory, model_tables=TABLES)


def drafters(store):
    """One of each kind, which adapts to no request."""
    yield RestDrafter(store, RestConfig(max_match=4))
    yield NGrammysDrafter(None, NGrammysConfig(3, 2, 1, "context"))
    yield PromptLookupDrafter()
    yield AdedDrafter(store, AdedConfig(adaptive=False))
    yield fused(store, learns=False)


@CASES
@given(FEW, TOKENS, TOKENS, st.lists(TOKENS, min_size=1, max_size=3), st.integers(0, 20))
def test_draft_after_matches_a_session_that_observed_the_tokens(
    folder, corpus, prompt, suggested, trials, max_nodes
):
    for drafter in drafters(corpus.build(folder / "d")):
        session, *others = (drafter.session([0, *prompt]) for _ in range(1 + len(trials)))
        session.suggest(suggested)
        for trial, other in zip(trials, others, strict=True):
            other.suggest(suggested)
            other.observe(trial)
            assert shown(session.draft_after(trial, max_nodes)) == shown(other.draft(max_nodes))


@CASES
@given(FEW, TOKENS, st.lists(st.tuples(TOKENS, st.lists(TOKENS, max_size=3)), min_size=1))
def test_draft_after_leaves_the_session_unchanged(folder, corpus, prompt, pieces):
    store = corpus.build(folder / "d")

    def run(drafter, has_trials):
        session, found = drafter.session([0, *prompt]), []
        for piece, trials in pieces:
            tree, length = session.draft(12), session.match_length
            for trial in trials if has_trials else ():
                session.draft_after(trial, 9)
                assert session.match_length == length
            if session.num_predictions:
                session.observe_predictions(tree, [[0]] * (1 + len(tree)))
            session.observe(piece, 5)
            found.append((shown(tree), length))
        if isinstance(drafter, FusedDrafter):
            # What was learned, and what was accepted of which source.
            found += [drafter._state.learned(), drafter.stats()]
        return found

    # With all that adapts, too.
    pairs = [*zip(drafters(store), drafters(store), strict=True)]
    pairs += [(fused(store), fused(store)), (AdedDrafter(store), AdedDrafter(store))]
    for one, other in pairs:
        assert run(one, True) == run(other, False)


def test_token_outside_the_vocabulary_is_rejected_without_effect(folder):
    num_refused = 0
    for drafter in drafters(build(folder / "d", [[1, 2, 3]])):
        session = drafter.session([1, 2])
        before = shown(session.draft(4))
        if drafter.vocab_size is not None:  # what knows no vocabulary follows any token
            num_refused += 1
            for call, given in ((session.draft_after, ([1, 4], 4)), (session.observe, ([4],))):
                with pytest.raises(ValueError, match="token 4 is outside the vocabulary"):
                    call(*given)
        assert shown(session.draft(4)) == before
    assert num_refused == 3


def test_suggestion_is_drafted_while_the_text_follows_it():
    session = FusedDrafter().session([1, 2, 3])
    assert session.suggest([7, 8, 9, 4])
    tree = session.draft(8)
    assert (tree.token_ids.tolist(), tree.parents.tolist()) == ([7, 8, 9, 4], [-1, 0, 1, 2])
    assert {SOURCES[source] for source in tree.sources} == {"suggested"}
    session.observe([7, 8])
    assert session.draft(8).token_ids[:2].tolist() == [9, 4]
    session.observe([5])
    assert len(session.draft(8)) == 0, "the text has left it"
    assert session.suggest(np.array([5, 6]), parents=[-1, -1], probs=[0.3, 0.6])
    assert session.draft(2).token_ids.tolist() == [6, 5]
    session.suggest([])
    assert len(session.draft(2)) == 0
    assert not PromptLookupDrafter().session([1]).suggest([9])
    assert not Session().suggest([1])


def test_suggestions_are_weighted_by_their_acceptance():
    # The text foretells one token; the suggestion another one, right in the first half alone.
    session, first = FusedDrafter().session([1, 2, 3]), []
    for step in range(60):
        session.suggest([5])
        first.append(session.draft(1).token_ids[0])
        session.observe([5 if step < 30 else 2])
        session.observe([3, 1])
    assert first[5:30] == [5] * 25
    assert first[45:] == [2] * 15

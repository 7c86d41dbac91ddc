"""`EngineDrafter.suggest` against plain sessions with the same suggestions."""

from itertools import takewhile

import numpy as np
import pytest

from datastores import build
from grammars import ForbiddenToken
from specds import EngineDrafter, FusedConfig, FusedDrafter, TokenTree

VOCAB_SIZE = 4


def test_suggested_chains_match_sessions_with_the_same_suggestions(tmp_path):
    store = build(tmp_path / "d", [[0, 1, 2, 1], [2, 2, 0, 1], [1, 0]], vocab_size=VOCAB_SIZE)
    ours = EngineDrafter(datastore=store.path, min_prob=0.0)
    random, contexts = np.random.default_rng(0), [[0, 1], [2, 1, 0], [1]]
    # Requests without a tenant share nothing.
    config = FusedConfig(effort="low")
    sessions = [FusedDrafter(store, config).session(context) for context in contexts]
    num_changed = 0
    for _ in range(30):
        ours.sync([*contexts, None], [*"abcd"])
        token_ids = random.integers(0, VOCAB_SIZE, (4, 5))
        token_ids[np.arange(4), random.integers(0, 5, 4)] = -1
        probs = random.random((4, 5), np.float32)
        before, _, _ = ours.draft_chains(6)
        ours.suggest(token_ids, probs)
        drafted, lengths, _ = ours.draft_chains(6)
        num_changed += not np.array_equal(before, drafted)
        assert lengths[3] == 0
        for row, session in enumerate(sessions):
            chain = [*takewhile(lambda token: token >= 0, token_ids[row].tolist())]
            session.suggest(chain, probs=probs[row, : len(chain)])
            expected = session.draft(6, is_chain=True).token_ids.tolist()
            assert drafted[row, : lengths[row]].tolist() == expected
        for row, session in enumerate(sessions):
            news = random.integers(0, 3, 1 + row).tolist()
            session.observe(news)
            contexts[row] = contexts[row] + news
    assert num_changed > 10


def test_suggestion_is_cut_at_unknown_tokens_and_rejected_with_wrong_shape():
    drafter = EngineDrafter(vocab_size=50)
    drafter.sync([[1, 2], [3, 4]], ["a", "b"])
    drafter.suggest([[5, 99, 6], [7, 8, -1]], np.ones((2, 3)))
    assert drafter.draft_chains(3)[0].tolist() == [[5, -1, -1], [7, 8, -1]]
    for token_ids, probs in [([[5]], [[0.5, 0.5]]), ([[5]], [[1.5]]), ([5], [[1]]), ([[5]], [1])]:
        with pytest.raises((TypeError, ValueError)):
            drafter.suggest(token_ids, probs)


def test_chosen_part_of_the_candidates_is_the_draft_of_one_step():
    drafter, text = EngineDrafter(min_prob=0.0), [1, 2, 3] * 4
    drafter.sync([text, [7, *text]], ["a", "b"])
    tree = drafter.candidates(0, 9, TokenTree([5, 6], [-1, 0], [1.0, 1.0]))
    assert {5, 6, 1} <= {*tree.token_ids.tolist()}
    chosen = tree.allowed(ForbiddenToken(1), len(tree))
    drafter.choose(0, chosen)
    token_ids, lengths, _ = drafter.draft_chains(8)
    best = chosen.best_chain().token_ids.tolist()[:8]
    assert token_ids[0, : lengths[0]].tolist() == best
    assert token_ids[1, 0] == 1
    drafter.sync([[*text, *best[:2], 9], None], ["a", "b"], num_verified=[len(best), 0])
    stats = drafter.stats()
    assert (stats["num_draft_tokens"], stats["num_accepted_tokens"]) == (len(best), 2)
    assert drafter.draft_chains(8)[0][0].tolist() != token_ids[0].tolist()
    assert len(drafter.candidates(1, 9)) == len(drafter.candidates(5, 9)) == 0

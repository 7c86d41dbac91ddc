"""Calls of drafters and sessions: their arguments, and errors for invalid results."""

import pytest
import torch

from models import (
    GREEDY,
    VOCAB_SIZE,
    Drafter,
    Session,
    decodes_alike,
    oracle_drafter,
    plain_generate,
    prompt,
    random_drafter,
    random_tree,
    tiny_model,
    tree_generate,
)
from specds import drafters
from specds._core import Memory, TokenTree
from specds.drafters import FusedDrafter
from specds.drafters import TokenTree as CoreTree
from specds.generation import UnsupportedRequestError, generate

NODES = {
    "drafts over the number of nodes are cut": (None, 3, {3}),
    "none is asked for with no nodes": (None, 0, set()),
    "a drafter names its own": (5, "auto", {5}),
    "a number comes before the drafter's own": (5, 3, {3}),
    "elsewhere auto decides": (None, "auto", {63}),
}


@pytest.mark.parametrize("name", NODES)
def test_drafts_have_at_most_max_nodes(name):
    own, asked, nodes = NODES[name]
    drafter = Drafter(lambda rng, *_: random_tree(rng, 70))
    if own is not None:
        drafter.max_nodes = own
    model = tiny_model("llama")
    output = decodes_alike(model, drafter, 8, max_nodes=asked)
    assert set(drafter.sessions[0].asked_nodes) == nodes
    assert output.stats.num_draft_tokens <= max(nodes, default=0) * output.stats.num_drafts


class Recycling(Session):
    """A session that stores the target's two likeliest tokens with the emitted ones."""

    num_predictions = 2

    def __init__(self, grow, prompt_ids):
        super().__init__(grow, prompt_ids)
        self.recycled = []

    def observe_predictions(self, tree, predictions):
        assert predictions.shape == (1 + len(tree), 2)
        self.recycled.append([tree, predictions])

    def observe(self, token_ids, num_verified=None):
        self.recycled[-1].append(token_ids)
        super().observe(token_ids)


@pytest.mark.parametrize("verification", ["packed", "model"])
def test_sessions_receive_the_targets_predictions_at_every_node(verification):
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    drafter, sessions = oracle_drafter(expected, num_wrong=1), []
    drafter.session = lambda ids: sessions.append(Recycling(drafter.grow, ids)) or sessions[-1]
    settings = {"verification": verification, "max_new_tokens": 32, **GREEDY}
    # The second row's drafts are wrong, so it takes more steps than the first.
    ids = torch.cat([prompt(), prompt(seed=1)])
    output = generate(model, ids, drafter, max_nodes=16, **settings)
    assert output.sequences[0].tolist() == expected
    assert max(len(tree) for tree, _, _ in sessions[0].recycled) > 4
    assert len(sessions[1].recycled) > len(sessions[0].recycled)
    assert all(len(session.recycled[0][0]) == 0 for session in sessions)
    for tree, predictions, emitted in sessions[0].recycled + sessions[1].recycled:
        edges = list(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True))
        node = -1
        for token in emitted:
            assert predictions[1 + node, 0] == token
            node = edges.index((node, token)) if (node, token) in edges else None

    drafter.vocab_size = 7
    drafter.grow = lambda *_: CoreTree([], [])
    tree_generate(model, drafter, max_nodes=1, **GREEDY)
    received = [entry[1] for later in sessions[2:] for entry in later.recycled]
    assert received
    assert all(predictions.max() < 7 for predictions in received)


def test_draft_ends_before_a_token_outside_the_models_vocabulary():
    model = tiny_model("llama")
    for tree, num_left in (([3, VOCAB_SIZE, 5], 1), ([VOCAB_SIZE, 3, 5], 0)):
        drafter = Drafter(lambda *_, ids=tree: TokenTree(ids, [-1, -1, 0], [0.5, 0.5, 0.5]))
        with pytest.warns(UserWarning, match=f"token {VOCAB_SIZE} is cut there: the model has"):
            output = decodes_alike(model, drafter)
        assert output.stats.num_draft_tokens <= num_left * output.stats.num_drafts
    for drafted in (VOCAB_SIZE + 1, VOCAB_SIZE, VOCAB_SIZE - 5, None):
        drafter = random_drafter()
        drafter.vocab_size = drafted
        decodes_alike(model, drafter)
    for verification in ("model", "packed"):  # tokens of the tokenizer that the model lacks
        drafter = FusedDrafter(memory=Memory(VOCAB_SIZE + 1))
        decodes_alike(model, drafter, verification=verification)


def test_session_of_the_caller_continues_and_is_not_finished():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    drafter = oracle_drafter(expected)
    session = drafter.session(prompt()[0].tolist())
    for max_new_tokens in (20, 12):
        settings = {"session": session, "max_new_tokens": max_new_tokens, "max_nodes": 8, **GREEDY}
        output = generate(model, torch.tensor([session.token_ids]), drafter, **settings)
        assert session.token_ids == output.sequences[0].tolist()
        assert output.stats.num_accepted_tokens > 0
    assert session.token_ids == expected
    assert (drafter.sessions, session.finished) == ([session], 0)
    # A token that the drafter lacks begins another session, which is finished.
    drafter.vocab_size = max(expected[21:])
    output = generate(model, prompt(), drafter, session=session, max_new_tokens=32, **GREEDY)
    assert output.sequences[0].tolist() == expected
    assert session.finished == 0
    assert drafter.sessions[1:]
    assert all(other.finished == 1 for other in drafter.sessions[1:])
    with pytest.raises(UnsupportedRequestError, match="session cannot be used: it has the context"):
        generate(model, prompt().repeat(2, 1), drafter, session=session, max_new_tokens=2)


def test_session_base_class_does_nothing():
    for session in (drafters.Session(), drafters.Session(1, of=2)):
        assert len(session.draft(8)) == len(session.draft_after([1], 8)) == 0
        assert (session.proposes, session.proposals, session.level_stats) == (False, {}, {})
        assert (session.num_predictions, session.match_length) == (0, None)
        assert not session.suggest([1])
        for result in (session.observe([1]), session.set_step_time(0.1), session.finish()):
            assert result is None
    assert isinstance(FusedDrafter().session([1]), drafters.Session)


def test_object_that_is_not_a_session_is_refused_before_generation():
    drafter = random_drafter()
    drafter.session = lambda _: object()
    with pytest.raises(TypeError, match=r"must be a `specds\.drafters\.Session`, not object"):
        tree_generate(tiny_model("llama"), drafter, **GREEDY)

"""Uses in other programs: corpora of token ids, pickles, closed datastores, ended requests."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from operator import methodcaller

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specds import BuildOptions, Datastore, FusedDrafter, build_from_token_ids
from specds.drafters import TokenTree, draft_batch


@pytest.fixture
def store(tmp_path):
    documents = (np.array(ids, np.uint16) for ids in ([0, 1, 2], [0, 1, 3]))
    return build_from_token_ids(documents, tmp_path / "d.specds", vocab_size=4)


def test_datastore_is_built_from_token_ids(store, tmp_path):
    assert (store.num_documents, store.num_tokens, store.separator) == (2, 8, 4)
    assert store.count([0, 1]) == 2
    store.verify()
    with pytest.raises(FileExistsError):
        build_from_token_ids([[1]], store.path, vocab_size=4)
    replaced = build_from_token_ids(
        [[1], [1]], store.path, BuildOptions(overwrite=True), vocab_size=4, separator=0
    )
    assert (replaced.num_documents, replaced.separator) == (1, 0)
    with pytest.raises(ValueError, match="4"):
        build_from_token_ids([[4]], tmp_path / "e", vocab_size=4)


def test_pickled_datastore_is_opened_by_its_path(store):
    assert pickle.loads(pickle.dumps(store)).path == store.path
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(methodcaller("count", [0, 1]), store).result(60) == 2


def test_closed_datastore_raises_and_its_drafters_continue(store):
    with Datastore(store.path) as opened:
        assert opened == opened
        session = FusedDrafter(opened).session([3, 0])
        documents = iter(opened)
    assert repr(opened) == f"Datastore({store.path}, closed)"
    calls = (lambda: opened.num_tokens, lambda: opened.count([1]), lambda: next(documents))
    for call in (*calls, lambda: FusedDrafter(opened), opened.__enter__().verify):
        with pytest.raises(ValueError, match=r"d.specds is closed: open it again"):
            call()
    assert session.draft(1).token_ids.tolist() == [1]
    assert pickle.loads(pickle.dumps(opened)).num_tokens == 8


def test_match_of_another_datastore_is_rejected(store, tmp_path):
    again = Datastore(store.path)
    other = build_from_token_ids([[0, 1]], tmp_path / "o", vocab_size=4)
    match = store.lookup([0, 1])
    assert match == store.find([0, 1]) == again.lookup([3, 0, 1])
    assert match != store.lookup([0])
    assert match != other.lookup([0, 1])
    assert match != "Match(length=2, count=2)"
    assert again.positions(match).tolist() == [0, 4]
    for ask in (other.continuations, other.positions, other.count_next):
        with pytest.raises(ValueError, match="`of` is a match in another datastore"):
            ask(match)


def test_ended_request_rejects_calls(store):
    session = FusedDrafter(store).session([0])
    session.finish()
    session.finish()
    assert (session.match_length, session.num_predictions) == (0, 0)
    session.set_step_time(0.1)
    for call in (
        lambda: session.draft(4),
        lambda: session.draft_after([1], 4),
        lambda: session.observe([1]),
        lambda: session.suggest([1]),
        lambda: draft_batch([session], 4),
    ):
        with pytest.raises(ValueError, match="the request has ended: start another session"):
            call()


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2)), max_size=12), st.data())
def test_tree_is_accepted_along_the_choices_of_the_model(draws, data):
    nodes = []
    for draw, token in draws:
        node = (draw % (len(nodes) + 1) - 1, token)
        nodes += [] if node in nodes else [node]
    tree = TokenTree([token for _, token in nodes], [parent for parent, _ in nodes])
    choices = [data.draw(st.integers(0, 2)) for _ in range(len(nodes) + 1)]
    path, emitted, at = [], [choices[0]], -1
    while (at, emitted[-1]) in nodes:
        at = nodes.index((at, emitted[-1]))
        path.append(at)
        emitted.append(choices[1 + at])
    accepted, tokens = tree.accept(np.array(choices))
    assert (accepted.tolist(), tokens.tolist()) == (path, emitted)
    assert [tree.child(*edge) for edge in nodes] == [*range(len(nodes))]
    assert tree.child(at, emitted[-1]) is None
    # A prefix of the text follows the same path.
    for length in range(len(emitted) + 1):
        assert tree.follow(emitted[:length]) == path[:length]
    assert tree.follow([*emitted, 0]) == path
    for wrong in (choices[1:], [*choices, 0], []):
        with pytest.raises(ValueError, match=f"the context and each node: {len(choices)}"):
            tree.accept(wrong)

"""The fused drafter: every draft against a naive twin, and the Python face of it."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import GREEDY, VOCAB_SIZE, plain_generate, tiny_model, tree_generate
from reference_fused import Request
from specds import (
    FusedConfig,
    FusedDrafter,
    Memory,
    TokenTree,
    draft_batch,
    fit_weights,
)
from stores import build

tokens = st.integers(0, 3)
texts = st.lists(tokens, min_size=1, max_size=14)


def paths_of(tree):
    """The probability of each path of a tree."""
    paths = []
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, tree.probs.tolist(), strict=True))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    documents=st.lists(texts, max_size=3),
    separator=st.sampled_from([3, 4]),
    earlier=st.lists(tokens, max_size=12),
    pieces=st.lists(texts, min_size=1, max_size=7),
    max_nodes=st.integers(0, 40),
)
def test_every_draft_is_that_of_a_naive_twin(
    tmp_path, documents, separator, earlier, pieces, max_nodes
):
    documents = [[token for token in text if token < separator] for text in documents]
    documents = [text for text in documents if text]
    store = build(tmp_path / "d", documents, separator=separator) if documents else None
    memory = Memory(4)
    if earlier:
        memory.insert("", earlier)
    remembered = [*earlier, None] if earlier else []
    twin = Request(documents, separator if documents else None, remembered)
    session = FusedDrafter(store, memory=memory).session(pieces[0])
    twin.observe(pieces[0])
    for piece in [*pieces[1:], []]:
        tree = session.draft(max_nodes)
        drafted = paths_of(tree)
        twin.draft(max_nodes)
        expected = twin.expected()
        for path in drafted.keys() & expected.keys():
            assert any(drafted[path] == pytest.approx(prob, rel=1e-3) for prob in expected[path])
        expected = {path: max(probs) for path, probs in expected.items()}
        # Of what is as likely as the last node, either may have another one.
        least = max(min(probs.values(), default=0) for probs in (drafted, expected)) * 1.001
        if not twin.is_close:
            assert len(drafted) == len(expected)
            for path in drafted.keys() ^ expected.keys():
                assert drafted.get(path, 0) + expected.get(path, 0) <= least, path
        session.observe(piece)
        twin.observe(piece)


def test_without_any_source_but_its_own_text_a_request_is_drafted_for():
    drafter = FusedDrafter()
    assert drafter.vocab_size is None
    session = drafter.session([1, 2, 3, 1, 2])
    tree = session.draft(1)
    assert tree.token_ids.tolist() == [3]
    session.observe([3, 1])
    assert drafter.stats() == {"context": 1}


def test_requests_that_finished_are_remembered_for_their_tenant(tmp_path):
    drafter = FusedDrafter(build(tmp_path / "d", [[0, 1]], separator=100, vocab_size=100))
    session = drafter.session([50, 51, 52], tenant="ann")
    session.observe([53, 54])
    session.finish()
    assert drafter.session([52], tenant="ann").draft(2).token_ids.tolist() == [53, 54]
    assert len(drafter.session([52], tenant="bob").draft(2)) == 0


def test_what_is_learned_goes_on_in_another_drafter():
    drafter = FusedDrafter()
    session = drafter.session([1, 2, 3, 1, 2])
    session.draft(4)
    session.observe([3, 1])
    weights = drafter.weights()
    assert weights != FusedDrafter().weights()
    assert FusedDrafter(weights=weights).weights() == weights
    still = FusedDrafter(weights=weights, config=FusedConfig(learns=False))
    session = still.session([1, 2, 3, 1, 2])
    session.draft(4)
    session.observe([3, 1])
    assert still.weights() == weights


def test_weights_are_fitted_from_documents():
    assert fit_weights(None, []) == FusedDrafter().weights()
    fitted = fit_weights(None, [list(range(20)) * 3, np.arange(20)])
    assert fit_weights(None, [list(range(20)) * 3, np.arange(20)]) == fitted
    assert fitted != FusedDrafter().weights()


def test_a_predicted_output_and_recycled_predictions_are_drafted():
    drafter = FusedDrafter()
    session = drafter.session([1, 2], predicted_output=[9, 1, 2, 8])
    assert session.draft(1).token_ids.tolist() == [8]
    assert session.num_predictions == 0
    session = FusedDrafter(config=FusedConfig(recycled=True)).session([1, 2])
    assert session.num_predictions == 8
    session.recycle(TokenTree([3, 4], [-1, -1]), [[3, 4], [10, 11], [20, 21]])
    session.observe([4])
    assert session.draft(2).token_ids.tolist() == [20, 21]


@pytest.mark.parametrize("recycled", [False, True])
def test_texts_are_those_of_plain_decoding_and_learned_from(recycled):
    model = tiny_model("llama")
    drafter = FusedDrafter(config=FusedConfig(recycled=recycled), memory=Memory(VOCAB_SIZE))
    lengths = []
    for _ in range(2):
        output = tree_generate(model, drafter, return_dict_in_generate=True, **GREEDY)
        assert output.sequences.tolist() == [plain_generate(model, **GREEDY)]
        lengths.append(output.stats.mean_acceptance_length)
    # The second request is the first one again.
    assert lengths[1] > max(lengths[0], 4)
    assert ("recycled" in drafter.stats()) <= recycled


def test_only_likely_nodes_are_drafted_until_a_gain():
    session = FusedDrafter().session([1, 2, 3, 4, 1, 2, 5, 6, 1, 2])
    tree = session.draft_until(0.2)
    assert 0 < len(tree) < len(session.draft(64))
    assert (tree.probs >= 0.2).all()


def test_bad_arguments_are_refused_by_name(tmp_path):
    store = build(tmp_path / "d", [[0, 1]], separator=4)
    with pytest.raises(ValueError, match="`memory` must have the datastore's vocabulary: 4, not 9"):
        FusedDrafter(store, memory=Memory(9))
    with pytest.raises(ValueError, match="fit them again"):
        FusedDrafter(weights=b"not weights")
    drafter = FusedDrafter(store)
    with pytest.raises(ValueError, match="the prompt is empty"):
        drafter.session([])
    with pytest.raises(ValueError, match="4"):
        drafter.session([4])
    with pytest.raises(ValueError, match="4"):
        drafter.session([1], predicted_output=[4])
    with pytest.raises(ValueError, match="tenant"):
        drafter.session([1], tenant="n" * 2000)
    session = drafter.session([1])
    for predictions, message in (
        ([[1], [2]], "`predictions` must hold k = 1 tokens"),
        ([1], "`predictions` must have two dimensions"),
        ([[4]], "4"),
    ):
        with pytest.raises(ValueError, match=message):
            session.recycle(TokenTree([], []), predictions)


def test_threads_share_a_drafter():
    drafter = FusedDrafter(memory=Memory(100))

    def work():
        for _ in range(5):
            session = drafter.session([1, 2, 3, 4] * 5)
            for _ in range(10):
                session.draft(16)
                session.observe([1, 2, 3, 4])
            session.finish()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(drafter.stats().values()) > 500
    sessions = [drafter.session([1, 2, 3, number]) for number in range(20)]
    alone = [session.draft(16).token_ids.tolist() for session in sessions]
    assert [tree.token_ids.tolist() for tree in draft_batch(sessions, 16)] == alone

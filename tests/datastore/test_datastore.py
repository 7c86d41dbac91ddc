"""The datastore and REST's draft against the plain-Python oracle, and every bad input."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datastores import build
from reference import Datastore as Oracle
from specds import Datastore, FormatError, FusedDrafter, RestDrafter
from specds.build import DatastoreBuilder
from specds.drafters import RestConfig, TokenTree, draft_batch

GOLDEN = Path(__file__).parents[1] / "data"

tokens = st.integers(0, 3)
documents = st.lists(st.lists(tokens, max_size=12), min_size=1, max_size=6).filter(any)
separators = st.sampled_from([3, 4])
on_disk = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@on_disk
@given(
    documents=documents,
    separator=separators,
    context=st.lists(tokens, min_size=1, max_size=8),
    max_match=st.integers(1, 6),
    min_match=st.integers(1, 3),
    shard=st.sampled_from([13, 20, 1000]),
)
def test_lookup_and_counts_equal_the_oracle(
    tmp_path, documents, separator, context, max_match, min_match, shard
):
    oracle = Oracle(documents, separator, 4)
    store = build(tmp_path / "d", documents, separator=separator, max_shard_tokens=shard)
    max_match = max(max_match, min_match)
    match = store.lookup(context, max_match=max_match, min_match=min_match)
    assert (match.length, match.count) == oracle.lookup(context, max_match, min_match)
    if match.length:
        ids, counts = store.continuations(match, 3)
        expected = oracle.continuations(context[len(context) - match.length :], 3)
        assert list(zip(ids.tolist(), counts.tolist(), strict=True)) == expected


@on_disk
@given(
    documents=documents,
    separator=separators,
    pieces=st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=5),
    max_nodes=st.integers(0, 12),
    continuation=st.integers(1, 5),
    max_samples=st.integers(1, 6),
    shard=st.sampled_from([13, 20, 1000]),
)
def test_drafts_of_a_session_equal_the_oracle_at_every_step(
    tmp_path,
    documents,
    separator,
    pieces,
    max_nodes,
    continuation,
    max_samples,
    shard,
):
    oracle = Oracle(documents, separator, 4, shard)
    store = build(tmp_path / "d", documents, separator=separator, max_shard_tokens=shard)
    limits = {
        "max_match": 5,
        "continuation": continuation,
        "max_samples": max_samples,
    }
    session = RestDrafter(store, RestConfig(**limits)).session(pieces[0])
    context = []
    for number, piece in enumerate(pieces):
        context += piece
        if number:
            session.observe(piece)
        tree = session.draft(max_nodes)
        token_ids, parents, probs = oracle.rest(context, max_nodes, **limits)
        assert tree.token_ids.tolist() == token_ids
        assert tree.parents.tolist() == parents
        np.testing.assert_allclose(tree.probs, np.array(probs, np.float32))
    session.finish()


@on_disk
@given(
    documents=documents,
    separator=separators,
    pattern=st.lists(tokens, min_size=1, max_size=3),
    limit=st.integers(0, 5),
    shard=st.sampled_from([13, 20, 1000]),
)
def test_what_is_found_in_the_corpus_equals_the_oracle(
    tmp_path, documents, separator, pattern, limit, shard
):
    oracle = Oracle(documents, separator, 4)
    store = build(tmp_path / "d", documents, separator=separator, max_shard_tokens=shard)
    store.warm()
    expected = oracle.positions(pattern)
    assert store.count(pattern) == len(expected)
    match = store.lookup(pattern, max_match=len(pattern), min_match=len(pattern))
    positions = store.positions(match, limit)
    assert positions.dtype == np.int64
    assert positions.tolist() == expected[:limit]
    assert store.positions(match).tolist() == expected[:10]
    for position in range(store.num_tokens):
        found = store.document(position)
        index, start, text = oracle.document(position)
        assert (found.index, found.start, found.token_ids.tolist()) == (index, start, text)


def test_what_cannot_be_counted_or_found_is_refused(tmp_path):
    store = build(tmp_path / "d", [[1, 2], [3]])
    for pattern, message in (
        ([], "`pattern` is empty"),
        ([4], "token 4"),
        ([-1], "`pattern` holds"),
    ):
        with pytest.raises(ValueError, match=message):
            store.count(pattern)
    with pytest.raises(ValueError, match="below the number of tokens: 5, not 5"):
        store.document(5)
    with pytest.raises(OverflowError):
        store.document(-1)
    with pytest.raises(OverflowError):
        store.positions(store.lookup([1]), -1)
    assert repr(store.document(3)) == "StoredDocument(index=1, start=3, 1 tokens)"


@pytest.mark.parametrize("num_threads", [None, 1, 3])
def test_batches_equal_one_by_one(tmp_path, num_threads):
    rng = np.random.default_rng(0)
    store = build(tmp_path / "d", [rng.integers(0, 4, 200).tolist() for _ in range(8)])
    contexts = [rng.integers(0, 4, 12) for _ in range(20)]
    drafters = [RestDrafter(store), FusedDrafter(store)]
    sessions = [drafters[i % 2].session(context) for i, context in enumerate(contexts)]
    trees = draft_batch(sessions, 16, num_threads=num_threads)
    for tree, session in zip(trees, sessions, strict=True):
        expected = session.draft(16)
        assert tree.token_ids.tolist() == expected.token_ids.tolist()
        assert tree.parents.tolist() == expected.parents.tolist()
        assert tree.probs.tolist() == expected.probs.tolist()
    assert draft_batch([], 16, num_threads=num_threads) == []


def test_bad_batches_are_refused(tmp_path):
    store = build(tmp_path / "d", [[1, 2]])
    session, other = (RestDrafter(store).session([1]) for _ in range(2))
    with pytest.raises(ValueError, match="`sessions` has number 2 twice"):
        draft_batch([session, other, session], 4)
    with pytest.raises(TypeError, match="DraftSession"):
        draft_batch([session, RestDrafter(store)], 4)
    with pytest.raises(ValueError, match="`num_threads` must be at least 1"):
        draft_batch([session], 4, num_threads=0)
    # What was refused is left as it was.
    assert draft_batch([session, other], 4)[1].token_ids.tolist() == [2]


def test_wide_tokens_are_found(tmp_path):
    store = build(tmp_path / "d", [[70_000, 5, 131_000]], vocab_size=131_072, separator=131_071)
    match = store.lookup([70_000, 5])
    assert (match.length, match.count) == (2, 1)
    assert store.continuations(match, 5)[0].tolist() == [131_000]


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64]
)
def test_any_integer_dtype_is_read(tmp_path, dtype):
    store = build(tmp_path / "d", [[1, 2, 3]])
    assert store.lookup(np.array([1, 2], dtype)).length == 2
    assert (
        store.lookup(np.array([9, 1, 9, 2], dtype)[1::2] * 0 + np.array([1, 2], dtype)).length == 2
    )


def test_torch_tensors_and_strided_arrays_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    store = build(tmp_path / "d", [[1, 2, 3]])
    assert store.lookup(torch.tensor([1, 2])).length == 2
    assert store.lookup(np.array([1, 0, 2, 0])[::2]).length == 2


@pytest.mark.parametrize(
    ("context", "error", "message"),
    [
        ([], ValueError, "context"),
        ([4], ValueError, "token 4 is outside the vocabulary of 4"),
        ([-1], ValueError, "`context` holds -1"),
        ([2**33], ValueError, "`context` holds 8589934592"),
        ([1.5], TypeError, "`context` must hold integers, its dtype is float64"),
        ([True], TypeError, "dtype is bool"),
        ([[1, 2]], ValueError, "`context` must have one dimension"),
        (["a"], TypeError, "`context` must hold integers"),
        (3, ValueError, "`context` must have one dimension"),
    ],
)
def test_bad_context_is_refused_by_name(tmp_path, context, error, message):
    store = build(tmp_path / "d", [[1, 2, 3]])
    with pytest.raises(error, match=message):
        store.lookup(context)


def test_empty_prompt_is_refused(tmp_path):
    with pytest.raises(ValueError, match="prompt"):
        RestDrafter(build(tmp_path / "d", [[1]])).session([])


def test_bad_document_leaves_the_build_as_it_was(tmp_path):
    with DatastoreBuilder(tmp_path / "d", vocab_size=4, separator=4) as builder:
        builder.add_documents([1, 2], [2])
        for bad in ([1, 4], [1, -1]):
            with pytest.raises(ValueError, match=r"4|-1"):
                builder.add_documents(bad, [2])
        with pytest.raises(ValueError, match="lengths"):
            builder.add_documents([1, 2], [3])
        assert builder.num_tokens == 3
        store = builder.finish()
    assert store.lookup([1, 2]).count == 1


def test_empty_corpus_is_refused_and_leaves_nothing(tmp_path):
    with (
        DatastoreBuilder(tmp_path / "d", vocab_size=4, separator=4) as builder,
        pytest.raises(ValueError, match="empty"),
    ):
        builder.finish()
    assert list(tmp_path.iterdir()) == []


def test_builder_left_by_an_error_leaves_nothing(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        DatastoreBuilder(tmp_path / "d", vocab_size=4, separator=4) as builder,
    ):
        builder.add_documents([1, 2], [2])
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="ended"):
        builder.add_documents([1], [1])


def test_progress_that_raises_stops_the_build(tmp_path):
    def stop(stage, done, total):
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        DatastoreBuilder(tmp_path / "d", vocab_size=4, separator=4) as builder,
    ):
        builder.add_documents([1, 2], [2])
        builder.finish(stop)
    assert list(tmp_path.iterdir()) == []


def test_existing_target_is_refused_before_any_work(tmp_path):
    build(tmp_path / "d", [[1, 2]])
    with pytest.raises(FileExistsError, match="exists"):
        DatastoreBuilder(tmp_path / "d", vocab_size=4, separator=4)


def test_the_same_corpus_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        build(tmp_path / name, [[1, 2, 1], [2, 3]])
    files = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert len(files) > 1
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_damaged_datastore_is_a_format_error(tmp_path):
    build(tmp_path / "d", [[1, 2, 1], [2, 3]])
    for path in sorted(p for p in (tmp_path / "d").rglob("*") if p.is_file()):
        broken = tmp_path / "broken"
        shutil.copytree(tmp_path / "d", broken)
        target = broken / path.relative_to(tmp_path / "d")
        target.write_bytes(target.read_bytes()[:-1])
        with pytest.raises(FormatError):
            Datastore.open(broken)
        target.unlink()
        with pytest.raises((FormatError, FileNotFoundError)):
            Datastore.open(broken)
        shutil.rmtree(broken)


def test_missing_datastore_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Datastore.open(tmp_path / "nowhere")


def test_threads_share_a_datastore(tmp_path):
    rng = np.random.default_rng(0)
    docs = [rng.integers(0, 4, 200).tolist() for _ in range(20)]
    drafter = RestDrafter(build(tmp_path / "d", docs))
    contexts = [rng.integers(0, 4, 12).tolist() for _ in range(50)]
    expected = [drafter.session(c).draft(16).token_ids.tolist() for c in contexts]
    results = {}

    def work(number):
        results[number] = [drafter.session(c).draft(16).token_ids.tolist() for c in contexts]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[number] == expected for number in range(4))


def test_tree_views_equal_the_oracle():
    from reference import TokenTree as OracleTree

    arguments = [5, 6, 5, 7, 7], [-1, -1, 0, 0, 2], [0.5, 0.25, 0.25, 0.125, 0.125]
    tree, oracle = TokenTree(*arguments), OracleTree(*arguments)
    for name in ("token_ids", "parents", "probs"):
        ours, theirs = getattr(tree, name), getattr(oracle, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(tree.depths(), oracle.depths())
    np.testing.assert_array_equal(tree.mask(), oracle.mask())
    assert [p.tolist() for p in tree.paths()] == [p.tolist() for p in oracle.paths()]
    assert len(tree.prefix(3)) == 3
    assert len(tree.prefix(99)) == 5


@pytest.mark.parametrize(
    ("token_ids", "parents", "probs", "message"),
    [
        ([1, 2], [-1], None, "parents"),
        ([1], [0], None, "parent"),
        ([1, 2], [-1, -2], None, "parent"),
        ([1, 1], [-1, -1], None, "comes twice below"),
        ([1], [-1], [1.5], "prob"),
        ([1], [-1], [float("nan")], "prob"),
        ([1], [-1], [0.5, 0.5], "prob"),
        ([-1], [-1], None, "token_ids"),
    ],
)
def test_what_is_no_tree_is_refused(token_ids, parents, probs, message):
    with pytest.raises(ValueError, match=message):
        TokenTree(token_ids, parents, probs)


def test_batches_come_to_an_end_in_a_forked_process(tmp_path):
    script = """
import os, sys
from specds import Datastore, RestDrafter
from specds.build import DatastoreBuilder
from specds.drafters import draft_batch
with DatastoreBuilder(sys.argv[1], vocab_size=4, separator=3) as builder:
    builder.add_documents([0, 1, 2, 0, 1], [5])
    store = builder.finish()
def ask():
    sessions = [RestDrafter(store).session([0]) for _ in range(64)]
    trees = draft_batch(sessions, 8)
    return [tree.token_ids.tolist() for tree in trees]
expected = ask()
child = os.fork()
if child == 0:
    os._exit(0 if ask() == expected else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "d")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_the_golden_datastore_of_this_format_still_opens():
    store = Datastore.open(GOLDEN / "format-2.specds")
    store.verify()
    assert store.num_tokens > 0


def test_a_datastore_of_an_older_format_is_refused_with_the_way_out():
    with pytest.raises(FormatError, match="format version 1, this version reads 2: rebuild it"):
        Datastore.open(GOLDEN / "format-1.specds")

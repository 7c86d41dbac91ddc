"""Fused drafter: drafts compared with the reference implementation, and its Python interface."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastores import build
from models import VOCAB_SIZE, decodes_alike, tiny_model
from reference import paths, shown
from reference_datastore import corpora
from reference_fused import ReferenceRequest
from replays import phrases, text_of, transcript, zero_shot
from specds import FormatError, FusedConfig, FusedDrafter
from specds.bench.acceptance.measure import follow
from specds.drafters import SOURCES, Effort, Memory, ModelTables, TokenTree, draft_batch

tokens = st.integers(0, 3)
texts = st.lists(tokens, min_size=1, max_size=14)
PACES = {None: "normal", 0.001: "low", 0.01: "normal", 0.1: "normal"}
PROBS = [0.5, 0.3, 0.0]


@settings(max_examples=60)
@given(
    documents=st.lists(texts, max_size=3),
    separator=st.sampled_from([3, 4]),
    earlier=st.lists(tokens, max_size=12),
    bigrams=st.lists(st.permutations(range(4)), min_size=4, max_size=4),
    offset=st.one_of(st.none(), tokens),
    pieces=st.lists(texts, min_size=1, max_size=7),
    limits=st.tuples(st.one_of(st.integers(0, 40), st.integers(65, 100)), st.booleans()),
    effort=st.sampled_from(get_args(Effort)),
    pace=st.sampled_from([*PACES]),
)
def test_drafts_match_the_reference_implementation(
    folder, documents, separator, earlier, bigrams, offset, pieces, limits, effort, pace
):
    documents = [[token for token in text if token < separator] for text in documents]
    documents = [text for text in documents if text]
    store = build(folder / "d", documents, separator=separator) if documents else None
    memory = Memory(4)
    if earlier:
        memory.insert("", earlier)
    reference = ReferenceRequest(
        documents,
        separator if documents else None,
        [*earlier, None] if earlier else [],
        [dict(zip(row, PROBS, strict=False)) for row in bigrams],
        PACES[pace] if effort == "auto" else effort,
    )
    tables = ModelTables([row[:3] for row in bigrams], [PROBS] * 4, range(4))
    config = FusedConfig(effort=effort)
    drafter = zero_shot(FusedDrafter(store, config, memory, model_tables=tables))
    session = drafter.session(pieces[0])
    if pace is not None:
        session.set_step_time(pace)
    reference.observe(pieces[0])
    for piece in [*pieces[1:], []]:
        tree = session.draft(limits[0], is_chain=limits[1])
        drafted = paths(tree)
        reference.check(drafted, *limits)
        if reference.is_on_edge:
            return
        if offset is not None:
            ends = reference.context[-1], *(path[-1] for path in drafted)
            predictions = [[(end + offset) % 4, end] for end in ends]
            session.observe_predictions(tree, predictions)
            reference.recycled.add(reference.context, drafted, predictions)
        session.observe(piece)
        reference.observe(piece)


@settings(max_examples=40)
@given(
    corpora(most=20),
    st.booleans(),
    st.lists(st.lists(texts, min_size=1, max_size=6), min_size=1, max_size=3),
    st.sampled_from([0, 1, 2, 7, 19, 64, 1000]),
)
def test_trees_are_valid_and_deterministic(folder, corpus, has_datastore, requests, max_nodes):
    size = corpus.vocab_size
    store = corpus.build(folder / "d") if has_datastore else None
    following = np.stack([(np.arange(size) + 1) % size, np.arange(size)], axis=1)
    tables = ModelTables(following, np.tile([0.5, 0.25], (size, 1)), range(size))

    def run():
        drafter, trees = FusedDrafter(store, memory=Memory(size), model_tables=tables), []
        for pieces in requests:
            pieces = [*map(corpus.of, pieces)]
            prompt = [0, *pieces[0]]
            session = drafter.session(prompt, predicted_output=prompt)
            for piece in pieces:
                trees.append(session.draft(max_nodes))
                session.observe_predictions(trees[-1], [[0] * 3] * (1 + len(trees[-1])))
                session.observe(piece)
            session.finish()
        return trees

    trees = run()
    assert [*map(shown, trees)] == [*map(shown, run())]
    for tree in trees:
        assert len(tree) <= max_nodes
        assert all(tree.token_ids < size)
        probs = tree.probs.tolist()
        assert probs == sorted(probs, reverse=True)
        TokenTree(tree.token_ids, tree.parents, tree.probs)  # which rejects an invalid tree


@settings(max_examples=40)
@given(corpora(most=8), st.lists(texts, min_size=1, max_size=3))
def test_shards_do_not_change_exhaustive_drafts(folder, corpus, contexts):
    cut = corpus.build(folder / "cut")
    whole = corpus.build(folder / "whole", max_shard_tokens=1 << 20)
    whole.warm()  # what follows tokens is then looked up at once
    for context in map(corpus.of, contexts):
        one, other = (FusedDrafter(store).session(context).draft(32) for store in (cut, whole))
        assert shown(one) == shown(other)


def test_known_prompt_is_stored_once():
    memory, turns = Memory(1000), list(range(100))
    for length in (40, 70, 100):
        session = FusedDrafter(memory=memory).session(turns[: length - 10])
        session.observe(turns[length - 10 : length])
        session.finish()
    assert memory.num_tokens == 100
    # An answer is kept with the end of its prompt.
    for answer in (500, 600, 700):
        session = FusedDrafter(memory=memory).session(turns[:40], "ann")
        session.observe([answer])
        session.finish()
    kept = [text.tolist() for text in memory.texts("ann")]
    assert kept == [[*turns[:40], 500], [*turns[24:40], 600], [*turns[24:40], 700]]


def test_min_prob_limits_nodes():
    random = np.random.default_rng(1)
    session = FusedDrafter().session(text_of(random, phrases(random, 6, 6, 30), 300))
    whole = paths(session.draft(64))
    for min_prob in (0.0, 0.05, 0.3, 1.0):
        found = paths(session.draft(64, min_prob=min_prob))
        assert all(prob >= min_prob for prob in found.values())
        # What follows nodes that are not twice as likely is not looked up; all else is there.
        assert found.keys() <= whole.keys()
        assert found.keys() >= {path for path, prob in whole.items() if prob >= 2 * min_prob}
    assert len(session.draft(64, min_prob=0.05)) > 1


ALL = {"datastore", "context", "memory", "recycled", "model_tables"}


@pytest.mark.parametrize("source", sorted(ALL))
def test_each_source_drafts_alone_and_not_when_disabled(tmp_path, source):
    store = build(tmp_path / "d", [[1, 2, 3]], vocab_size=9, separator=9)
    memory = Memory(9)
    memory.insert("", [1, 2, 4])
    tables = ModelTables([[5]] * 9, [[1.0]] * 9, range(9))
    expected = {"datastore": 3, "memory": 4, "model_tables": 5, "recycled": 6, "context": 7}
    named = {"model_tables": "bigram"}.get(source, source)
    for on in ({source}, ALL - {source}):
        is_on = source in on
        config = FusedConfig(context="context" in on, recycled="recycled" in on)
        drafter = FusedDrafter(
            store if "datastore" in on else None,
            config,
            "memory" in on and memory,
            model_tables=tables if "model_tables" in on else None,
        )
        session = drafter.session([2, 7, 2, 7, 1])
        session.observe_predictions(TokenTree([2], [-1]), [[2], [6]])
        session.observe([2])
        tree = session.draft(1 if is_on else 64)
        assert (named in {SOURCES[of] for of in tree.sources}) == is_on
        assert session.num_predictions == (8 if config.recycled else 0)
        if is_on:
            assert tree.token_ids.tolist() == [expected[source]]
            session.observe(tree.token_ids)
            assert drafter.stats() == {named: 1}


def test_tokens_outside_the_vocabulary_are_not_drafted():
    tables = ModelTables([[8, 7, 3]] * 9, [[0.5, 0.3, 0.1]] * 9, [8, 7, 6, 5, 4, 3, 2, 1, 0])
    drafter = FusedDrafter(None, None, Memory(5), model_tables=tables)
    drafted = set(drafter.session([1]).draft(30).token_ids.tolist())
    assert 3 in drafted
    assert drafted <= set(range(5))
    # And fewer by a few: a model may lack tokens of its tokenizer.
    tables = ModelTables([[7]] * 198, [[1.0]] * 198, range(198))
    drafter = FusedDrafter(memory=Memory(200), model_tables=tables)
    assert 7 in drafter.session([199, 5]).draft(8).token_ids
    assert 7 not in drafter.session([5, 199]).draft(8).token_ids
    with pytest.raises(ValueError, match="must have the vocabulary of the other sources: 201"):
        FusedDrafter(memory=Memory(201), model_tables=tables)


def test_saved_drafter_resumes(tmp_path):
    store = build(tmp_path / "d", [[1, 2, 3]], vocab_size=100, separator=100)
    path = tmp_path / "requests.bin"
    drafter = FusedDrafter.resume(path, store)
    session = drafter.session([50, 51, 52, 53, 50, 51])
    session.draft(4)
    session.observe([52])
    session.finish()
    drafter.save(path)
    resumed = FusedDrafter.resume(path, store)
    assert resumed._state.learned() == drafter._state.learned() != b""
    assert resumed.session([51]).draft(1).token_ids.tolist() == [52]
    assert len(resumed.for_request("ann").session([51]).draft(1)) == 0
    predicted = resumed.for_request("ann", [51, 60])
    assert (predicted.vocab_size, predicted.max_nodes) == (100, None)
    assert predicted.session([51]).draft(1).token_ids.tolist() == [60]


def test_failed_resume_or_save_names_a_remedy(tmp_path):
    path = tmp_path / "requests.bin"
    with pytest.raises(ValueError, match="pass `tokenizer=` or a datastore"):
        FusedDrafter.resume(path)
    with pytest.raises(ValueError, match="no memory to save"):
        FusedDrafter().save(path)
    store = build(tmp_path / "d", [[1, 2, 3]], vocab_size=100, separator=100)
    Memory(99).save(path)
    with pytest.raises(ValueError, match="of another tokenizer: its vocabulary has 99 tokens"):
        FusedDrafter.resume(path, store)
    shutil.rmtree(path)
    path.write_bytes(b"SPECDS")
    with pytest.raises(FormatError, match="begin with an empty one"):
        FusedDrafter.resume(path, store)


@pytest.mark.parametrize("recycled", [False, True])
def test_texts_equal_the_baseline_and_are_learned(recycled):
    model = tiny_model("llama")
    drafter = FusedDrafter(config=FusedConfig(recycled=recycled), memory=Memory(VOCAB_SIZE))
    lengths = []
    for _ in range(2):
        output = decodes_alike(model, drafter)
        lengths.append(output.stats.mean_acceptance_length)
    # The second request is the first one again.
    assert lengths[1] > max(lengths[0], 4)
    assert ("recycled" in drafter.stats()) <= recycled


def test_threads_share_a_drafter():
    drafter = FusedDrafter(memory=Memory(100))

    def work():
        for _ in range(5):
            session = drafter.session([1, 2, 3, 4] * 5)
            for _ in range(10):
                session.draft(16)
                session.observe([1, 2, 3, 4])
            session.finish()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert sum(drafter.stats().values()) > 500
    sessions = [drafter.session([1, 2, 3, number]) for number in range(20)]
    for depth in (16, 1):
        alone = [session.draft(16, max_depth=depth) for session in sessions]
        assert {*chain(*(tree.depths() for tree in alone))} == {*range(1, depth + 1)}
        for num_threads in (None, 1, 3):
            trees = draft_batch(sessions, 16, max_depths=[depth] * 20, num_threads=num_threads)
            assert [*map(shown, trees)] == [*map(shown, alone)]


@pytest.mark.parametrize(
    ("edit_every", "max_nodes", "least"), [(None, 64, 62), (None, 128, 117), (50, 64, 45)]
)
def test_copy_is_drafted_to_the_size_limit_and_after_an_edit(edit_every, max_nodes, least):
    text = np.random.default_rng(1).integers(10, 32_000, 4000)
    prompt = [*text.tolist(), 1]
    if edit_every:
        text[::edit_every] = 9
    session = FusedDrafter(memory=Memory(32_000)).session(prompt)
    steps = [*follow(session, transcript(prompt, text.tolist()), max_nodes)]
    assert len(text) / len(steps) > least


def test_unlikely_copy_fills_remaining_nodes():
    text = [*range(10, 100)]
    tree = FusedDrafter(memory=Memory(1000)).session([*text, 10]).draft(100)
    assert len(tree.follow(text[1:])) == len(text) - 1
    assert tree.probs.min() < 1 / 1024

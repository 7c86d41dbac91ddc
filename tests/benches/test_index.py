"""The benchmark of the index: its twin of REST's selection, its readers, and a run of all of it."""

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index import __main__ as command
from index import (
    acceptance,
    builders,
    child,
    end_to_end,
    published_rest,
    report,
)
from index.tokens import Facts, TokenCorpus, contexts, save_transcripts
from rivals.answers import differences, random_patterns, scan
from specds import RestDrafter
from specds.bench.replay.report import figures
from specds.bench.replay.trace import Trace, replay
from specds.bench.transcripts import Transcript
from specds.build import DatastoreBuilder

BENCHES = Path(__file__).parents[2] / "benches"
SEPARATOR, VOCAB_SIZE = 7, 8
FACTS = Facts("tiny", "none", VOCAB_SIZE, SEPARATOR)

tokens = st.integers(0, 3)
documents = st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=8)


def write(folder, texts):
    flat, lengths = np.array(list(itertools.chain(*texts))), np.array([len(t) for t in texts])
    return TokenCorpus.write(folder, FACTS, flat, lengths)


def build(path, texts):
    with DatastoreBuilder(path, vocab_size=VOCAB_SIZE, separator=SEPARATOR) as builder:
        for text in texts:
            builder.add_documents(text, [len(text)])
        return builder.finish()


def select(rows, choices=64):
    return published_rest.select(np.array(sorted(rows)), choices, np.random.default_rng(0))


# Which nodes REST's published program keeps.


def test_one_continuation_is_kept_whole_where_its_prefixes_fit_the_budget():
    assert len(select([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])) == 10  # 1 + 2 + ... + 10 = 55 <= 64


def test_the_longest_prefixes_are_dropped_until_their_summed_lengths_fit():
    # Prefixes of 1, 2, 3 and 4 tokens, 10 in all: without the longest 6, then 3, then 1.
    row = [1, 2, 3, 4]
    for choices, kept in ((10, 4), (9, 3), (6, 3), (5, 2), (4, 2)):
        nodes = select([row] * 5, choices)
        assert nodes == {tuple(row[:length]) for length in range(1, kept + 1)}


def test_a_budget_of_64_keeps_few_nodes_of_two_continuations():
    rows = [[1, *range(10, 19)], [2, *range(20, 29)]]
    # Both hold 55: the two of ten tokens go (90), those of nine (72), and one of eight (64).
    nodes = select(rows)
    assert len(nodes) == 8 + 7
    assert {len(path) for path in nodes} == set(range(1, 9))


def test_a_token_that_comes_again_in_a_path_is_counted_once():
    assert len(select([[1] * 10], choices=10)) == 10


def test_the_most_frequent_prefixes_are_kept():
    rows = [[1, 1]] * 3 + [[2, 2]] * 2 + [[3, 3]]
    assert select(rows, choices=4) == {(1,), (1, 1), (2,), (2, 2)}


def test_nothing_retrieved_drafts_nothing():
    empty = np.empty((0, 10), dtype=np.int64)
    assert published_rest.select(empty, 64, np.random.default_rng(0)) == set()


@given(st.lists(st.lists(tokens, min_size=3, max_size=3), min_size=1, max_size=20))
def test_prefixes_are_counted_as_a_naive_count_does(rows):
    rows = np.array(sorted(rows))
    expected = Counter(tuple(row[:n].tolist()) for row in rows for n in range(1, 4))
    found = {
        tuple(rows[row, :length].tolist()): count
        for row, length, count in zip(*published_rest.count_prefixes(rows), strict=True)
    }
    assert found == expected


def test_a_continuation_cut_by_the_end_of_the_text_is_shorter():
    rows = np.array([[1, -1, -1], [1, 2, -1], [1, 2, 3]])
    first_rows, lengths, counts = published_rest.count_prefixes(rows)
    found = dict(zip(lengths.tolist(), counts.tolist(), strict=True))
    assert found == {1: 3, 2: 2, 3: 1}
    assert len(first_rows) == 3


# What it reads of a datastore's files.


@pytest.mark.parametrize("bits", [1, 9, 16, 24, 27, 32])
def test_packed_elements_are_read_back(tmp_path, bits):
    values = np.random.default_rng(bits).integers(1 << bits, size=50)
    packed = sum(int(value) << (index * bits) for index, value in enumerate(values))
    payload = packed.to_bytes((50 * bits + 7) // 8, "little")
    (tmp_path / "section.bin").write_bytes(bytes(4096) + payload + bytes(8))
    section = published_rest.Section(tmp_path / "section.bin", bits, 50)
    assert section[np.arange(50)].tolist() == values.tolist()


def test_continuations_are_all_that_follow_the_longest_suffix_in_order(tmp_path):
    texts = [[1, 2, 3, 0], [1, 2, 0], [2, 2, 1], [1, 2, 3, 3]]
    datastore = build(tmp_path / "a.specds", texts)
    array = published_rest.SuffixArray(datastore.path)
    rows = published_rest.retrieve(array, datastore, np.array([3, 1, 2]))
    stream = [*itertools.chain(*([*text, SEPARATOR] for text in texts))]
    starts = [i + 2 for i in range(len(stream)) if stream[i : i + 2] == [1, 2]]
    padded = [*stream, *[-1] * 10]
    assert rows.tolist() == sorted(padded[start : start + 10] for start in starts)


def test_a_suffix_of_one_token_retrieves_nothing(tmp_path):
    datastore = build(tmp_path / "a.specds", [[1, 2, 3]])
    array = published_rest.SuffixArray(datastore.path)
    assert len(published_rest.retrieve(array, datastore, np.array([3, 1]))) == 0


def test_several_shards_are_refused(tmp_path):
    path = tmp_path / "a.specds"
    options = {"vocab_size": VOCAB_SIZE, "separator": SEPARATOR, "max_shard_tokens": 4}
    with DatastoreBuilder(path, **options) as builder:
        builder.add_documents([1, 2, 3, 1, 2, 3], [3, 3])
        builder.finish()
    with pytest.raises(ValueError, match="2 shards"):
        published_rest.SuffixArray(path)


# Replays.


def test_both_selections_accept_all_of_what_the_datastore_holds_once(tmp_path):
    text = [0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6]
    drafter = RestDrafter(build(tmp_path / "a.specds", [text]))
    transcript = Transcript("a", np.array(text[:2]), np.array([*text[2:], SEPARATOR]))
    for one in (drafter, published_rest.PublishedDrafter(drafter.datastore)):
        stats = replay(lambda one=one: one.session(transcript.prompt_ids), transcript, 64).stats
        counts = (stats.num_drafts, stats.num_accepted_tokens, stats.num_draft_tokens)
        assert counts == (1, 9, 9)


def test_nodes_named_by_their_paths_make_a_tree():
    tree = published_rest.tree_of({(1,), (1, 2), (1, 2, 3), (2,), (2, 2)})
    assert tree.token_ids.tolist() == [1, 2, 2, 2, 3]
    assert tree.parents.tolist() == [-1, -1, 0, 1, 2]


def test_an_absent_drafter_is_reported_as_absent(tmp_path):
    corpus = write(tmp_path / "corpus", [[1, 2, 3]])
    save_transcripts(tmp_path / "a.npz", [Transcript("a", np.array([1]), np.array([2, 3]))])
    rival = acceptance.replay_rival(corpus, tmp_path / "a.npz", tmp_path, Path(sys.executable))
    assert rival == {}
    kinds = ("published", "specds", "specds, as many nodes", "specds, fused")
    result = {**dict.fromkeys(kinds, figures(Trace())), "ratio": 1.0, "ratio, as many nodes": 1.0}
    measured = {"matched_budget": 1, "sources": {"all": result}, "draftretriever": rival}
    *found, absent = report.acceptance_figures(measured)
    assert [figure.value for figure in found] == [1.0, 1.0]
    assert absent.value is None


def test_contexts_are_of_one_length_and_end_within_answers():
    transcript = Transcript("a", np.arange(100, 140), np.arange(10))
    rows = contexts([transcript], 5)
    assert rows.shape == (5, 32)
    assert rows[0].tolist() == list(range(108, 140))
    with pytest.raises(ValueError, match="longer transcripts"):
        contexts([Transcript("a", np.arange(3), np.arange(3))], 5)


# Corpora and answers.


@given(documents, st.integers(1, 20))
def test_batches_are_whole_documents_and_lose_none(tmp_path_factory, texts, num_tokens):
    corpus = write(tmp_path_factory.mktemp("corpus"), texts)
    batches = list(corpus.batches(num_tokens))
    read = [part.tolist() for ids, n in batches for part in np.split(ids, np.cumsum(n)[:-1])]
    assert read == texts


@given(documents, st.lists(tokens, min_size=1, max_size=3))
def test_a_scan_counts_each_place(tmp_path_factory, texts, pattern):
    text = np.fromfile(write(tmp_path_factory.mktemp("corpus"), texts).stream(), dtype=np.uint16)
    windows = [text[start : start + len(pattern)] for text in texts for start in range(len(text))]
    assert scan(text, [pattern]) == [windows.count(pattern)]


def test_our_counts_are_those_of_a_scan(tmp_path):
    random = np.random.default_rng(1)
    corpus = write(tmp_path / "corpus", random.integers(SEPARATOR, size=(50, 40)).tolist())
    (tmp_path / "built").mkdir()
    text = np.fromfile(corpus.stream(), dtype=np.uint16)
    patterns = random_patterns(text, VOCAB_SIZE, SEPARATOR, 100)
    count = builders.build_specds(corpus, tmp_path / "built")
    counts = [count(pattern) for pattern in patterns]
    truth = scan(text, patterns)
    assert differences(patterns, counts, truth) == []
    assert any(truth)
    assert not all(truth)
    counts[3] += 1
    assert len(differences(patterns, counts, truth)) == 1


def test_a_salted_repetition_holds_different_copies(tmp_path):
    corpus = write(tmp_path / "corpus", [[1, 2, 3], [4]])
    large = corpus.repeated(11, tmp_path / "large")
    assert large.num_tokens == 12
    assert large.lengths.tolist() == [3, 1, 3, 1]
    assert large.tokens[:4].tolist() != large.tokens[4:].tolist()


def test_the_stream_of_rivals_ends_each_document_with_a_separator(tmp_path):
    corpus = write(tmp_path / "corpus", [[1, 2], [3]])
    assert np.fromfile(corpus.stream(), dtype=np.uint16).tolist() == [1, 2, 7, 3, 7]


# Processes and the table.


def test_a_failed_job_says_why():
    with pytest.raises(child.ChildError, match="No such file"):
        child.run("serving:private_memory", {"datastore": "none", "contexts": "none.npy"})


def test_an_interpreter_without_rivals_has_none_of_them():
    probed = child.run("builders:probe", {})
    assert tuple(probed) == builders.RIVALS
    figures = list(report.build_figures({"specds": BUILD, "absent": None}))
    assert [figure.value for figure in figures if "absent" in figure.name] == [None]


BUILD = {
    "version": "0",
    "rival": False,
    "num_bytes": 6,
    "num_tokens": 1,
    "costs": [{"wall_s": 1, "cpu_s": 2, "peak_bytes": 6, "private_bytes": 3}],
}


def test_figures_are_held_against_their_bars():
    slow = {**BUILD, "rival": True, "costs": [{**BUILD["costs"][0], "cpu_s": 40}]}
    figures = {figure.name: figure for figure in report.build_figures({"specds": BUILD, "x": slow})}
    assert figures["build, x: times our processor time"].value == 20
    assert figures["build, x: times our processor time"].met is True
    assert figures["build, specds: peak memory"].met is True
    assert figures["build, specds: disk"].met is False
    assert figures["build, specds: processor time"].met is None


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    rows = [json.dumps({"text": " ".join(WORDS[i : i + 60])}) for i in range(300)]
    path = tmp_path_factory.mktemp("bench") / "corpus.jsonl"
    path.write_text("\n".join(rows))
    return path


WORDS = [f"word{index * index % 97}" for index in range(400)]


def test_the_whole_benchmark_runs(corpus_file, tmp_path, capsys):
    answer = {"prompt": " ".join(WORDS[:20]), "completion": " ".join(WORDS[20:60])}
    (tmp_path / "answers.jsonl").write_text(json.dumps(answer))
    command.main(
        corpus=str(corpus_file),
        transcripts=[tmp_path / "answers.jsonl"],
        part=[command.Part.SERVING, command.Part.ACCEPTANCE, command.Part.DEGENERATE],
        cache=tmp_path / "cache",
        json_file=tmp_path / "result.json",
        check=True,
    )
    assert "B/token" in capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    names = {figure["name"] for figure in result["figures"]}
    assert {"build, specds: disk", "open", "draft, p99"} <= names
    assert {
        "accepted tokens, all: times REST's",
        "build of ten copies: times that of text",
    } <= names
    assert result["measured"]["wrong answers"] == {}
    assert (
        result["measured"]["acceptance"]["sources"]["answers"]["specds"]["num_accepted_tokens"] > 0
    )
    # The tokens are kept for the next run, and nothing else.
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_an_end_to_end_build_charges_its_time_to_its_stages(corpus_file, tmp_path):
    built = end_to_end.build(str(corpus_file), "demo", str(tmp_path / "built.specds"))
    assert built["stages"].keys() >= {"tokenise", "sort", "write", "sync"}
    charged = sum(stage["wall_s"] for stage in built["stages"].values())
    assert charged == pytest.approx(built["cost"].wall_s, rel=0.05, abs=0.05)
    names = {figure.name for figure in report.end_to_end_figures(built)}
    assert "specds build: tokenising, times all other stages" in names

"""The benchmark of the index: its twin of REST's selection, its readers, and a run of all of it."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index import __main__ as command
from index import builders, made_text, published_rest, scale
from index.tokens import Facts, TokenCorpus
from rivals.answers import differences, random_patterns, scan
from specds import RestDrafter
from specds.bench.replay.measure import replay
from specds.bench.transcripts import Transcript
from specds.build import DatastoreBuilder

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


def test_a_budget_of_64_keeps_few_nodes_of_two_continuations():
    rows = [[1, *range(10, 19)], [2, *range(20, 29)]]
    # Both hold 55: the two of ten tokens go (90), those of nine (72), and one of eight (64).
    nodes = select(rows)
    assert len(nodes) == 8 + 7
    assert {len(path) for path in nodes} == set(range(1, 9))


@given(st.lists(st.lists(tokens, min_size=3, max_size=3), min_size=1, max_size=20))
def test_prefixes_are_counted_as_a_naive_count_does(rows):
    rows = np.array(sorted(rows))
    expected = Counter(tuple(row[:n].tolist()) for row in rows for n in range(1, 4))
    found = {
        tuple(rows[row, :length].tolist()): count
        for row, length, count in zip(*published_rest.count_prefixes(rows), strict=True)
    }
    assert found == expected


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


# Replays.


def test_both_selections_accept_all_of_what_the_datastore_holds_once(tmp_path):
    text = [0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6]
    drafter = RestDrafter(build(tmp_path / "a.specds", [text]))
    transcript = Transcript("a", np.array(text[:2]), np.array([*text[2:], SEPARATOR]))
    for one in (drafter, published_rest.PublishedDrafter(drafter.datastore)):
        stats = replay(one.session(transcript.prompt_ids), transcript, 64).stats
        counts = (stats.num_drafts, stats.num_accepted_tokens, stats.num_draft_tokens)
        assert counts == (1, 9, 9)


# Corpora and answers.


def test_our_counts_are_those_of_a_scan(tmp_path):
    random = np.random.default_rng(1)
    corpus = write(tmp_path / "corpus", random.integers(SEPARATOR, size=(50, 40)).tolist())
    (tmp_path / "built").mkdir()
    text = np.fromfile(corpus.stream(), dtype=np.uint16)
    patterns = random_patterns(text, VOCAB_SIZE, SEPARATOR, 100)
    built = builders.build_specds(corpus, tmp_path / "built")
    counts = [built.count(pattern) for pattern in patterns]
    truth = scan(text, patterns)
    assert differences(patterns, counts, truth) == []
    assert any(truth)
    assert not all(truth)
    counts[3] += 1
    assert len(differences(patterns, counts, truth)) == 1


# Made text.


def test_made_text_is_of_the_4_grams_of_its_corpus_and_not_a_copy():
    corpus = np.random.default_rng(0).integers(4, size=1500).astype(np.uint16)
    round_text = np.concatenate([corpus, corpus[:16]]).tobytes()
    rows = made_text.MadeText(corpus).batch(0, chains=20)
    assert rows.shape == (20, made_text.LENGTH)

    def share_found(size):
        windows = np.lib.stride_tricks.sliding_window_view(rows, size, axis=1).reshape(-1, size)
        # Two bytes a token: a match at an odd byte would be none.
        return np.mean([any(at % 2 == 0 for at in _places(round_text, w)) for w in windows])

    assert share_found(4) == 1
    assert 0.05 < share_found(12) < 0.5
    again, other = made_text.MadeText(corpus).batch(0, 20), made_text.MadeText(corpus).batch(1, 20)
    assert (rows == again).all()
    assert (rows != other).any()


def _places(text, pattern):
    at = text.find(pattern.tobytes())
    while at >= 0:
        yield at
        at = text.find(pattern.tobytes(), at + 1)


def test_made_text_comes_in_batches(tmp_path, monkeypatch):
    source = write(tmp_path / "source", [[0, 1, 2, 3, 0, 2] * 5])
    monkeypatch.setattr(made_text, "CHAINS", 2)
    made = made_text.write(tmp_path / "made", source, 5 * (made_text.LENGTH + 1))
    assert made.num_tokens == 5 * (made_text.LENGTH + 1)
    text = made_text.MadeText(source.tokens)
    expected = np.concatenate([text.batch(0, 2), text.batch(1, 2), text.batch(2, 1)])
    assert (np.array(made.tokens).reshape(5, -1) == expected).all()
    # What is skipped is what a build has been given.
    skipped = [part for part, _ in made.batches(num_tokens=600, skip=2)]
    assert (np.concatenate(skipped) == expected[2:].ravel()).all()


# Processes and the table.


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
    assert "build of ten copies: times that of text" in names
    assert "accepted tokens, all: times REST's" in names
    assert result["measured"]["wrong answers"] == {}
    sources = result["measured"]["acceptance"]["sources"]
    assert sources["answers"]["specds"]["num_accepted_tokens"] > 0
    # The tokens are kept for the next run, and nothing else.
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_growth_is_measured(corpus_file, tmp_path, capsys):
    scale.main(
        corpus=str(corpus_file),
        sizes="60k,20k",
        cache=tmp_path / "cache",
        answers=1,
        json_file=tmp_path / "result.json",
    )
    assert "killed twice" in capsys.readouterr().out
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [round(row["num_tokens"], -4) for row in rows] == [20_000, 60_000]
    for row in rows:
        assert row["killed"] == row["killed"] | {"is_equal": True}
        assert row["killed"]["kept_documents"] == row["num_tokens"] // (made_text.LENGTH + 1)
        assert row["fused"]["warm"]["acceptance_length"] >= 1

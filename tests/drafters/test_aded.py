"""ADED: the matrix, the search and what is learned, against a reference written from the paper."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_aded
from datastores import build
from specds._core import aded_session
from specds.drafters import (
    SOURCES,
    AdaptiveTrigrams,
    DrafterInputs,
    Trigrams,
    make_drafter,
    maker_of,
)
from specds.papers import AdedConfig, AdedDrafter

tokens = st.integers(0, 3)
documents = st.lists(st.lists(tokens, max_size=20), min_size=1, max_size=6).filter(any)
separators = st.sampled_from([3, 4])
orders = st.integers(2, 4)
some = settings(max_examples=60)


def drafted(tree):
    return list(zip(tree.token_ids, tree.parents, tree.probs, strict=True))


@pytest.fixture(scope="module")
def datastore(folder):
    """Return words that a few others follow, one of them most often."""
    documents = np.random.default_rng(0).zipf(1.5, (20, 400)) % 30
    return build(folder / "words", documents.tolist(), vocab_size=31, separator=31)


@pytest.fixture(scope="module")
def trigrams(datastore):
    return Trigrams.build(datastore)


@settings(some, max_examples=30)
@given(
    documents=documents,
    separator=separators,
    order=orders,
    max_words=st.integers(1, 5),
    shard=st.sampled_from([25, 40, 1000]),
)
def test_matrix_follows_equation_1(folder, documents, separator, order, max_words, shard):
    built = build(folder / "d", documents, separator=separator, max_shard_tokens=shard)
    limits = {"order": order, "max_words": max_words}
    trigrams = Trigrams.build(built, **limits)
    expected = reference_aded.TrigramMatrix(documents, separator, 4, **limits)
    # Of another length or with a token that there is not, a prefix has no words.
    for prefix in [[], [1] * order, *product(range(5), repeat=order - 1)]:
        assert trigrams.words(prefix) == [tuple(word) for word in expected.words(prefix)]
    assert len(trigrams) == sum(map(len, expected.rows.values()))


SEARCHES = st.fixed_dictionaries(
    {
        "search": st.sampled_from(["mcts", "mcts", "mcts", "greedy"]),
        "searches": st.integers(1, 150),
        "depth": st.integers(1, 5),
        "candidates": st.integers(1, 30),
        "c1": st.sampled_from([0.0, 0.5, 2.414, 32.0]),
        "c2": st.sampled_from([0.5, 8.0]),
        "seed": st.integers(0, 2**64 - 1),
    }
)
LEARNING = st.fixed_dictionaries(
    {"increment": st.sampled_from([0.05, 0.5]), "max_prob": st.sampled_from([0.5, 0.9, 1.0])}
)


@some
@given(
    documents=documents,
    separator=separators,
    order=orders,
    max_words=st.integers(1, 5),
    pieces=st.lists(st.lists(tokens, max_size=6), min_size=1, max_size=4),
    search=SEARCHES,
    adaptive=st.booleans(),
    learning=LEARNING,
)
def test_drafts_match_the_paper_s_algorithms(
    folder, documents, separator, order, max_words, pieces, search, adaptive, learning
):
    built = build(folder / "d", documents, separator=separator)
    trigrams = Trigrams.build(built, order=order, max_words=max_words)
    session = aded_session(AdaptiveTrigrams(trigrams), **search, adaptive=adaptive, **learning)
    matrix = reference_aded.TrigramMatrix(documents, separator, 4, order, max_words)
    reference = reference_aded.Session(matrix, learning=learning if adaptive else None, **search)
    for piece in pieces:
        session.observe(piece)
        reference.observe(piece)
        tree = session.draft(1000)
        assert drafted(tree) == reference.draft()
        assert session.match_length == (order - 1 if len(tree) else 0)
        assert {SOURCES[source] for source in tree.sources} <= {"trigram"}
        assert drafted(session.draft(5)) == drafted(tree)[:5]


def test_requests_share_adaptation_only_if_configured(trigrams):
    new = [29, 28, 27, 26]
    for across in (False, True):
        drafter = AdedDrafter(trigrams, AdedConfig(across_requests=across))
        first = drafter.session(new)
        first.observe([29, 28])
        assert first.draft(1).token_ids.tolist() == [27]
        first.finish()
        second = drafter.session([29, 28]).draft(96)
        assert (27 in second.token_ids[second.parents == -1]) == across
    still = AdedDrafter(trigrams, AdedConfig(adaptive=False))
    one, other = (drafted(still.session([*told, 29, 28]).draft(96)) for told in (new, []))
    assert one == other


def test_error_in_progress_callback_stops_counting(datastore):
    def stop(stage, done, total):
        assert (stage, total) == ("read", datastore.num_tokens)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trigrams.build(datastore, progress=stop)


@pytest.mark.parametrize(("searches", "depth", "num_nodes"), [(1, 1, 1), (65_536, 1024, 3)])
def test_smallest_and_largest_search_work(tmp_path, searches, depth, num_nodes):
    built = build(tmp_path / "d", [[1, 2, 3, 0], [1, 2, 3], [1, 2, 0]])
    config = AdedConfig(searches=searches, depth=depth, candidates=2**60, adaptive=False)
    assert len(AdedDrafter(Trigrams.build(built), config).session([1, 2]).draft(2**60)) == num_nodes


def test_drafter_opens_paths(tmp_path, datastore, trigrams):
    stages = []
    sources = (trigrams, datastore, datastore.path, str(datastore.path))
    drafters = [AdedDrafter(of, progress=lambda *now: stages.append(now)) for of in sources]
    drafts = [drafted(drafter.session([1, 2]).draft(9)) for drafter in drafters]
    assert drafts == [drafts[0]] * 4
    assert stages[-1] == ("read", datastore.num_tokens, datastore.num_tokens)
    with pytest.raises(FileNotFoundError):
        AdedDrafter(tmp_path / "nothing")


def test_options_make_the_ablations(tmp_path, datastore, trigrams):
    made = {
        options: make_drafter(f"aded{options}", DrafterInputs(datastore))
        for options in ("", ":search=greedy", ":order=2", ":order=4+search=greedy")
    }
    assert [drafter.trigrams.order for drafter in made.values()] == [3, 3, 2, 4]
    assert [drafter.max_nodes for drafter in made.values()] == [96, 4, 96, 4]
    assert make_drafter("fused:effort=low", DrafterInputs()).config.effort == "low"
    make = maker_of("aded", DrafterInputs(datastore))
    assert make().trigrams is make().trigrams, "they are counted once"
    with pytest.raises(ValueError, match="order 2 are needed, these are of order 3"):
        AdedDrafter(trigrams, order=2)
    with pytest.raises(ValueError, match="`aded` needs a datastore: pass one with --datastore"):
        make_drafter("aded", DrafterInputs())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "unknown drafter `best`: choose from fused, rest, aded, prompt-lookup, n-grammys"),
        ("aded:depth=2", "`aded` has no option `depth`: try `aded:search=greedy` or `aded:ord"),
        ("aded:order=5", "option `order` of `aded` must be one of 3, 2, 4, got `5`"),
        ("fused:effort", "option `effort` of `fused` must be one of auto, low, normal"),
        ("rest:exact=yes", "drafter `rest` has no option `exact`: try `rest:max_match=1`"),
        ("prompt-lookup:q=1", "drafter `prompt-lookup` has no option `q` and takes none"),
    ],
)
def test_unknown_options_are_reported_with_known_ones(name, message):
    with pytest.raises(ValueError, match=message):
        make_drafter(name, DrafterInputs())

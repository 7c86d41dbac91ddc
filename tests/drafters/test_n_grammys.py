"""N-Grammys and prompt lookup draft what plain Python, written from the papers, drafts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

import reference_n_grammys as reference
import specds
from models import VOCAB_SIZE, prompt, tiny_model
from reference import paths
from specds import NGrammysDrafter, PromptLookupDrafter
from specds.drafters import DrafterInputs, ModelTables, NGrammysConfig, RestConfig, make_drafter
from specds.papers.path_rows import PathRows

STRATEGIES = ["mixed", "context", "bigram", "extended-bigram", "unigram"]
tokens = st.lists(st.integers(0, 3), max_size=12)


@st.composite
def small_tables(draw):
    """Tables of four tokens, three after each."""
    bigram = [draw(st.permutations(range(4)))[:3] for _ in range(4)]
    probs = [sorted(draw(st.tuples(*[st.floats(0, 0.5, width=32)] * 3)))[::-1] for _ in range(4)]
    return bigram, probs, draw(st.permutations(range(4)))


@given(
    small_tables(),
    st.lists(tokens, min_size=1, max_size=5),
    st.sampled_from(STRATEGIES),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 14),
)
@settings(max_examples=300, deadline=None)
def test_drafts_are_the_rows_of_the_paper(arrays, pieces, strategy, k, w, q, max_nodes):
    bigram, probs, unigram = arrays
    config = NGrammysConfig(k, w, q, strategy)
    context = [0, *pieces[0]]
    session = NGrammysDrafter(ModelTables(bigram, probs, unigram), config).session(context)
    for piece in pieces[1:]:
        session.observe(piece)
        context += piece
        rows = reference.rows(strategy, context, bigram, unigram, k, w, q)
        expected = reference.prefixes(rows)
        tree = session.draft(k * w)
        assert [*paths(tree)] == expected
        assert len(tree) <= config.max_nodes
        has_context = strategy in ("mixed", "context")
        shares = reference.context_shares(context, k, w, q) if has_context else {}
        check_probs(tree, bigram, probs, shares)
        of_bigrams = int(strategy not in ("context", "unigram"))
        assert session.match_length == (q if shares else of_bigrams)
        cut = session.draft(max_nodes)
        assert [*paths(cut)] == expected[:max_nodes]
        assert cut.probs.tolist() == tree.probs.tolist()[:max_nodes]


def check_probs(tree, bigram, probs, shares):
    """A node of the context has its share of the matches, a bigram's its parent's probability times
    the bigram's, a unigram's none."""
    sources = [specds.drafters.SOURCES[source] for source in tree.sources]
    for path, source, parent, prob in zip(
        [*paths(tree)], sources, tree.parents, tree.probs, strict=True
    ):
        assert (source == "context") == (path in shares)
        if source == "context":
            assert prob == pytest.approx(shares[path])
        elif source == "unigram":
            assert prob == 0
        elif len(path) > 1:
            by_bigram = probs[path[-2]][bigram[path[-2]].index(path[-1])]
            assert prob == pytest.approx(tree.probs[parent] * by_bigram)


@given(st.lists(tokens, min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_prompt_lookup_is_that_of_transformers(pieces, max_match, num_tokens):
    """Held against the class of the installed release; the rule is that of 5.19 to 5.24."""
    theirs = PromptLookupCandidateGenerator(
        num_output_tokens=num_tokens, max_matching_ngram_size=max_match, max_length=1000
    )
    context = [0, *pieces[0]]
    session = PromptLookupDrafter(max_match, num_tokens).session(context)
    for piece in [[], *pieces[1:]]:
        session.observe(piece)
        context += piece
        candidates, _ = theirs.get_candidates(torch.tensor([context]))
        tree = session.draft(num_tokens)
        assert tree.token_ids.tolist() == candidates[0, len(context) :].tolist()
        assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
        assert tree.probs.tolist() == [1.0] * len(tree)
        assert session.match_length == reference.longest_match(context, max_match)[0]


def test_a_strategy_that_needs_a_model_says_so():
    for strategy in set(STRATEGIES) - {"context"}:
        with pytest.raises(ValueError, match="`tables` are needed for all strategies but context"):
            NGrammysDrafter(None, NGrammysConfig(strategy=strategy))
    for name in ("n-grammys", "n-grammys:strategy=bigram"):
        with pytest.raises(ValueError, match=f"`{name}` needs the target model: give one by --m"):
            make_drafter(name, DrafterInputs())
    assert make_drafter("n-grammys:strategy=context", DrafterInputs()).config.strategy == "context"


def test_tables_give_back_their_arrays():
    arrays = ([[1, 0], [0, 1], [2, 2]], [[0.5, 0.25]] * 3, [2, 0, 1])
    tables = ModelTables(*arrays)
    found = (tables.bigram, tables.bigram_probs, tables.unigram)
    assert [array.tolist() for array in found] == list(arrays)
    assert (tables.vocab_size, tables.k) == (3, 2)
    assert repr(tables) == "ModelTables(3 tokens, 2 after each)"


def test_numbers_of_nodes_are_those_of_the_papers():
    tables = ModelTables([list(range(25))] * 25, [[0.0] * 25] * 25, range(25))
    assert NGrammysDrafter(tables).max_nodes == 100
    assert NGrammysDrafter(tables, NGrammysConfig(25, 14)).max_nodes == 350
    for strategy in ("bigram", "unigram"):
        assert NGrammysConfig(strategy=strategy).max_nodes == 10
    assert PromptLookupDrafter().max_nodes == 10
    assert RestConfig().max_nodes is None


@pytest.mark.parametrize("verification", ["model", PathRows])
def test_the_whole_of_k_rows_of_w_tokens_is_verified(monkeypatch, tmp_path, verification):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path))
    model = tiny_model("llama")
    drafter = NGrammysDrafter(model, NGrammysConfig(k=25, w=14, strategy="extended-bigram"))
    expected = model.generate(prompt(), max_new_tokens=24, do_sample=False)
    output = specds.generate(
        model, prompt(), drafter, max_new_tokens=24, do_sample=False, verification=verification
    )
    assert output.sequences.tolist() == expected.tolist()
    assert output.stats.num_draft_tokens > 64 * output.stats.num_drafts
    assert drafter.vocab_size == VOCAB_SIZE

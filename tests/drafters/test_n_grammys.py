"""N-Grammys and prompt lookup draft what plain Python, written from the papers, drafts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

import reference_n_grammys as reference
from models import decodes_alike, tiny_model
from reference import paths
from specds.drafters import SOURCES, DrafterInputs, ModelTables, make_drafter
from specds.papers import NGrammysConfig, NGrammysDrafter, PromptLookupDrafter
from specds.transformers.verify.path_rows import PathRows

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
@settings(max_examples=300)
def test_drafts_match_the_paper_s_rows(arrays, pieces, strategy, k, w, q, max_nodes):
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
        shares = {}
        if strategy in ("mixed", "context"):
            shares = reference.context_shares(context, k, w, q)
        check_probs(tree, bigram, probs, shares)
        of_bigrams = int(strategy not in ("context", "unigram"))
        assert session.match_length == (q if shares else of_bigrams)
        cut = session.draft(max_nodes)
        assert [*paths(cut)] == expected[:max_nodes]
        assert cut.probs.tolist() == tree.probs.tolist()[:max_nodes]


def check_probs(tree, bigram, probs, shares):
    """A node of the context has its share of the matches, a bigram's its parent's probability times
    the bigram's, a unigram's none."""
    nodes = zip(paths(tree), tree.sources, tree.parents, tree.probs, strict=True)
    for path, source, parent, prob in nodes:
        source = SOURCES[source]
        assert (source == "context") == (path in shares)
        if source == "context":
            assert prob == pytest.approx(shares[path])
        elif source == "unigram":
            assert prob == 0
        elif len(path) > 1:
            by_bigram = probs[path[-2]][bigram[path[-2]].index(path[-1])]
            assert prob == pytest.approx(tree.probs[parent] * by_bigram)


@given(st.lists(tokens, min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=200)
def test_prompt_lookup_matches_transformers(pieces, max_match, num_tokens):
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


def test_strategy_without_its_model_is_rejected():
    for strategy in set(STRATEGIES) - {"context"}:
        with pytest.raises(ValueError, match="`tables` are needed for all strategies but context"):
            NGrammysDrafter(None, NGrammysConfig(strategy=strategy))
    for name in ("n-grammys", "n-grammys:strategy=bigram"):
        with pytest.raises(ValueError, match=f"`{name}` needs the target model: pass it with --m"):
            make_drafter(name, DrafterInputs())
    assert make_drafter("n-grammys:strategy=context", DrafterInputs()).config.strategy == "context"


@pytest.mark.parametrize("verification", ["model", PathRows])
def test_all_k_rows_of_w_tokens_are_verified(verification):
    model = tiny_model("llama")
    drafter = NGrammysDrafter(model, NGrammysConfig(k=25, w=14, strategy="extended-bigram"))
    settings = {"max_nodes": "auto", "verification": verification}
    stats = decodes_alike(model, drafter, 24, **settings).stats
    assert stats.num_draft_tokens > 64 * stats.num_drafts

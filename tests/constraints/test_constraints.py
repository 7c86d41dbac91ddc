"""Constraints of each library against plain code that compares every token with every text."""

import json
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from llguidance import LLMatcher

from grammars import (
    EOS,
    GRAMMARS,
    SCHEMA,
    TEXTS,
    VOCABULARY,
    ForbiddenToken,
    Reference,
    allowed_tokens,
    llguidance_grammar,
)
from models import VOCAB_SIZE, random_tree
from random_grammars import compiled
from specds import FusedDrafter
from specds._core import TokenTree
from specds.constraints import ConstrainedSession, GrammarProcessor, Guide
from specds.constraints.of_function import FunctionConstraint
from specds.constraints.of_llguidance import LlguidanceConstraint, has_ends, schema_source

LIBRARIES = ["xgrammar", "llguidance"]


def constraint_of(library):
    if library == "function":
        return FunctionConstraint(lambda ids: allowed_tokens(0, ids, 2), torch.tensor([5, 6]))
    return GrammarProcessor(GRAMMARS[library]()).start(0)()


def masked(constraint, reference, library):
    """The allowed tokens. Where llguidance forces bytes, it allows the tokenizer's tokens alone."""
    mask = reference.mask()
    if library == "llguidance":
        found = constraint.mask()[:VOCAB_SIZE]
        assert found.any()
        assert not (found & ~mask).any()
        return found
    if library == "xgrammar":
        np.testing.assert_array_equal(constraint.mask()[:VOCAB_SIZE], mask)
    return mask


@pytest.mark.parametrize("library", [*LIBRARIES, "function"])
def test_constraint_on_random_walks_equals_the_reference(library):
    rng = np.random.default_rng(0)
    for _ in range(6):
        constraint, reference = constraint_of(library), Reference()
        while not reference.ended:
            mask = masked(constraint, reference, library)
            for token in rng.integers(VOCAB_SIZE, size=3).tolist():
                is_allowed = constraint.push(token)
                assert is_allowed == mask[token]
                constraint.pop(int(is_allowed))
            token = int(rng.choice(np.flatnonzero(mask)))
            assert constraint.push(token)
            reference.push(token)
        if library != "function":
            assert constraint.ended
            assert constraint.mask().all()
            assert constraint.ahead() == []
            assert constraint.push(7)
            constraint.pop(2)
            assert not constraint.ended
            assert constraint.mask()[EOS]


@pytest.mark.parametrize("library", [*LIBRARIES, "function"])
def test_paths_ahead_are_allowed_and_hold_a_forced_token(library):
    rng = np.random.default_rng(1)
    for _ in range(6):
        constraint, reference = constraint_of(library), Reference()
        while not reference.ended:
            paths = constraint.ahead()
            for path in paths:
                assert all(map(constraint.push, path))
                constraint.pop(len(path))
            allowed = np.flatnonzero(masked(constraint, reference, library))
            if len(allowed) == 1:
                assert {path[0] for path in paths} == {*allowed}
            token = int(rng.choice(allowed))
            assert constraint.push(token)
            reference.push(token)


@pytest.mark.parametrize("library", LIBRARIES)
def test_ahead_at_a_choice_has_each_choice(library):
    constraint = constraint_of(library)
    for char in '{"level": "':
        assert constraint.push(VOCABULARY.index(char.encode()))
    texts = [b"".join(VOCABULARY[token] for token in path) for path in constraint.ahead()]
    for level in (b"low", b"high", b"mid"):
        assert any(text.startswith(level) for text in texts)


A = VOCABULARY.index(b"a")


@pytest.mark.parametrize(
    ("kind", "source", "drafts"),
    [("lark", 'start: /a*/ "a"', False), ("regex", "aa|aab", True)],
)
def test_drafts_look_ahead_only_where_forced_texts_have_ends(kind, source, drafts):
    """llguidance never returns from a look at what is forced after "aa"."""
    constraint = GrammarProcessor(compiled(kind, source)).start(0)()
    assert constraint.push(A)
    assert constraint.mask()[A]
    assert constraint.forced_token() == (A if drafts else None)
    assert constraint.num_allowed([A] * 20) == (1 if drafts else 20)
    assert bool(constraint.ahead()) == drafts
    assert (constraint.text_after([A]) is not None) == drafts
    assert (constraint.mask_s < 1) == drafts  # engines compute no mask after a drafted token
    session = FusedDrafter().session([A] * 20)
    tree = ConstrainedSession(session, Guide(constraint), VOCAB_SIZE).draft(8)
    assert A in tree.token_ids


OWN_SPACES = {"type": "array", "items": {"const": 1}, "x-guidance": {"whitespace_pattern": "1*"}}


@pytest.mark.parametrize(
    ("source", "is_known"),
    [
        (LLMatcher.grammar_from_json_schema(SCHEMA), True),
        (LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"item_separator": ", "}), True),
        (LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"item_separator": "1*"}), False),
        (LLMatcher.grammar_from_json_schema(OWN_SPACES), False),
        (schema_source(OWN_SPACES), True),
        (LLMatcher.grammar_from_regex("a/b|(cd)*"), True),
        (LLMatcher.grammar_from_lark('start: "a"'), False),
        ('{"grammars": [{"lark_grammar": "start: /a*/ /a/"}]}', False),
        ('{"grammars": [{"lark_grammar": "start: /a*/\\n%ignore /a/"}]}', False),
        ('{"grammars": [{"lark_grammar": "start: /a/", "json_schema": {}}]}', False),
        ('{"grammars": []}', False),
        ('{"grammars": [5]}', False),
        ("[" * 100_000, False),
        ("", False),
    ],
)
def test_forced_text_is_known_to_end(source, is_known):
    assert has_ends(source) == is_known


@pytest.mark.parametrize(("length", "is_drafted"), [(8_000, True), (9_000, False)])
def test_a_forced_text_is_drafted_up_to_a_length(length, is_drafted):
    constraint = LlguidanceConstraint(
        llguidance_grammar(json.dumps({"const": "low" * (length // 3)}))
    )
    paths = constraint.ahead()
    assert bool(paths) == (constraint.text_after([]) is not None) == is_drafted
    assert (constraint.forced_token() is not None) == is_drafted
    quote = VOCABULARY.index(b'"')
    assert constraint.mask()[quote]
    assert constraint.allows(quote)
    if is_drafted:
        assert paths[0][0] == constraint.forced_token() == quote


def test_ahead_follows_likely_spaces_where_any_whitespace_is_allowed():
    import xgrammar

    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[EOS])
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA))
    constraint = GrammarProcessor(compiled).start(0)()
    for char in '{"level": "mid"':
        assert constraint.push(VOCABULARY.index(char.encode()))
    texts = [b"".join(VOCABULARY[token] for token in path) for path in constraint.ahead()]
    for start in (b', "ok": ', b',"ok":'):
        assert any(text.startswith(start) for text in texts)
    assert not any(b"  " in text or b" :" in text for text in texts)


@pytest.mark.parametrize("library", [*LIBRARIES, "own"])
def test_forbidden_nodes_of_random_trees_equal_those_of_each_path(library):
    rng = np.random.default_rng(2)
    start = [VOCABULARY.index(bytes([char])) for char in TEXTS[0]]
    num_allowed = 0
    for _ in range(30):
        constraint = constraint_of(library)
        Guide(constraint).follow(start[: rng.integers(len(start) + 1)])
        tree = allowed_in_part(rng, constraint)
        found = {*texts_of(tree.allowed(constraint, len(tree)))}
        for path in tree.paths():
            pushed, tokens = 0, tree.token_ids[path].tolist()
            # Drafts by llguidance end with the grammar.
            while pushed < len(path) and not (library == "llguidance" and constraint.ended):
                if not constraint.push(tokens[pushed]):
                    break
                pushed += 1
            constraint.pop(pushed)
            are_in = [(*tokens[: at + 1],) in found for at in range(len(path))]
            assert are_in == [at < pushed for at in range(len(path))]
            num_allowed += pushed
    assert num_allowed > 30


def texts_of(tree):
    for path in tree.paths():
        tokens = tree.token_ids[path].tolist()
        yield from ((*tokens[: end + 1],) for end in range(len(path)))


def allowed_in_part(rng, constraint):
    """A random tree that has a random allowed path as well."""
    tree, tokens = random_tree(rng, 12), []
    for _ in range(int(rng.integers(1, 6))):
        tokens.append(int(rng.choice(np.flatnonzero(constraint.mask()[:VOCAB_SIZE]))))
        constraint.push(tokens[-1])
    constraint.pop(len(tokens))
    number = len(tokens)
    parents = [*range(-1, number - 1), *(max(parent, -1) + number for parent in tree.parents)]
    ids = [*tokens, *tree.token_ids]
    return TokenTree(ids, parents, rng.random(len(ids)))


def test_pruned_tree_shares_the_probability_of_removed_nodes():
    tree = TokenTree([1, 2, 3, 4, 5], [-1, -1, 0, 0, 1], [0.5, 0.25, 0.25, 0.2, 0.2])
    pruned = tree.allowed(ForbiddenToken(1), 9)
    assert pruned.token_ids.tolist() == [2, 5]
    assert pruned.parents.tolist() == [-1, 0]
    np.testing.assert_allclose(pruned.probs, [0.5, 0.4], rtol=1e-6)
    assert len(tree.allowed(ForbiddenToken(9), 3)) == 3


def test_tree_of_paths_shares_their_common_beginning():
    tree = TokenTree.of_paths([[1, 2, 3], [1, 2, 4], [1, 5], [1, 9, 2]], known_tokens=9)
    assert (*tree.token_ids, *tree.parents) == (1, 2, 3, 4, 5, -1, 0, 1, 1, 0)
    np.testing.assert_allclose(tree.probs / tree.probs[0], [1, 1 / 2, 1 / 2, 1 / 2, 1 / 4])
    assert len(TokenTree.of_paths([])) == len(TokenTree.of_paths([[]])) == 0


def test_tree_of_many_long_paths_fits_a_session():
    tree = TokenTree.of_paths([[start, *range(100)] for start in range(24)])
    assert (tree.parents == -1).sum() == 24
    assert FusedDrafter().session([5]).suggest(tree)


def test_session_of_a_text_that_left_its_constraint_drafts_as_before():
    inner, guide = FusedDrafter().session([5, 6, 5, 6, 5]), Guide(constraint_of("own"))
    session = ConstrainedSession(inner, guide, VOCAB_SIZE)
    assert len(session.draft(4)) == 0
    guide.follow([6])
    session.observe([6], 0)
    assert guide.is_lost
    assert len(session.draft(4)) > 0


@pytest.mark.parametrize("library", [*LIBRARIES, "own"])
def test_processor_masks_numpy_and_torch_alike(library):
    scores = np.random.default_rng(3).normal(size=(2, VOCAB_SIZE + 3)).astype(np.float32)
    ids, rows = np.array([[5], [6]]), [GRAMMARS[library]()] * 2
    of_numpy, of_torch = GrammarProcessor(rows), GrammarProcessor(rows)
    for token in (VOCABULARY.index(b"{"), VOCABULARY.index(b'"')):
        found = of_numpy(ids, scores)
        torch_ids, torch_scores = torch.from_numpy(ids), torch.from_numpy(scores)
        np.testing.assert_array_equal(of_torch(torch_ids, torch_scores).numpy(), found)
        assert found[0, token] == scores[0, token]
        assert np.isinf(found).sum() > VOCAB_SIZE
        ids = np.concatenate([ids, [[token], [token]]], axis=1)


def test_processor_of_another_object_is_rejected():
    with pytest.raises(TypeError, match="grammar must be an xgrammar"):
        GrammarProcessor("[0-9]+")


@pytest.mark.parametrize("library", GRAMMARS)
def test_top_token_is_that_of_the_masked_scores_mostly_without_a_mask(library, monkeypatch):
    random = np.random.default_rng(7)
    fast, slow = GrammarProcessor(GRAMMARS[library]()), GrammarProcessor(GRAMMARS[library]())
    ids, num_masks, num_allowed = np.array([[1, 2]]), 0, 0
    for _ in range(40):
        scores = random.normal(size=(1, len(VOCABULARY))).astype(np.float32).round(1)
        masked = slow(ids, scores)
        if random.random() < 0.7:  # a model that follows the grammar
            scores = np.where(np.isfinite(masked), scores + 9, scores)
        wanted = int(slow(ids, scores)[0].argmax())
        num_allowed += int(scores[0].argmax()) == wanted
        constraint = fast._texts(ids)[0].constraint
        mask = constraint.mask
        with monkeypatch.context() as patch:
            counted = Mock(side_effect=mask)
            patch.setattr(constraint, "mask", counted)
            token = fast.known_token(ids, scores, partial(int, scores[0].argmax()))
            token = int(fast(ids, scores)[0].argmax()) if token is None else token
            assert token == wanted
        num_masks += counted.call_count
        ids = np.append(ids, [[wanted]], axis=1)
        if constraint.ended:
            break
    steps = ids.shape[1] - 2
    assert steps > 3
    assert num_masks <= steps - num_allowed

"""Values of a prompt where a grammar is free, and texts that do not depend on them."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList

from grammars import EOS, FREE_GRAMMARS, GRAMMARS, VOCABULARY
from models import GREEDY, SAMPLING, tiny_model
from specds import FusedDrafter, generate
from specds.constraints import ConstrainedSession, GrammarProcessor, Guide, MatcherConstraint
from specds.constraints.of_xgrammar import Cutter
from specds.constraints.values import PromptValues, TokenizerSpells, _TextPlace
from specds.generation import prompt_values
from specds.generation.sampling import ArrayEmitter, ArraySampler, Sampling

SPELLS = Cutter(VOCABULARY)
PROMPT = SPELLS.cut("Write as JSON: Ann Lee of 'Green Hill' is 42 years old.")
TEXT = '{"name": "Ann Lee", "age": 42}'


def guide_of(library, written="", prompt=PROMPT):
    constraint = GrammarProcessor(FREE_GRAMMARS[library]()).start(0)()
    guide = Guide(constraint, PromptValues(SPELLS, prompt))
    guide.follow(SPELLS.cut(written))
    assert not guide.is_lost
    return guide


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"name": "', 'Green Hill", "age": '),
        ('{"name": "Ann', " Lee of "),
        ('{"name": "Bo', '", "age": '),
        ('{"name": "Ann", "age": ', "42}"),
        ('{"name": "Ann", "age": 4', "2}"),
    ],
)
@pytest.mark.parametrize("library", FREE_GRAMMARS)
def test_values_are_drafted_with_what_follows_them(library, written, expected):
    texts = [SPELLS.decode(path) for path in guide_of(library, written).ahead()]
    assert any(text.startswith(expected.rstrip()) for text in texts), texts


def test_values_follow_what_is_forced():
    texts = [SPELLS.decode(path) for path in guide_of("xgrammar").ahead()]
    assert any(text.startswith('{"name": "Ann Lee", "age":') for text in texts)


def test_used_values_are_not_drafted_again():
    texts = [SPELLS.decode(path) for path in guide_of("xgrammar", '{"name": "').ahead()]
    assert any(text.startswith("Ann Lee") for text in texts)
    values = PromptValues(SPELLS, PROMPT)
    values.follow(SPELLS.cut('{"name": "Ann Lee", "other": "'))
    free = guide_of("xgrammar", '{"name": "').constraint
    texts = [SPELLS.decode(path) for path in values.ahead(free, ())]
    assert texts
    assert not any(text.startswith("Ann Lee") for text in texts)


@pytest.mark.parametrize("library", FREE_GRAMMARS)
def test_values_leave_the_constraint_where_it_was(library):
    rng = np.random.default_rng(0)
    for _ in range(4):
        guide = guide_of(library)
        other = GrammarProcessor(FREE_GRAMMARS[library]()).start(0)()
        for _ in range(40):
            guide.ahead()
            mask = other.mask()
            np.testing.assert_array_equal(guide.constraint.mask(), mask)
            token = int(rng.choice(np.flatnonzero(mask)))
            guide.follow([token])
            assert other.push(token)
            if other.ended:
                assert guide.ahead() == []
                break


@pytest.mark.parametrize("library", FREE_GRAMMARS)
def test_values_save_passes(library):
    passes = {}
    for has_values in (False, True):
        guide = guide_of(library)
        guide.values = guide.values if has_values else None
        session = ConstrainedSession(FusedDrafter().session(PROMPT), guide, len(VOCABULARY))
        tokens, place, passes[has_values] = [*SPELLS.cut(TEXT), EOS], 0, 0
        while place < len(tokens):
            rest = tokens[place:]
            path = session.draft(32).follow(rest)
            new = rest[: len(path) + 1]
            session.observe(new)
            guide.follow(new)
            place, passes[has_values] = place + len(new), passes[has_values] + 1
    assert passes[True] < passes[False]


@given(st.lists(st.text('ab"\\ :,1', max_size=9), max_size=4))
def test_place_of_a_text_is_that_of_its_quotes(parts):
    place = _TextPlace()
    for part in parts:
        place = place.after(part)
    rest = re.sub(r'"(?:[^"\\]|\\.)*"', "", "".join(parts))
    outside, opened, value = rest.partition('"')
    # Outside of strings a backslash is text like any other.
    if "\\" not in outside:
        assert (place.quote == '"') == bool(opened)
        assert not opened or place.value == value


def test_tokenizer_spells_values_as_after_a_line(demo_tokenizer):
    spells = TokenizerSpells(demo_tokenizer)
    for text in ("Canon", "42", '", "age": '):
        assert spells.decode(spells.cut(text)) == text


def test_object_that_encodes_no_text_has_no_values():
    assert prompt_values._spells(object()) is None


class FreeLlama:
    """A tiny model whose requests know how its tokens are spelled."""

    def __init__(self):
        self.model = tiny_model("llama")
        prompt_values._of_models[self.model] = SPELLS


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampled"])
@pytest.mark.parametrize("library", FREE_GRAMMARS)
def test_text_with_values_is_that_of_the_processor(library, mode, monkeypatch):
    model, ids = FreeLlama().model, torch.tensor([PROMPT])
    given = {"max_new_tokens": 48, "eos_token_id": EOS, "pad_token_id": EOS, **mode}
    asked = []
    ahead = PromptValues.ahead
    monkeypatch.setattr(PromptValues, "ahead", lambda *of: asked.append(0) or ahead(*of))
    for seed in range(2):
        torch.manual_seed(seed)
        processors = LogitsProcessorList([GrammarProcessor(FREE_GRAMMARS[library]())])
        wanted = model.generate(ids, logits_processor=processors, **given).tolist()
        for max_nodes in (8, 32):
            torch.manual_seed(seed)
            grammar = FREE_GRAMMARS[library]()
            output = generate(model, ids, grammar=grammar, max_nodes=max_nodes, **given)
            assert output.sequences.tolist() == wanted
    assert asked


MODES = [Sampling(), *(Sampling(do_sample=True, temperature=2.0, top_k=k) for k in (0, 3))]


def chosen(sampling, grammar, seed, *, by_mask):
    """The tokens that a sampler without torch chooses of random scores, and its masks."""
    processor, num_masks = GrammarProcessor(grammar), 0
    sampler = ArraySampler(sampling, np.random.MT19937(seed), [processor])
    if by_mask:
        sampler._grammar = None
    emitter = ArrayEmitter(np.array([[5, 6]]), 60, frozenset([EOS]))
    rng = np.random.default_rng(seed)
    mask = MatcherConstraint.mask

    def counted(constraint):
        nonlocal num_masks
        num_masks += 1
        return mask(constraint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MatcherConstraint, "mask", counted)
        while not emitter.finished:
            logits = rng.normal(scale=3, size=len(VOCABULARY)).astype(np.float32)
            emitter.emit(sampler(emitter, logits))
    return emitter.emitted, num_masks


@pytest.mark.parametrize("sampling", MODES, ids=["greedy", "sampled", "top_k"])
@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("grammars", [GRAMMARS, FREE_GRAMMARS], ids=["choices", "free"])
def test_tokens_without_masks_are_those_of_masks(grammars, library, sampling):
    few = many = 0
    for seed in range(8):
        wanted, num_masks = chosen(sampling, grammars[library](), seed, by_mask=True)
        found, num_fewer = chosen(sampling, grammars[library](), seed, by_mask=False)
        assert found == wanted
        few, many = few + num_fewer, many + num_masks
    assert few < many


def test_tokens_that_no_mask_was_asked_about_differ(monkeypatch):
    """The negative control of the test above: whatever is chosen of all tokens is emitted."""
    monkeypatch.setattr(MatcherConstraint, "allows", lambda *_: True)
    sampling, grammar = MODES[1], GRAMMARS["xgrammar"]()
    pairs = [[chosen(sampling, grammar, 1, by_mask=by)[0] for by in (True, False)]]
    assert any(one != other for one, other in pairs)

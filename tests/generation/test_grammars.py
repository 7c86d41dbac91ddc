"""Requests with a grammar: the texts of `model.generate` with the same processor."""

from functools import partial

import pytest
import torch
from transformers import LogitsProcessorList

import specds
from grammars import EOS, GRAMMARS, TEXTS, VOCABULARY, Reference, allowed_tokens, xgrammar_grammar
from models import GREEDY, SAMPLING, decodes_alike, prompt, tiny_model
from specds import FusedDrafter
from specds.constraints import GrammarProcessor
from specds.generation import generate

MODES = {"greedy": GREEDY, "sampled": SAMPLING}
LENGTH = {"max_new_tokens": 60, "eos_token_id": EOS, "pad_token_id": EOS}


def prompts(num_rows):
    return torch.cat([prompt(seed=seed) for seed in range(num_rows)])


def texts_of(sequences):
    return [b"".join(VOCABULARY[token] for token in row[21:] if token != EOS) for row in sequences]


def expected(model, ids, grammar, mode):
    torch.manual_seed(0)
    processors = LogitsProcessorList([GrammarProcessor(grammar)])
    return model.generate(ids, logits_processor=processors, **LENGTH, **mode).tolist()


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("library", GRAMMARS)
def test_text_by_a_grammar_equals_that_of_its_processor(library, mode, num_rows):
    model, ids = tiny_model("llama"), prompts(num_rows)
    grammar, drafter = GRAMMARS[library](), FusedDrafter()
    wanted = expected(model, ids, grammar, MODES[mode])
    assert {*texts_of(wanted)} <= {*TEXTS}
    for max_nodes in (0, 8, "auto"):
        torch.manual_seed(0)
        output = generate(
            model, ids, drafter, grammar=grammar, max_nodes=max_nodes, **LENGTH, **MODES[mode]
        )
        assert output.sequences.tolist() == wanted
        if max_nodes == 8 and library != "own":
            assert output.stats.num_accepted_tokens > 5 * num_rows


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_processor_of_xgrammar_is_recognized(mode, num_rows):
    from xgrammar.contrib.hf import LogitsProcessor

    model, ids = tiny_model("llama"), prompts(num_rows)

    def settings():
        made = LogitsProcessor([xgrammar_grammar()] * num_rows)
        return {"logits_processor": LogitsProcessorList([made]), **LENGTH, **MODES[mode]}

    torch.manual_seed(0)
    wanted = model.generate(ids, **settings()).tolist()
    torch.manual_seed(0)
    output = generate(model, ids, max_nodes=8, **settings())
    assert output.sequences.tolist() == wanted
    assert output.stats.num_accepted_tokens > 5 * num_rows


@pytest.mark.parametrize("num_rows", [1, 2])
def test_function_that_is_pure_guides_drafts(num_rows):
    def allowed(row, ids):
        return allowed_tokens(row, ids, 21)

    allowed.is_pure = True
    mode = {"prefix_allowed_tokens_fn": allowed, **LENGTH, **GREEDY}
    output = decodes_alike(tiny_model("llama"), FusedDrafter(), ids=prompts(num_rows), mode=mode)
    assert output.stats.num_accepted_tokens > 5 * num_rows


class CallCounter:
    """Allow other tokens at each second call."""

    def __init__(self):
        self.calls = []

    def __call__(self, row, ids):
        self.calls.append((row, ids.tolist()))
        return [5, 6] if len(self.calls) % 2 else [6, 7]


class IncrementalParser(CallCounter):
    """Read the new tokens of each call, and raise beyond the end of its texts."""

    def __init__(self):
        super().__init__()
        self.read = []

    def __call__(self, row, ids):
        self.calls.append((row, ids.tolist()))
        new = ids[21 + len(self.read) :].tolist()
        assert len(new) == (len(self.calls) > 1)
        assert EOS not in self.read
        self.read += new
        return [EOS] if len(self.read) == 30 else [5, 6, 7] if len(self.read) % 3 else [8]


class Trie(CallCounter):
    """Know no text beyond the length limit."""

    def __call__(self, row, ids):
        self.calls.append((row, ids.tolist()))
        return {21 + length: [5] for length in range(LENGTH["max_new_tokens"])}[len(ids)]


class NegativeIds(CallCounter):
    def __call__(self, row, ids):
        self.calls.append((row, ids.tolist()))
        return [-1, 5]


@pytest.mark.parametrize("max_nodes", [0, 9, "auto"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [CallCounter, IncrementalParser, Trie, NegativeIds])
def test_drafts_never_call_an_unknown_function(kind, mode, max_nodes):
    """Calls, not only texts, are those of decoding without drafts."""
    model, ids, runs = tiny_model("llama"), prompts(1), []
    for decode in (model.generate, partial(generate, model, max_nodes=max_nodes)):
        function = kind()
        torch.manual_seed(0)
        output = decode(ids, prefix_allowed_tokens_fn=function, **LENGTH, **MODES[mode])
        runs.append((getattr(output, "sequences", output).tolist(), function.calls))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("size", "message"),
    [(len(VOCABULARY) // 2, "has 48 tokens, the model 97"), (len(VOCABULARY), "allows no token")],
)
def test_grammar_of_another_tokenizer_is_rejected(size, message):
    """Otherwise all tokens are forbidden, and token 0 is the first of them."""
    import xgrammar

    vocabulary = [b"</s>", b"{", *(b"x%d" % number for number in range(size - 2))]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[0])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar('root ::= "{" "}"')
    with pytest.raises(ValueError, match=f"{message}.* tokenizer"):
        generate(tiny_model("llama"), prompts(1), grammar=compiled, **LENGTH, **GREEDY)


def test_text_without_the_grammar_differs():
    model, ids = tiny_model("llama"), prompts(1)
    free = generate(model, ids, **LENGTH, **GREEDY).sequences.tolist()
    assert texts_of(free)[0] not in TEXTS


@pytest.mark.parametrize("library", GRAMMARS)
def test_verified_drafts_have_no_forbidden_node(library):
    model, steps, reference = tiny_model("llama"), [], Reference()
    for seed in range(3):
        settings = {"grammar": GRAMMARS[library](), "max_nodes": 12, **LENGTH, **SAMPLING}
        torch.manual_seed(seed)
        drafter = FusedDrafter() if seed == 0 else drafter  # noqa: F821  (it remembers the first)
        generate(model, prompt(seed=seed), drafter, on_step=steps.append, **settings)
    num_nodes = 0
    for step in steps:
        if reference.ended:
            reference = Reference()
        for path in step.tree.paths():
            assert all(reference.push(int(step.tree.token_ids[node])) for node in path)
            reference.pop(len(path))
            num_nodes += len(path)
        for token in step.token_ids:
            assert reference.push(token)
    assert num_nodes > 20


def test_accelerated_model_takes_a_grammar_for_a_call_and_for_all():
    model, ids = tiny_model("llama"), prompts(1)
    grammar = xgrammar_grammar()
    wanted = expected(model, ids, grammar, GREEDY)
    free = model.generate(ids, **LENGTH, **GREEDY).tolist()
    with specds.accelerate(model, max_nodes=8, on_unsupported="baseline") as accelerated:
        assert model.generate(ids, grammar=grammar, **LENGTH, **GREEDY).tolist() == wanted
        assert accelerated.last_stats.num_accepted_tokens > 5
        assert model.generate(ids, **LENGTH, **GREEDY).tolist() == free
    with specds.accelerate(model, grammar=grammar, on_unsupported="baseline"):
        assert model.generate(ids, **LENGTH, **GREEDY).tolist() == wanted
        assert model.generate(ids, grammar=None, **LENGTH, **GREEDY).tolist() == free
        beams = model.generate(ids, num_beams=3, **LENGTH, **GREEDY)
    assert texts_of(beams.tolist())[0] in TEXTS


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_batch_have_grammars_of_their_own_or_none(mode):
    grammars = [xgrammar_grammar(), None, GRAMMARS["llguidance"](), Reference]
    model, ids = tiny_model("llama"), prompts(4)
    wanted = expected(model, ids, grammars, MODES[mode])
    torch.manual_seed(0)
    settings = {"grammar": grammars, "max_nodes": 8, **LENGTH, **MODES[mode]}
    output = generate(model, ids, FusedDrafter(), **settings)
    assert output.sequences.tolist() == wanted
    is_text = [text in TEXTS for text in texts_of(wanted)]
    assert is_text == [True, False, True, True]


def test_number_of_grammars_must_fit_the_rows():
    grammars = [xgrammar_grammar()] * 2
    with pytest.raises(specds.UnsupportedRequestError, match="has 2 grammars for 3 prompts"):
        generate(tiny_model("llama"), prompts(3), grammar=grammars, **LENGTH, **GREEDY)


def test_tokens_outside_the_vocabulary_of_the_drafter_are_not_suggested():
    drafter = FusedDrafter(memory=specds.Memory(VOCABULARY.index(b'"') + 1))
    model, grammar = tiny_model("llama"), xgrammar_grammar()
    wanted = expected(model, prompts(1), grammar, GREEDY)
    output = generate(model, prompts(1), drafter, grammar=grammar, **LENGTH, **GREEDY)
    assert output.sequences.tolist() == wanted

"""Requests with a grammar: the texts of `model.generate` with the same processor."""

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
def test_function_of_allowed_tokens_is_recognized(num_rows):
    mode = {"prefix_allowed_tokens_fn": lambda row, ids: allowed_tokens(row, ids, 21)}
    output = decodes_alike(
        tiny_model("llama"),
        FusedDrafter(),
        ids=prompts(num_rows),
        mode={**mode, **LENGTH, **GREEDY},
    )
    assert output.stats.num_accepted_tokens > 5 * num_rows


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

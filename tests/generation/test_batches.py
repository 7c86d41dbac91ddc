"""Several sequences in one call: each gets what it would get alone."""

from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria

from models import (
    GREEDY,
    VOCAB_SIZE,
    Drafter,
    Recorder,
    Session,
    mixed_drafter,
    oracle_drafter,
    prompt,
    random_drafter,
    tiny_model,
)
from specds.budget.policy import Budget
from specds.decoding import Decoding, Limits
from specds.generation import custom_generate, generate
from specds.verify import RUNNERS, StaticRunner

LENGTHS = (21, 5, 13, 1)
PAD = 1


def padded_prompts(lengths=LENGTHS):
    """Prompts padded on the left, and their mask."""
    width = max(lengths)
    ids = torch.full((len(lengths), width), PAD)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = prompt(length, seed=row)[0]
        mask[row, width - length :] = 1
    return ids, mask


def each_alone(model, ids, mask, **settings):
    """What plain decoding writes after each prompt by itself, and with its padding before it."""
    texts = []
    for row, shown in zip(ids, mask, strict=True):
        bare = row[shown == 1][None]
        new = model.generate(bare, **settings)[0, bare.shape[1] :].tolist()
        texts.append(row.tolist() + new)
    return texts


def knowing_drafter(texts, make=mixed_drafter):
    """Drafts for each sequence by `make` of its own true text, found by its prompt."""
    made = {}
    width = len(texts[0]) - 24
    for text, length in zip(texts, LENGTHS, strict=False):
        known = text[width - length :]
        made[tuple(known[:length])] = make(known)

    class Knowing(Drafter):
        def session(self, prompt_ids):
            self.sessions.append(made[tuple(prompt_ids)].session(prompt_ids))
            return self.sessions[-1]

    return Knowing(None)


@pytest.mark.parametrize("verification", RUNNERS)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "qwen2_mixed", "gpt2", "opt"])
def test_each_sequence_gets_what_it_gets_alone(family, verification):
    model = tiny_model(family)
    ids, mask = padded_prompts()
    settings = {"max_new_tokens": 24, "pad_token_id": PAD, **GREEDY}
    expected = each_alone(model, ids, mask, **settings)
    for make in (mixed_drafter, oracle_drafter):
        drafter = knowing_drafter(expected, make)
        output = generate(
            model,
            ids,
            drafter,
            attention_mask=mask,
            budget=9,
            verification=verification,
            **settings,
        )
        assert output.sequences.tolist() == expected
        assert [len(drafted) for drafted in output.drafted_by_row] == [24] * 4
        assert output.stats.num_emitted_tokens == 4 * 24
        assert output.stats.num_accepted_tokens == sum(map(sum, output.drafted_by_row))
        for session, text, length in zip(drafter.sessions, expected, LENGTHS, strict=True):
            assert session.finished == 1
            assert session.token_ids == text[len(text) - 24 - length :]


def test_the_batch_is_that_of_model_generate():
    model = tiny_model("llama")
    ids, _ = padded_prompts((21, 21, 21))
    free = model.generate(ids, max_new_tokens=24, **GREEDY)
    eos = int(free[1, 30])
    settings = {"max_new_tokens": 24, "eos_token_id": eos, "pad_token_id": PAD, **GREEDY}
    expected = model.generate(ids, **settings)
    assert (expected == PAD).any()
    widths = []
    forward = StaticRunner.verify_rows

    def spy(self, token_ids, trees):
        widths.append(len(token_ids))
        return forward(self, token_ids, trees)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StaticRunner, "verify_rows", spy)
        output = generate(model, ids, random_drafter(), budget=4, **settings)
    assert output.sequences.tolist() == expected.tolist()
    # A finished sequence is in no pass any more.
    ends = [int((row == PAD).sum()) for row in expected]
    assert widths[0] == 3
    assert widths[-1] == ends.count(0) < 3
    loop = custom_generate(random_drafter(), budget=4)
    by_route = model.generate(ids, custom_generate=loop, **settings)
    assert by_route.tolist() == expected.tolist()


@pytest.mark.parametrize("stop", range(4))
@pytest.mark.parametrize("family", ["qwen3", "opt"])
def test_whoever_leaves_first_the_others_go_on(family, stop):
    model = tiny_model(family)
    ids, mask = padded_prompts()
    settings = {"max_new_tokens": 24, "pad_token_id": PAD, **GREEDY}
    expected = each_alone(model, ids, mask, **settings)
    forced = [text[21 : 21 + (5 if row == stop else 24)] for row, text in enumerate(expected)]
    drafter = knowing_drafter(expected)
    output = generate(
        model, ids, drafter, attention_mask=mask, budget=6, forced_ids=forced, **settings
    )
    for row, text in enumerate(expected):
        end = 21 + len(forced[row])
        assert output.sequences[row, :end].tolist() == text[:end]
        assert set(output.sequences[row, end:].tolist()) <= {PAD}
    # Those that are not forced write by themselves, so what they see must be their own states.
    eos = expected[stop][23]
    ends = {**settings, "eos_token_id": eos}
    alone = each_alone(model, ids, mask, **ends)
    output = generate(model, ids, knowing_drafter(expected), attention_mask=mask, **ends)
    for row, text in enumerate(alone):
        assert output.sequences[row, : len(text)].tolist() == text


def test_padding_of_a_single_prompt_is_left_out():
    model = tiny_model("mistral")
    ids, mask = padded_prompts((21, 9))
    ids, mask = ids[1:], mask[1:]
    settings = {"max_new_tokens": 24, "repetition_penalty": 1.3, "pad_token_id": PAD, **GREEDY}
    expected = model.generate(ids, attention_mask=mask, **settings)
    for verification in RUNNERS:
        output = generate(
            model, ids, random_drafter(), attention_mask=mask, verification=verification, **settings
        )
        assert output.sequences.tolist() == expected.tolist()


PENALISED = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 12, "eos_token_id": list(range(0, VOCAB_SIZE, 3))},
}


@pytest.mark.parametrize("name", PENALISED)
def test_processors_see_each_sequence_as_in_a_plain_batch(name):
    model = tiny_model("llama")
    ids, mask = padded_prompts()
    settings = {"max_new_tokens": 24, "pad_token_id": PAD, **GREEDY, **PENALISED[name]}
    expected = model.generate(ids, attention_mask=mask, **settings)
    output = generate(model, ids, random_drafter(), attention_mask=mask, budget=5, **settings)
    assert output.sequences.tolist() == expected.tolist()


class Stateful(LogitsProcessor):
    """Right for a batch, where it sees all rows; wrong if rows shared it."""

    def __init__(self):
        self.before = None

    def __call__(self, input_ids, scores):
        changed = scores if self.before is None else scores - 0.5 * self.before
        self.before = scores.clone()
        return changed


class AnyRow(StoppingCriteria):
    """Ends all rows of a batch at once."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), bool((input_ids[:, -1] % 13 == 0).any()))


NOT_OF_BATCHES = {
    "prefix": ({"prefix_allowed_tokens_fn": lambda *_: [3]}, "PrefixConstrainedLogitsProcessor"),
    "encoder": ({"encoder_repetition_penalty": 1.2}, "EncoderRepetitionPenaltyLogitsProcessor"),
    "own processor": ({"logits_processor": [Stateful()]}, "Stateful cannot be used with several"),
    "own criterion": ({"stopping_criteria": [AnyRow()]}, "AnyRow cannot be used with several"),
    "cache": ({"past_key_values": DynamicCache()}, "past_key_values cannot be used: of one prompt"),
    "forced": ({"forced_ids": [[1], [2], [3]]}, "tokens for each of 2 sequences"),
    "forced_empty": ({"forced_ids": [[1], []]}, "tokens for each of 2 sequences"),
}


@pytest.mark.parametrize("name", NOT_OF_BATCHES)
def test_what_only_one_sequence_can_have_is_refused(name):
    settings, message = NOT_OF_BATCHES[name]
    ids, _ = padded_prompts((5, 5))
    with pytest.raises(ValueError, match=message):
        generate(tiny_model("llama"), ids, random_drafter(), max_new_tokens=3, **settings)


class Shift(LogitsProcessor):
    """Keeps no state and says so."""

    rowwise = True

    def __call__(self, input_ids, scores):
        return scores.roll(int(input_ids.shape[1]) % 3, dims=-1)


def test_a_processor_that_says_that_it_is_rowwise_is_called_row_by_row():
    model = tiny_model("llama")
    ids, mask = padded_prompts()
    settings = {"max_new_tokens": 24, "pad_token_id": PAD, "logits_processor": [Shift()], **GREEDY}
    expected = model.generate(ids, attention_mask=mask, **settings)
    output = generate(model, ids, random_drafter(), attention_mask=mask, budget=5, **settings)
    assert output.sequences.tolist() == expected.tolist()


def ending_batch(model):
    """Prompts, and settings by which plain decoding ends them at different steps."""
    ids, mask = padded_prompts()
    free = model.generate(ids, attention_mask=mask, max_new_tokens=24, pad_token_id=PAD, **GREEDY)
    ends = {"eos_token_id": int(free[1, 30]), "pad_token_id": PAD, "max_new_tokens": 24}
    return ids, {"attention_mask": mask, **ends, **GREEDY}


@pytest.mark.parametrize("verification", ["fast", "tree"])
def test_a_streamer_gets_what_a_plain_batch_gives_it(verification):
    model = tiny_model("llama")
    ids, settings = ending_batch(model)
    plain, ours = Recorder(), Recorder()
    expected = model.generate(ids, streamer=plain, **settings)
    assert (expected == PAD).any()
    drafter = knowing_drafter(expected.tolist())
    settings |= {"budget": 7, "verification": verification}
    output = generate(model, ids, drafter, streamer=ours, **settings)
    assert output.stats.num_accepted_tokens > 9
    assert ours.received == plain.received


def test_scores_of_a_batch_are_those_of_the_plain_one_and_zeros_behind_an_end():
    model = tiny_model("llama")
    ids, settings = ending_batch(model)
    kept = {"output_scores": True, "output_logits": True, "return_dict_in_generate": True}
    settings |= {**kept, "repetition_penalty": 1.2}
    plain = model.generate(ids, **settings)
    output = generate(model, ids, knowing_drafter(plain.sequences.tolist()), budget=7, **settings)
    assert output.sequences.tolist() == plain.sequences.tolist()
    new = plain.sequences[:, ids.shape[1] :]
    assert (new == PAD).any()
    for name in ("scores", "logits"):
        for step, pair in enumerate(zip(getattr(output, name), getattr(plain, name), strict=True)):
            for row, (ours, theirs) in enumerate(zip(*pair, strict=True)):
                if new[row, step] == PAD:
                    assert not ours.any()
                else:
                    assert torch.allclose(ours, theirs, atol=1e-3)


def test_drafted_is_of_one_sequence():
    model = tiny_model("llama")
    ids, _ = padded_prompts((5, 5))
    output = generate(model, ids, random_drafter(), max_new_tokens=3, **GREEDY)
    with pytest.raises(ValueError, match="use drafted_by_row"):
        _ = output.drafted
    assert output.past_key_values is None


def test_sessions_are_finished_when_one_of_them_fails():
    def fail(_, position, max_nodes):
        raise RuntimeError("out of ideas")

    drafter = Drafter(fail)
    ids, _ = padded_prompts((5, 5))
    with pytest.raises(RuntimeError, match="out of ideas"):
        generate(tiny_model("llama"), ids, drafter, max_new_tokens=9)
    assert [session.finished for session in drafter.sessions] == [1, 1]


def test_a_session_that_fails_to_finish_leaves_none_open(monkeypatch):
    drafter = random_drafter()
    finish = Session.finish

    def fail_at_first(session):
        finish(session)
        if session is drafter.sessions[0]:
            raise RuntimeError("no room")

    monkeypatch.setattr(Session, "finish", fail_at_first)
    ids, _ = padded_prompts((5, 5))
    with pytest.raises(RuntimeError, match="no room"):
        generate(tiny_model("llama"), ids, drafter, max_new_tokens=3)
    assert [session.finished for session in drafter.sessions] == [1, 1]


@pytest.mark.parametrize("asked", [(3,), (3, 0, 5), (0, 0, 0)])
def test_rows_are_told_what_is_predicted_of_themselves(asked):
    logits = [torch.randn(1 + 2 * row, 11) for row in range(len(asked))]
    rows = [SimpleNamespace(num_predictions=number) for number in asked]
    limits = Limits(99, vocab_size=11, known_tokens=9)
    decoding = SimpleNamespace(_limits=limits, _budget=Budget(7))
    told = Decoding._predictions(decoding, rows, logits)
    for number, of_row, predictions in zip(asked, logits, told, strict=True):
        if any(asked):
            expected = of_row[:, :9].argsort(dim=-1, descending=True)[:, :number]
            assert predictions.tolist() == expected.tolist()
        else:
            assert predictions is None
    decoding._budget = Budget(0)  # always pauses
    assert Decoding._predictions(decoding, rows, logits) == [None] * len(rows)


@pytest.mark.parametrize("family", ["gpt2", "llama4", "opt"])
def test_models_that_ask_the_cache_for_its_length_go_on_when_rows_have_left(family):
    model = tiny_model(family)
    ids, mask = padded_prompts((21, 21, 21, 21))
    settings = {"max_new_tokens": 24, "pad_token_id": PAD, "attention_mask": mask, **GREEDY}
    free = model.generate(ids, **settings)
    settings["eos_token_id"] = [int(free[row, 24 + row]) for row in range(3)]
    expected = model.generate(ids, **settings)
    output = generate(model, ids, random_drafter(), budget=4, **settings)
    assert output.sequences.tolist() == expected.tolist()

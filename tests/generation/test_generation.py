"""`generate` gives the tokens of plain `model.generate`, whatever is drafted, in fewer forwards."""

from functools import cache
from itertools import cycle, islice

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from models import (
    GREEDY,
    SAMPLING,
    VOCAB_SIZE,
    Drafter,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    random_drafter,
    random_tree,
    tiny_model,
    tree_generate,
    wrong_drafter,
)
from specds.generation import generate
from specds.verify import RUNNERS

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3", "gpt_neox", "gpt2"]
DRAFTERS = {
    "mixed": mixed_drafter,
    "oracle": oracle_drafter,
    "forked": lambda sequence: oracle_drafter(sequence, num_wrong=1),
    "wrong": wrong_drafter,
    "random": lambda _: random_drafter(),
}


@cache
def plain_text(family, dtype, seed, sampled):
    """What plain decoding writes, once for all ways to verify."""
    return plain_generate(tiny_model(family, dtype), seed, **(SAMPLING if sampled else GREEDY))


@pytest.mark.parametrize("verification", RUNNERS)
@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_plain_decoding(family, dtype, mode, verification):
    model = tiny_model(family, dtype)
    # Each case pairs the five budgets with the five drafters in another order.
    shift = FAMILIES.index(family) + 2 * (dtype == torch.float64) + (mode is SAMPLING)
    names = islice(cycle(DRAFTERS), shift, None)
    for seed, (budget, name) in enumerate(zip([0, 1, 4, 16, 64], names, strict=False)):
        expected = plain_text(family, dtype, seed, mode is SAMPLING)
        drafter = DRAFTERS[name](expected)
        kept = {"return_dict_in_generate": True, "verification": verification, **mode}
        output = tree_generate(model, drafter, seed, budget=budget, **kept)
        assert output.sequences.tolist() == [expected], (budget, name)
        check_bookkeeping(output, drafter, expected)


def check_bookkeeping(output, drafter, expected):
    stats, (session,) = output.stats, drafter.sessions
    assert session.token_ids == expected
    assert session.finished == 1
    assert len(output.drafted) == stats.num_emitted_tokens == len(expected) - 21
    assert sum(output.drafted) == stats.num_accepted_tokens
    assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens
    no_bonus = stats.num_drafts > 0 and output.drafted[-1]
    assert stats.num_emitted_tokens == 1 + stats.num_accepted_tokens + stats.num_drafts - no_bonus
    assert output.past_key_values.get_seq_length() == len(expected) - 1


def test_true_drafts_are_accepted_and_save_forwards():
    model = tiny_model("llama")
    expected = plain_generate(model, num_tokens=40, **GREEDY)
    output = tree_generate(model, oracle_drafter(expected), num_tokens=40, **GREEDY)
    # The prefill gives 1 token, two drafts of 16 give 17 each, the third the 5 that are left.
    assert output.sequences.tolist() == [expected]
    assert output.stats.num_drafts == 3
    assert output.stats.num_accepted_tokens == 16 + 16 + 4
    assert output.drafted == [False] + [True] * 16 + [False] + [True] * 16 + [False] + [
        True
    ] * 4 + [False]
    assert output.stats.mean_acceptance_length == 1 + 36 / 3
    forked = tree_generate(model, oracle_drafter(expected, num_wrong=1), num_tokens=40, **GREEDY)
    assert forked.sequences.tolist() == [expected]
    assert forked.stats.num_drafts <= 9


class AsksInOrder(LogitsProcessor):
    """A stateful processor, right only where it is called once per token in order."""

    def __init__(self):
        self.next_length = None

    def __call__(self, input_ids, scores):
        assert self.next_length in (None, input_ids.shape[1])
        self.next_length = input_ids.shape[1] + 1
        return scores.roll(self.next_length % 2, dims=-1)


SETTINGS = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "bad_words": {"bad_words_ids": [[t] for t in range(3, VOCAB_SIZE, 2)] + [[4, 6], [32, 39]]},
    "min_new_tokens": {"min_new_tokens": 20, "eos_token_id": list(range(0, VOCAB_SIZE, 3))},
    "prefix_allowed": {
        "prefix_allowed_tokens_fn": lambda _, ids: [(int(ids[-1]) * k) % 97 for k in range(2, 9)]
    },
    "stateful": {"logits_processor": lambda: LogitsProcessorList([AsksInOrder()])},
    "temperature": {"do_sample": True, "temperature": 6.0, "top_k": 0},
    "top_k": {"do_sample": True, "temperature": 5.0, "top_k": 5},
    "top_p": {"do_sample": True, "temperature": 5.0, "top_p": 0.8, "top_k": 0},
    "typical_p": {"do_sample": True, "temperature": 5.0, "typical_p": 0.7, "top_k": 0},
    "everything": {
        "do_sample": True,
        "temperature": 5.0,
        "top_p": 0.9,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 10,
        "eos_token_id": [5, 50],
    },
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_processors_see_what_they_see_in_plain_decoding(family, name):
    model = tiny_model(family)
    settings = {"do_sample": False, **SETTINGS[name]}

    def fresh():
        return {key: v() if key == "logits_processor" else v for key, v in settings.items()}

    for seed, make in enumerate([mixed_drafter, oracle_drafter]):
        expected = plain_generate(model, seed, **fresh())
        assert expected != plain_generate(model, seed, do_sample=False), "has no effect"
        output = tree_generate(model, make(expected), seed, **fresh())
        assert output.sequences.tolist() == [expected]
    assert output.stats.mean_acceptance_length > 3


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
def test_end_of_sequence_inside_a_draft_ends_the_text_there(mode):
    model = tiny_model("llama")
    free = plain_generate(model, **mode)
    for index in (21, 25, 32):
        eos = free[index]
        end = free.index(eos, 21) + 1
        drafter = oracle_drafter(free)
        kept = {"return_dict_in_generate": True, **mode}
        output = tree_generate(model, drafter, eos_token_id=eos, pad_token_id=0, **kept)
        assert output.sequences.tolist() == [free[:end]]
        assert output.sequences.tolist() == [
            plain_generate(model, eos_token_id=eos, pad_token_id=0, **mode)
        ]
        check_bookkeeping(output, drafter, free[:end])
        assert output.stats.num_drafts == (end > 22)
        assert output.drafted == [False] + [True] * (end - 22)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 5, 17])
def test_nothing_is_drafted_past_max_length(num_tokens):
    model = tiny_model("gpt2")
    limit = model.config.n_positions  # the next position would be out of the embedding's range
    start = prompt(limit - num_tokens)
    longer = [*model.generate(start, max_new_tokens=num_tokens)[0].tolist(), *range(50)]
    drafter = oracle_drafter(longer)
    output = generate(model, start, drafter, budget=16, max_length=limit, do_sample=False)
    assert output.sequences.tolist() == [longer[:limit]]
    assert output.stats.num_draft_tokens <= max(0, num_tokens - 2)
    wide = Drafter(lambda rng, *_: random_tree(rng, 16))
    output = generate(model, start, wide, budget=16, max_length=limit, do_sample=False)
    assert output.sequences.tolist() == [longer[:limit]]


ROOM = {
    "prefill in chunks": ("gemma3", {"prefill_chunk_size": 6}),
    "a cache that grows": ("mistral", {"num_tokens": 150}),
    "a limit that is never reached": ("llama", {"num_tokens": 10**9}),
}


@pytest.mark.parametrize("name", ROOM)
def test_texts_are_the_same_however_the_cache_gets_its_slots(name, monkeypatch):
    monkeypatch.setattr("specds.verify.generic._FIRST_SLOTS", 0 if "grows" in name else 1024)
    family, settings = ROOM[name]
    model = tiny_model(family)
    expected = plain_generate(model, num_tokens=150, **GREEDY)
    eos = expected[30 if "never" in name else 120]
    expected = expected[: expected.index(eos, 21) + 1]
    output = tree_generate(model, mixed_drafter(expected), eos_token_id=eos, **settings, **GREEDY)
    assert output.sequences[0].tolist() == expected[: output.sequences.shape[1]]
    assert len(expected) >= output.sequences.shape[1] > 25


@pytest.mark.parametrize("verification", RUNNERS)
@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
def test_forced_tokens_are_emitted_and_drafts_of_them_accepted(mode, verification):
    model = tiny_model("llama")
    forced = prompt(30, seed=7)[0].tolist()
    known = [*prompt()[0].tolist(), *forced]
    settings = {"budget": 9, "verification": verification, "forced_ids": forced, **mode}
    output = generate(model, prompt(), oracle_drafter(known), **settings)
    assert output.sequences.tolist() == [known]
    assert output.stats.num_drafts == 3
    assert output.past_key_values is None
    shorter = generate(model, prompt(), wrong_drafter(known), max_new_tokens=12, **settings)
    assert shorter.sequences.tolist() == [known[: 21 + 12]]
    assert shorter.stats.num_accepted_tokens == 0
    ended = generate(model, prompt(), wrong_drafter(known), max_new_tokens=99, **settings)
    assert ended.sequences.tolist() == [known]
    at_end = generate(
        model, prompt(), wrong_drafter(known), eos_token_id=forced[4], pad_token_id=0, **settings
    )
    assert at_end.sequences.tolist() == [known[: 21 + 1 + forced.index(forced[4])]]


@torch.no_grad()
def rescored_gaps(model, sequence):
    """How far each emitted token is from the best of one plain pass over the finished text."""
    logits = model(torch.tensor([sequence[:-1]]), use_cache=False).logits[0, 20:].float()
    emitted = torch.tensor(sequence[21:])
    return logits.amax(dim=-1) - logits.gather(1, emitted[:, None])[:, 0], logits


def test_bfloat16_departs_from_plain_decoding_only_at_near_ties():
    model = tiny_model("llama", torch.bfloat16)
    ours, plain, noise = [], [], 0.0
    for seed in range(8):
        torch.manual_seed(seed)
        result = model.generate(
            prompt(seed=seed),
            max_new_tokens=48,
            return_dict_in_generate=True,
            output_logits=True,
            do_sample=False,
        )
        expected = result.sequences[0].tolist()
        gaps, rescored = rescored_gaps(model, expected)
        plain.append(gaps)
        noise = max(noise, float((torch.cat(result.logits) - rescored).abs().max()))
        output = tree_generate(model, mixed_drafter(expected), seed, num_tokens=48, **GREEDY)
        ours.append(rescored_gaps(model, output.sequences[0].tolist())[0])
    ours, plain = torch.cat(ours), torch.cat(plain)
    # Two near-equal logits may each move by the rounding between passes of different shape.
    assert float(ours.max()) <= 2 * noise
    assert int((ours > 0).sum()) <= 2 * int((plain > 0).sum()) + 2

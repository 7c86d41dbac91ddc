"""`generate`: the tokens of `model.generate`, in fewer forward passes."""

from itertools import chain

import pytest
import torch

from models import (
    GREEDY,
    Drafter,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    random_tree,
    tiny_model,
    tree_generate,
)
from specds.generation import generate
from specds.transformers.verify import generic


def test_correct_drafts_are_accepted_and_save_forward_passes():
    model = tiny_model("llama")
    expected = plain_generate(model, num_tokens=40, **GREEDY)
    output = tree_generate(model, oracle_drafter(expected), num_tokens=40, **GREEDY)
    # The prefill gives 1 token, two drafts of 16 give 17 each, the third the 5 that are left.
    assert output.sequences.tolist() == [expected]
    assert output.stats.num_drafts == 3
    assert output.stats.num_accepted_tokens == 16 + 16 + 4
    drafted = [[True] * number + [False] for number in (0, 16, 16, 4)]
    assert output.drafted_by_row == [[*chain(*drafted)]]
    assert output.stats.mean_acceptance_length == 1 + 36 / 3
    forked = tree_generate(model, oracle_drafter(expected, num_wrong=1), num_tokens=40, **GREEDY)
    assert forked.sequences.tolist() == [expected]
    assert forked.stats.num_drafts <= 9


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 5, 17])
def test_drafts_end_at_max_length(num_tokens):
    model = tiny_model("gpt2")
    limit = model.config.n_positions  # the next position would be out of the embedding's range
    start = prompt(limit - num_tokens)
    longer = [*model.generate(start, max_new_tokens=num_tokens)[0].tolist(), *range(50)]
    drafter = oracle_drafter(longer)
    output = generate(model, start, drafter, max_nodes=16, max_length=limit, do_sample=False)
    assert output.sequences.tolist() == [longer[:limit]]
    assert output.stats.num_draft_tokens <= max(0, num_tokens - 2)
    wide = Drafter(lambda rng, *_: random_tree(rng, 16))
    output = generate(model, start, wide, max_nodes=16, max_length=limit, do_sample=False)
    assert output.sequences.tolist() == [longer[:limit]]


@pytest.mark.parametrize(("limit", "end"), [(150, 120), (10**9, 30)], ids=["grows", "no limit"])
def test_text_is_independent_of_the_allocation_of_slots(limit, end, monkeypatch):
    monkeypatch.setattr(generic, "_FIRST_SLOTS", 0 if limit == 150 else 1024)
    model = tiny_model("mistral")
    expected = plain_generate(model, num_tokens=150, **GREEDY)
    settings = {"num_tokens": limit, "eos_token_id": expected[end], **GREEDY}
    output = tree_generate(model, mixed_drafter(expected), **settings)
    text = expected[: expected.index(expected[end], 21) + 1]
    assert output.sequences[0].tolist() == text
    assert len(text) > 25


@torch.no_grad()
def rescored_gaps(model, sequence):
    """Return the gap of each token to the best of one pass over the text, and the logits."""
    logits = model(torch.tensor([sequence[:-1]]), use_cache=False).logits[0, 20:].float()
    emitted = torch.tensor(sequence[21:])
    return logits.amax(dim=-1) - logits.gather(1, emitted[:, None])[:, 0], logits


def test_bfloat16_differs_from_the_baseline_only_at_near_ties():
    model = tiny_model("llama", torch.bfloat16)
    exact = tiny_model("llama")
    ours, plain, noise = [], [], 0.0
    for seed in range(8):
        torch.manual_seed(seed)
        expected = plain_generate(model, seed, num_tokens=48, **GREEDY)
        gaps, rescored = rescored_gaps(model, expected)
        plain.append(gaps)
        noise = max(noise, float((rescored - rescored_gaps(exact, expected)[1]).abs().max()))
        output = tree_generate(model, mixed_drafter(expected), seed, num_tokens=48, **GREEDY)
        ours.append(rescored_gaps(model, output.sequences[0].tolist())[0])
    ours, plain = torch.cat(ours), torch.cat(plain)
    # The distance of passes of different shapes depends on the processor, and may be 0 for the
    # baseline; that of bfloat16 from float32 does not. One token a text may be a near-tie.
    assert float(ours.max()) <= noise
    assert int((ours > 0).sum()) <= 2 * int((plain > 0).sum()) + 8

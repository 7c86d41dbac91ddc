"""Outputs for callers, streamers and stopping criteria, compared with `model.generate`."""

from dataclasses import replace
from itertools import count

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
)

from models import (
    GREEDY,
    VOCAB_SIZE,
    decodes_alike,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    random_drafter,
    tiny_model,
    tree_generate,
)
from specds.generation import generate
from specds.generation.stats import GenerationStats
from specds.transformers.acceleration import accelerate


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer with one printable character for each token."""
    vocabulary = {chr(33 + token): token for token in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def test_stop_string_inside_a_draft_ends_the_text(tokenizer):
    model = tiny_model("llama")
    free = plain_generate(model, **GREEDY)
    stop = "".join(chr(33 + token) for token in free[27:29])
    expected = plain_generate(model, stop_strings=stop, tokenizer=tokenizer, **GREEDY)
    assert expected == free[:29]
    with_string = {"stop_strings": stop, "tokenizer": tokenizer, **GREEDY}
    config = GenerationConfig(stop_strings=[stop], do_sample=False)
    in_config = {"generation_config": config, "tokenizer": tokenizer}
    for settings in (with_string, in_config):
        output = tree_generate(model, oracle_drafter(free), **settings)
        assert output.sequences.tolist() == [expected]
        assert output.stats.num_drafts == 1
    with accelerate(model, oracle_drafter(free)):
        output = model.generate(prompt(), max_new_tokens=32, **with_string)
    assert output.tolist() == [expected]
    with pytest.raises(ValueError, match="stop_strings needs tokenizer"):
        tree_generate(model, random_drafter(), stop_strings=stop)
    ids = torch.cat([prompt(), prompt(seed=1)])
    # Without an end token, the baseline continues after a stop.
    batch = {"pad_token_id": 0, "eos_token_id": 1, **with_string}
    texts = decodes_alike(model, oracle_drafter(free), ids=ids, mode=batch).sequences
    assert texts.shape[1] == 21 + 32  # one ends before the other
    assert (texts[0, 29:] == 0).all()


class Writes(LogitsProcessor):
    """A processor that writes to its tokens, except the last."""

    def __call__(self, input_ids, scores):
        input_ids[:, :-1] = (input_ids[:, :-1] + 1) % VOCAB_SIZE
        return scores + input_ids[:, :1] % 5 * torch.arange(VOCAB_SIZE) / 9


def test_processor_that_writes_to_its_tokens_acts_as_in_the_baseline():
    model, settings = tiny_model("llama"), {"max_new_tokens": 12, **GREEDY}
    settings["logits_processor"] = LogitsProcessorList([Writes()])
    given, ours = prompt(), prompt()
    expected = model.generate(given, **settings)
    drafter = mixed_drafter(plain_generate(model, **GREEDY))
    output = generate(model, ours, drafter, max_nodes=8, **settings)
    assert output.sequences.tolist() == expected.tolist()
    assert ours.tolist() == given.tolist() != prompt().tolist()


def test_stats_of_requests_add_up():
    first, second = (GenerationStats(num_emitted_tokens=n, total_s=n / 2) for n in (8, 2))
    first.draft_s = 1.0
    for stats, draft in ((first, (5, 3)), (first, (0, 0)), (second, (4, 1))):
        stats.record_draft(*draft)
    total = first + second
    assert (total.num_drafts, total.num_draft_tokens, total.num_accepted_tokens) == (3, 9, 4)
    assert (total.num_emitted_tokens, total.total_s) == (10, 5.0)
    assert total.num_accepted_tokens_per_pos == [2, 1, 1]
    assert first.num_accepted_tokens_per_pos == [1, 1, 1]
    assert total.acceptance_histogram == [[1], [], [], [], [0, 1], [0, 0, 0, 1]]
    assert first.shares["draft"] == 0.25
    nothing = GenerationStats()
    assert (nothing.mean_acceptance_length, {*nothing.shares.values()}) == (1.0, {0.0})


def test_sequences_are_int64_for_all_prompt_dtypes():
    output = decodes_alike(tiny_model("llama"), ids=prompt().to(torch.int32))
    assert output.sequences.dtype == torch.int64


def test_speedup_compares_with_the_mean_step_without_drafts():
    stats = GenerationStats(num_drafts=3, num_accepted_tokens=6, prefill_s=1.0, total_s=5.0)
    stats.record_baseline_steps([])
    assert stats.speedup == 0
    assert "without drafts" not in str(stats)
    stats.record_baseline_steps([0.8, 40.0, 1.2])  # the second step loaded something
    assert stats.speedup == 0  # nothing was drafted
    stats.num_draft_tokens = 9
    assert stats.speedup == pytest.approx((1 + 9 * 1.2) / 5)
    assert str(stats).endswith("; about 2.4 times the speed without drafts")
    slow = replace(stats, baseline_s=stats.baseline_s / 4)
    assert str(slow).endswith("; about 0.7 times the speed without drafts (max_nodes=0)")
    other = GenerationStats()
    other.record_baseline_steps([2.0])
    assert (other + stats).baseline_step_s == pytest.approx((3 * 1.2 + 2.0) / 4)


@pytest.mark.parametrize("num_rows", [1, 2])
def test_baseline_step_has_the_clock_of_the_total(monkeypatch, num_rows):
    ticks = count()
    monkeypatch.setattr("specds.generation.loop.perf_counter", lambda: next(ticks))
    ids = torch.cat([prompt(seed=seed) for seed in range(num_rows)])
    settings = {"max_nodes": 4, "max_new_tokens": 16, **GREEDY}
    stats = generate(tiny_model("llama"), ids, random_drafter(), **settings).stats
    # The last token has no room for a draft: forward pass, acceptance, KV cache.
    assert stats.baseline_step_s == 3 / num_rows
    assert 0 < stats.speedup < 1

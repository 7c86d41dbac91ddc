"""`generate` gives the tokens of plain `model.generate`, whatever is drafted, in fewer forwards."""

import re
import subprocess
import sys
from functools import cache
from itertools import cycle, islice

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from models import (
    GREEDY,
    SAMPLING,
    VOCAB_SIZE,
    Drafter,
    Recorder,
    Session,
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
from reference import TokenTree
from specds.drafters import TokenTree as CoreTree
from specds.generation import custom_generate, generate
from specds.stats import GenerationStats
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


def test_wrong_drafts_cost_forwards_and_no_tokens():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    output = tree_generate(model, wrong_drafter(expected), **GREEDY)
    assert output.stats.num_drafts == 31
    assert output.stats.num_accepted_tokens == 0
    assert output.stats.mean_acceptance_length == 1.0


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


@pytest.fixture(scope="module")
def tokenizer():
    """One printable character per token."""
    vocabulary = {chr(33 + token): token for token in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def test_stop_strings_inside_a_draft(tokenizer):
    model = tiny_model("llama")
    free = plain_generate(model, **GREEDY)
    stop = "".join(chr(33 + token) for token in free[27:29])
    expected = plain_generate(model, stop_strings=stop, tokenizer=tokenizer, **GREEDY)
    assert expected == free[:29]
    with_string = {"stop_strings": stop, "tokenizer": tokenizer, **GREEDY}
    in_config = {
        "generation_config": GenerationConfig(stop_strings=[stop], do_sample=False),
        "tokenizer": tokenizer,
    }
    for settings in (with_string, in_config):
        output = tree_generate(model, oracle_drafter(free), **settings)
        assert output.sequences.tolist() == [expected]
        assert output.stats.num_drafts == 1
    # By transformers' own route the caller makes the criterion.
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, stop)])
    by_route = model.generate(
        prompt(),
        custom_generate=custom_generate(oracle_drafter(free)),
        stopping_criteria=criteria,
        max_new_tokens=32,
    )
    assert by_route.tolist() == [expected]
    with pytest.raises(ValueError, match="stop_strings needs tokenizer"):
        tree_generate(model, random_drafter(), stop_strings=stop)


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
def test_streamers_get_what_plain_decoding_gives_them(mode):
    model = tiny_model("qwen3")
    plain, ours, by_route = Recorder(), Recorder(), Recorder()
    expected = plain_generate(model, streamer=plain, **mode)
    tree_generate(model, mixed_drafter(expected), streamer=ours, **mode)
    torch.manual_seed(0)
    loop = custom_generate(
        mixed_drafter(expected), budget=16, verification="batched", streamer=by_route
    )
    model.generate(prompt(), custom_generate=loop, max_new_tokens=32, **mode)
    assert ours.received == by_route.received == plain.received


class Counts(StoppingCriteria):
    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append((input_ids.tolist(), scores and len(scores)))
        return torch.tensor([input_ids.shape[1] == 40])


@pytest.mark.parametrize("with_scores", [False, True])
def test_stopping_criteria_are_called_as_often_and_with_the_same(with_scores):
    model = tiny_model("llama")
    plain, ours = Counts(), Counts()
    kept = {"return_dict_in_generate": True, "output_scores": True} if with_scores else {}
    output = model.generate(prompt(), stopping_criteria=[plain], max_new_tokens=32, **kept)
    expected = (output.sequences if with_scores else output)[0].tolist()
    tree_generate(model, mixed_drafter(expected), stopping_criteria=[ours], **kept)
    assert len(plain.seen) == 19
    assert ours.seen == plain.seen


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
def test_custom_generate_returns_what_model_generate_does(mode):
    model = tiny_model("mistral")
    expected = plain_generate(model, **mode)
    settings = {"max_new_tokens": 32, **mode}
    loop = custom_generate(mixed_drafter(expected), budget=16)
    torch.manual_seed(0)
    assert model.generate(prompt(), custom_generate=loop, **settings).tolist() == [expected]
    kept = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    outputs = []
    for extra in ({}, {"custom_generate": loop}):
        torch.manual_seed(0)
        outputs.append(model.generate(prompt(), **settings, **kept, **extra))
    plain, ours = outputs
    assert type(ours) is type(plain)
    assert ours.sequences.tolist() == plain.sequences.tolist() == [expected]
    for name in ("scores", "logits"):
        for mine, theirs in zip(ours[name], plain[name], strict=True):
            assert mine.shape == theirs.shape
            assert torch.allclose(mine, theirs, atol=1e-4)
    assert ours.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_plain_decoding_goes_on_from_the_cache(family):
    model = tiny_model(family)
    expected = plain_generate(model, num_tokens=60, **GREEDY)
    kept = {"return_dict_in_generate": True, **GREEDY}
    output = tree_generate(model, mixed_drafter(expected), num_tokens=20, **kept)
    rest = model.generate(
        output.sequences, past_key_values=output.past_key_values, max_new_tokens=40, **GREEDY
    )
    assert rest.tolist() == [expected]
    assert tree_generate(model, random_drafter(), **GREEDY).past_key_values is None


def test_prefill_in_chunks_gives_the_same_text():
    model = tiny_model("gemma3")
    expected = plain_generate(model, **GREEDY)
    output = tree_generate(model, mixed_drafter(expected), prefill_chunk_size=6, **GREEDY)
    assert output.sequences.tolist() == [expected]


def test_a_cache_that_has_to_grow_gives_the_same_text(monkeypatch):
    monkeypatch.setattr("specds.verify.runner._FIRST_SLOTS", 0)
    model = tiny_model("mistral")
    expected = plain_generate(model, num_tokens=150, **GREEDY)
    output = tree_generate(model, mixed_drafter(expected), num_tokens=150, **GREEDY)
    assert output.sequences.tolist() == [expected]


def test_a_limit_that_is_never_reached_costs_no_memory():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    eos = expected[30]
    output = tree_generate(
        model, oracle_drafter(expected), num_tokens=10**9, eos_token_id=eos, **GREEDY
    )
    assert output.sequences.tolist() == [expected[: expected.index(eos, 21) + 1]]


def one_draft(tree):
    return Drafter(lambda *_: tree)


def test_drafts_over_the_budget_are_cut():
    model = tiny_model("llama")
    expected = plain_generate(model, num_tokens=8, **GREEDY)
    greedy_one = Drafter(lambda rng, *_: random_tree(rng, 30))
    output = tree_generate(model, greedy_one, num_tokens=8, budget=3, **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert output.stats.num_draft_tokens <= 3 * output.stats.num_drafts
    assert set(greedy_one.sessions[0].budgets) == {3}


def test_trees_of_the_core_are_those_of_the_reference():
    model = tiny_model("gemma3")
    expected = plain_generate(model, **GREEDY)
    reference, core = mixed_drafter(expected), mixed_drafter(expected)

    def grow(*args):
        tree = reference.grow(*args)
        return CoreTree(tree.token_ids, tree.parents, tree.probs)

    core.grow = grow
    outputs = [tree_generate(model, drafter, **GREEDY) for drafter in (reference, core)]
    assert [output.sequences.tolist() for output in outputs] == [[expected]] * 2
    assert outputs[0].drafted == outputs[1].drafted
    assert any(outputs[0].drafted)


def test_a_budget_of_zero_never_asks_for_a_draft():
    drafter = random_drafter()
    output = tree_generate(tiny_model("llama"), drafter, budget=0, **GREEDY)
    assert drafter.sessions[0].budgets == []
    assert output.stats.num_drafts == 31
    assert output.stats.num_draft_tokens == 0
    assert output.stats.mean_acceptance_length == 1.0


def test_tokens_that_the_model_lacks_are_an_error():
    model = tiny_model("llama")
    drafter = one_draft(TokenTree([3, VOCAB_SIZE], [-1, 0], [0.5, 0.5]))
    with pytest.raises(ValueError, match=f"drafts token {VOCAB_SIZE}, the model has {VOCAB_SIZE}"):
        tree_generate(model, drafter)
    assert drafter.sessions[0].finished == 1
    with pytest.raises(ValueError, match="use a drafter made with the model's own tokenizer"):
        tree_generate(model, Drafter(None, vocab_size=VOCAB_SIZE + 1))
    for fitting in (VOCAB_SIZE, VOCAB_SIZE - 5, None):
        drafter = random_drafter()
        drafter.vocab_size = fitting
        tree_generate(model, drafter, num_tokens=2)


def test_sessions_are_finished_when_drafting_fails():
    def fail(*_):
        raise RuntimeError("out of ideas")

    drafter = Drafter(fail)
    with pytest.raises(RuntimeError, match="out of ideas"):
        tree_generate(tiny_model("llama"), drafter)
    assert drafter.sessions[0].finished == 1


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


@pytest.mark.parametrize(
    ("forced", "message"),
    [([], "forced_ids is empty"), ([3, VOCAB_SIZE], "has token 97"), ([-1], "has token -1")],
)
def test_tokens_that_cannot_be_forced_are_an_error(forced, message):
    with pytest.raises(ValueError, match=message):
        generate(tiny_model("llama"), prompt(), random_drafter(), forced_ids=forced)


class Recycling(Session):
    """Wants the target's two likeliest tokens, and keeps them beside what is emitted."""

    num_predictions = 2

    def __init__(self, grow, prompt_ids):
        super().__init__(grow, prompt_ids)
        self.recycled = []

    def observe_predictions(self, tree, predictions):
        assert predictions.shape == (1 + len(tree), 2)
        self.recycled.append([tree, predictions])

    def observe(self, token_ids, num_verified=None):
        self.recycled[-1].append(token_ids)
        super().observe(token_ids)


@pytest.mark.parametrize("verification", ["tree", "batched"])
def test_sessions_that_ask_get_what_the_target_predicts_at_every_node(verification):
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    drafter = oracle_drafter(expected, num_wrong=1)
    sessions = []

    def session(prompt_ids):
        sessions.append(Recycling(drafter.grow, prompt_ids))
        return sessions[-1]

    drafter.session = session
    output = tree_generate(model, drafter, verification=verification, **GREEDY)
    assert output.sequences.tolist() == [expected]
    (session,) = sessions
    assert len(session.recycled) == 1 + output.stats.num_drafts
    assert len(session.recycled[0][0]) == 0
    assert max(len(tree) for tree, _, _ in session.recycled) > 4
    for tree, predictions, emitted in session.recycled:
        edges = list(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True))
        node = -1
        for token in emitted:
            assert predictions[1 + node, 0] == token
            node = edges.index((node, token)) if (node, token) in edges else None

    drafter.vocab_size = 7
    drafter.grow = lambda *_: CoreTree([], [])
    tree_generate(model, drafter, budget=1, **GREEDY)
    assert len(sessions[-1].recycled) == 32
    assert all(predictions.max() < 7 for _, predictions, _ in sessions[-1].recycled)


@pytest.mark.parametrize("budget", [-1, 1.5, True, "all", None])
def test_what_is_no_budget_is_an_error(budget):
    message = f"budget must be 'auto' or a number of nodes from 0 on, got {budget!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        tree_generate(tiny_model("llama"), random_drafter(), budget=budget)
    with pytest.raises(ValueError, match=re.escape(message)):
        custom_generate(random_drafter(), budget=budget)


def test_ways_to_verify_that_there_are_not_are_an_error():
    message = "verification must be 'auto' or 'fast' or 'tree' or 'batched', got 'twice'"
    with pytest.raises(ValueError, match=message):
        tree_generate(tiny_model("llama"), random_drafter(), verification="twice")
    with pytest.raises(ValueError, match=message):
        custom_generate(random_drafter(), verification="twice")


@pytest.mark.parametrize(
    ("own", "asked", "budget"), [(5, "auto", 5), (5, 3, 3), (None, "auto", 64)]
)
def test_a_drafter_may_name_its_own_budget(own, asked, budget):
    drafter = random_drafter()
    if own is not None:
        drafter.max_nodes = own
    tree_generate(tiny_model("llama"), drafter, num_tokens=4, budget=asked, **GREEDY)
    assert set(drafter.sessions[0].budgets) == {budget}


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


def test_stats_of_requests_add_up():
    first = GenerationStats(num_emitted_tokens=9, draft_s=1.0, forward_s=2.0, total_s=4.0)
    first.record_draft(5, 3)
    first.record_draft(0, 0)
    second = GenerationStats(num_emitted_tokens=2, total_s=1.0)
    second.record_draft(4, 1)
    total = first + second
    assert total.num_drafts == 3
    assert total.num_draft_tokens == 9
    assert total.num_accepted_tokens == 4
    assert total.num_accepted_tokens_per_pos == [2, 1, 1]
    assert total.num_emitted_tokens == 11
    assert total.total_s == 5.0
    assert first.num_accepted_tokens_per_pos == [1, 1, 1]
    assert first.mean_acceptance_length == 1 + 3 / 2
    assert first.shares["draft"] == 0.25
    assert first.shares["forward"] == 0.5
    assert GenerationStats().mean_acceptance_length == 1.0
    assert set(GenerationStats().shares.values()) == {0.0}


def test_times_cover_the_request():
    stats = tree_generate(tiny_model("llama"), random_drafter(), profile=True, **GREEDY).stats
    assert all(share > 0 for share in stats.shares.values())
    assert 0.5 < sum(stats.shares.values()) <= 1.0


def test_stats_import_no_torch():
    code = "import specds.stats, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_session_that_is_none_is_refused_before_anything_is_generated():
    drafter = random_drafter()
    drafter.session = lambda _: object()
    with pytest.raises(TypeError, match=r"must be a `specds\.drafters\.Session`, not object"):
        tree_generate(tiny_model("llama"), drafter, **GREEDY)

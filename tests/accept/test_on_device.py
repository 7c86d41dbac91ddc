"""Acceptance by tensors alone is that of the walk over the tree; the passes are the same."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from models import (
    GREEDY,
    VOCAB_SIZE,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    random_drafter,
    random_tree,
    tiny_model,
    tree_generate,
)
from specds.accept.on_device import Chooser, decisions, follow, likeliest, likeliest_on_host, report
from specds.drafters import Session
from specds.generation import generate
from specds.verify import PackedRunner, TreeCache
from specds.verify.batch_inputs import Inputs

SCORES = st.integers(-3, 40).map(float) | st.just(-np.inf)
GREEDILY = Chooser(LogitsProcessorList(), do_sample=False)


@pytest.fixture
def deciding(monkeypatch):
    """Has the fast way accept by tensors on a CPU too."""
    monkeypatch.setattr(PackedRunner, "decides", True)


def walked(token_ids, parents, choices):
    """The accepted nodes and the emitted tokens, node by node."""
    nodes, tokens, node = [], [], -1
    while True:
        tokens.append(choices[node + 1])
        children = [n for n, parent in enumerate(parents) if parent == node]
        node = next((n for n in children if token_ids[n] == tokens[-1]), None)
        if node is None:
            return nodes, tokens
        nodes.append(node)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    padding=st.integers(0, 5),
)
def test_the_path_is_that_of_the_walk(seed, sizes, padding):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, size, vocab_size=4) for size in sizes]
    width = 1 + max(sizes) + padding
    numbers = torch.empty(Inputs.size(len(trees), width), dtype=torch.int64)
    inputs = Inputs.of(numbers, len(trees), width)
    drafts = [tree if len(tree) else None for tree in trees]
    inputs.fill([0] * len(trees), drafts, [9] * len(trees), [()] * len(trees))
    choices = torch.from_numpy(rng.integers(0, 4, (len(trees), width)))
    ranks = torch.from_numpy(rng.integers(0, 4, (len(trees), width, seed % 3)))
    counts, path = follow(inputs.token_ids, inputs.depths, inputs.parents, inputs.visible, choices)
    for row, (tree, decision) in enumerate(
        zip(trees, decisions(report(counts, path, choices, ranks), width), strict=True)
    ):
        nodes, tokens = walked(tree.token_ids, tree.parents, choices[row].tolist())
        assert decision.nodes == nodes
        assert decision.tokens == tokens
        assert decision.predictions.tolist() == ranks[row].tolist()
        # What follows the path is left where it is.
        end = 1 + len(nodes)
        assert path[row, end:].tolist() == list(range(end, width))


def test_forced_tokens_stand_at_every_place_of_their_depth():
    tree = random_tree(np.random.default_rng(0), 6)
    numbers = torch.empty(Inputs.size(2, 8), dtype=torch.int64)
    inputs = Inputs.of(numbers, 2, 8)
    inputs.fill([1, 2], [tree, None], [5, 6], [(50, 51), ()])
    depths = [0, *tree.depths().tolist(), 0]
    assert inputs.forced[0].tolist() == [50 if d == 0 else 51 if d == 1 else -1 for d in depths]
    assert inputs.forced[1].tolist() == [-1] * 8
    assert inputs.lengths.tolist() == [5, 6]
    assert torch.equal(inputs.visible[1], torch.eye(8, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [1, 3, 8])  # as wide as elements are moved in, or not
def test_states_are_moved_to_where_the_path_says_and_no_others_are(head_dim, dtype):
    rng = np.random.default_rng(0)
    cache = TreeCache(num_layers=2, capacity=20, num_rows=2)
    for index in range(2):
        cache.update(*torch.randn(2, 1, 3, 5, head_dim).to(dtype), index)
    cache.advance(5)
    states = [layer.keys for layer in cache.layers] + [layer.values for layer in cache.layers]
    for slots in states:
        slots.copy_(torch.randn(slots.shape))
    before = [slots.clone() for slots in states]
    lengths, path = [5, 9], np.sort(rng.integers(0, 6, (2, 6)), axis=1)
    cache.move_rows(torch.tensor(lengths), torch.from_numpy(path))
    for slots, old in zip(states, before, strict=True):
        for row, length in enumerate(lengths):
            old[row, :, length : length + 6] = old[row][:, length + path[row]].clone()
        assert torch.equal(slots, old)


@pytest.mark.usefixtures("deciding")
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "deepseek_v3"])
def test_texts_are_those_of_plain_decoding(family):
    model = tiny_model(family)
    for seed, make in enumerate([mixed_drafter, oracle_drafter, lambda _: random_drafter()]):
        expected = plain_generate(model, seed, **GREEDY)
        drafter = make(expected)
        kept = {"return_dict_in_generate": True, "verification": "fast", **GREEDY}
        output = tree_generate(model, drafter, seed, **kept)
        assert output.sequences.tolist() == [expected]
        assert drafter.sessions[0].token_ids == expected
        assert sum(output.drafted) == output.stats.num_accepted_tokens
        assert output.past_key_values.get_seq_length() == len(expected) - 1
        rest = model.generate(
            output.sequences, past_key_values=output.past_key_values, max_new_tokens=9, **GREEDY
        )
        assert rest.tolist() == [plain_generate(model, seed, num_tokens=41, **GREEDY)]


class Predictions(Session):
    """A session that notes what the target predicts, and drafts as another does."""

    num_predictions = 5

    def __init__(self, session, note):
        self.session, self.note = session, note

    def draft(self, *arguments):
        return self.session.draft(*arguments)

    def observe(self, *arguments):
        self.session.observe(*arguments)

    def observe_predictions(self, tree, predictions):
        self.note(tree.token_ids.tolist(), np.asarray(predictions).tolist())


def predictions_of(model, decides, monkeypatch, **settings):
    """What a session is told in each step, and how many copies to the host there were by then."""
    drafter, copies, told, num_copies = random_drafter(), [], [], []

    def note(*predictions):
        told.append(predictions)
        num_copies.append(len(copies))

    make, copied = drafter.session, torch.Tensor.cpu
    drafter.session = lambda prompt_ids: Predictions(make(prompt_ids), note)
    with monkeypatch.context() as patched:
        patched.setattr(PackedRunner, "decides", decides)
        patched.setattr(torch.Tensor, "cpu", lambda tensor: copies.append(1) or copied(tensor))
        output = generate(model, prompt(), drafter, budget=7, max_new_tokens=24, **settings)
    assert len(told) == 1 + output.stats.num_drafts
    return told, np.diff(num_copies)


@pytest.mark.parametrize("settings", [GREEDY, {"do_sample": True, "top_k": 1}])
def test_predictions_come_in_the_copy_of_the_decision(monkeypatch, settings):
    model = tiny_model("qwen3")
    on_host, _ = predictions_of(model, False, monkeypatch, **settings)
    told, copies_of_steps = predictions_of(model, True, monkeypatch, **settings)
    assert told == on_host
    assert all(len(rows) == 1 + len(tokens) and len(rows[0]) == 5 for tokens, rows in told)
    assert set(copies_of_steps.tolist()) == {1}


@pytest.mark.usefixtures("deciding")
def test_forced_texts_stops_and_batches_are_decided_alike():
    model = tiny_model("qwen3")
    ids = torch.cat([prompt(seed=seed) for seed in range(3)])
    expected = model.generate(ids, max_new_tokens=24, **GREEDY).tolist()
    output = generate(model, ids, random_drafter(), budget=7, max_new_tokens=24, **GREEDY)
    assert output.sequences.tolist() == expected
    forced = [text[21:] for text in model.generate(ids, max_new_tokens=24, do_sample=True).tolist()]
    output = generate(model, ids, random_drafter(), budget=7, forced_ids=forced)
    assert output.sequences[:, 21:].tolist() == forced
    drafter = oracle_drafter([*prompt()[0].tolist(), *forced[0]])
    output = generate(model, prompt(), drafter, budget=7, forced_ids=forced[0])
    assert output.stats.num_drafts == 3
    free = plain_generate(model, **GREEDY)
    for index in (21, 25, 32):  # inside a path
        end = free.index(free[index], 21) + 1
        ends = {"eos_token_id": free[index], "pad_token_id": 0, "return_dict_in_generate": True}
        output = tree_generate(model, oracle_drafter(free), **ends, **GREEDY)
        assert output.sequences.tolist() == [free[:end]]
        assert output.past_key_values.get_seq_length() == end - 1


@pytest.mark.usefixtures("deciding")
def test_samples_have_the_targets_distribution():
    model = tiny_model("llama")
    warped = {"do_sample": True, "temperature": 2.0, "top_k": 4, "max_new_tokens": 3}
    torch.manual_seed(0)
    ids = prompt().expand(800, -1)
    # A tree that holds likely tokens, so that both accepted and bonus tokens are counted.
    likely = model.generate(prompt(), max_new_tokens=3, **GREEDY)[0].tolist()
    texts = generate(model, ids, oracle_drafter(likely), budget=3, **warped).sequences[:, 21:]
    with torch.no_grad():
        for first in texts[:, 0].unique().tolist():
            after = texts[texts[:, 0] == first, 1]
            logits = model(torch.cat([prompt(), torch.tensor([[first]])], 1)).logits[0, -1] / 2
            kept = logits.topk(4)
            counts = torch.bincount(after, minlength=VOCAB_SIZE)[kept.indices].float()
            assert int(counts.sum()) == len(after)
            expected = len(after) * kept.values.softmax(-1)
            # The 99.99th percentile of chi-square with 3 degrees of freedom.
            assert float(((counts - expected) ** 2 / expected.clamp(min=1)).sum()) < 21.1


def test_a_choice_is_one_sample_of_the_processed_distribution():
    processors = LogitsProcessorList([TemperatureLogitsWarper(2.0), TopKLogitsWarper(3)])
    choose = Chooser.of(processors, do_sample=True)
    logits = torch.tensor([0.0, 2.0, 4.0, -1.0]).repeat(20_000, 1)
    torch.manual_seed(0)
    counts = torch.bincount(choose(logits), minlength=4).float()
    expected = 20_000 * torch.tensor([0.0, 1.0, 2.0]).softmax(-1)
    assert int(counts[3]) == 0
    assert float(((counts[:3] - expected) ** 2 / expected).sum()) < 18.4
    assert GREEDILY(logits[:2]).tolist() == [2, 2]


def test_processors_that_look_at_tokens_are_left_to_the_walk():
    penalty = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.2)])
    assert Chooser.of(penalty, do_sample=True) is None
    assert Chooser.of(penalty, do_sample=False) is None
    assert Chooser.of(LogitsProcessorList(), do_sample=False).is_argmax


@pytest.mark.parametrize("most", [5, 1, 0])
def test_memory_that_runs_out_costs_nodes_and_no_text(most, monkeypatch):
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    computed = PackedRunner._pass

    def starved(self, inputs, end):
        if inputs.token_ids.shape[1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return computed(self, inputs, end)

    monkeypatch.setattr(PackedRunner, "_pass", starved)
    drafter = oracle_drafter(expected)
    ends = pytest.raises(torch.OutOfMemoryError) if most == 0 else nullcontext()
    with ends, pytest.warns(UserWarning, match="no memory for drafts of") as warned:
        tree_generate(model, drafter, self_check=False, **GREEDY)
    assert drafter.sessions[0].token_ids == expected[: None if most else 22]
    # A pass has a token more than its draft has nodes: 16 go down to 4, or to none.
    limits = [8, 4] if most == 5 else [8, 4, 2, 1, 0]
    told = [f"no memory for drafts of {b} nodes: going on with {a}" for b, a in pairs(limits)]
    assert [str(warning.message) for warning in warned] == told


def pairs(limits):
    return zip([16, *limits], limits, strict=False)


@settings(max_examples=50, deadline=None)
@given(
    scores=arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 99)), elements=SCORES),
    k=st.integers(0, 9),
    known=st.integers(1, 99),
)
def test_the_likeliest_on_the_host_are_those_of_torch(scores, k, known):
    expected = likeliest(torch.from_numpy(scores), k, known)
    found = likeliest_on_host(torch.from_numpy(scores), k, known)
    assert found.dtype == np.int64
    assert found.shape == tuple(expected.shape)
    # Of equal scores either may be told.
    rows = np.arange(len(scores))[:, None]
    assert np.array_equal(scores[rows, found], scores[rows, expected.numpy()])
    assert all(len(set(row)) == len(row) for row in found.tolist())

"""`EngineDrafter` against single sessions, over all events of the rows of a batch."""

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datastores import build
from reference_engine import ReferenceEngineDrafter, ReturnedError, sync
from specds import EngineDrafter, FusedConfig, FusedDrafter
from specds.drafters import Memory
from vllm_shapes import WHOLE

VOCAB_SIZE = 4
GARBAGE = VOCAB_SIZE + 3
tokens = st.integers(0, 2)
STEPS = ("go on", "move", "leave", "come back", "end", "begin", "roll back", "wait", "garbage")
step = st.tuples(
    st.sampled_from(STEPS), st.integers(0, 5), st.lists(tokens, min_size=1, max_size=3)
)


class FakeEngine:
    """An engine with named rows of contexts, and preempted ones."""

    def __init__(self):
        self.rows, self.preempted, self.waiting, self.garbage = [], [], set(), set()
        self.num_begun = 0

    def do(self, event, row, new):
        rows, self.waiting, self.garbage = self.rows, set(), set()
        if event == "begin" or not rows:
            rows.append((f"request {self.num_begun}", list(new)))
            self.num_begun += 1
            return
        row %= len(rows)
        name, context = rows[row]
        if event == "move":
            rows.insert(0, rows.pop(row))
        elif event == "leave":
            self.preempted.append(rows.pop(row))
        elif event == "come back" and self.preempted:
            rows.insert(row, self.preempted.pop(0))
        elif event == "end":
            rows.pop(row)
        elif event == "roll back":
            rows[row] = name, context[: max(len(context) - len(new), 1)]
        elif event == "wait":
            self.waiting.add(name)
        elif event == "garbage":
            self.garbage.add(name)
        for row, (name, context) in enumerate(rows):
            if name not in self.waiting | self.garbage and event != "roll back":
                context += new[: 1 + row % 3]

    def contexts(self):
        garbage = {name: [GARBAGE] * (name in self.garbage) for name, _ in self.rows}
        return {
            name: None if name in self.waiting else [*context, *garbage[name]]
            for name, context in self.rows
        }


def drafters(tmp_path, **config):
    """Return an engine drafter and a fused drafter with the same sources."""
    store = build(tmp_path / "d", [[0, 1, 2, 1], [2, 2, 0, 1], [1, 0]], vocab_size=VOCAB_SIZE)
    ours = EngineDrafter(datastore=store.path, min_prob=0.0, **config)
    memory = config.get("memory_scope") == "shared" and Memory(VOCAB_SIZE)
    plain = FusedDrafter(store, FusedConfig(effort="low"), memory)
    return ours, plain


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(step, min_size=1, max_size=25),
    memory_scope=st.sampled_from(["none", "shared"]),
    num_threads=st.sampled_from([1, 2]),
    shapes=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=3),
)
def test_drafts_equal_those_of_one_plain_session_per_request(
    tmp_path, steps, memory_scope, num_threads, shapes
):
    ours, plain = drafters(tmp_path, memory_scope=memory_scope, num_threads=num_threads)
    reference = ReferenceEngineDrafter(plain, VOCAB_SIZE, is_isolated=memory_scope == "none")
    engine = FakeEngine()
    for number, (event, row, new) in enumerate(steps):
        engine.do(event, row, new)
        contexts = engine.contexts()
        arrays = [context and np.array(context, np.uint32) for context in contexts.values()]
        ours.sync(arrays, [*contexts])
        try:
            reference.sync(contexts)
        except ReturnedError:
            return
        is_chain, size = shapes[number % len(shapes)]
        expected = reference.draft(size, is_chain)
        if is_chain:
            token_ids, lengths, probs = ours.draft_chains(size)
            assert token_ids.shape == probs.shape == (len(contexts), size)
        else:
            token_ids, lengths, mask = ours.draft_trees(size + 1)
            assert mask.shape == (len(contexts), size + 1, size + 1)
        for row, tree in enumerate(expected):
            drafted = [] if tree is None else tree.token_ids.tolist()
            assert lengths[row] == len(drafted)
            first = 0 if is_chain else 1
            assert token_ids[row, first : first + len(drafted)].tolist() == drafted
            if is_chain:
                assert set(token_ids[row, len(drafted) :].tolist()) <= {-1}
            elif tree is not None:
                check_mask(mask[row], token_ids[row], tree)
    assert ours.stats()["num_opened"] == reference.num_opened


def check_mask(mask, token_ids, tree):
    """Check that the tree is below the last token and padding nodes are other children of it."""
    n, drafted = len(mask), len(tree)
    assert mask[1 : drafted + 1, 1 : drafted + 1].tolist() == tree.mask().tolist()
    assert mask[:, 0].all()
    assert (mask.sum(axis=1)[drafted + 1 :] == 2).all()
    assert mask.diagonal().all()
    assert not np.triu(mask, 1).any()
    siblings = [token_ids[i] for i in range(1, n) if mask[i].sum() == 2]
    assert len(set(siblings)) == len(siblings)


@pytest.mark.parametrize("num_new", [0, 9])
def test_name_whose_text_does_not_continue_is_a_new_request(num_new):
    ours, end = EngineDrafter(vocab_size=300), [*range(100, 200)]
    sync(ours, np.array([1, *end], np.uint32))
    sync(ours, np.array([2, *end, *range(num_new)], np.uint32))
    assert (ours.stats()["num_opened"], len(ours)) == (2, 1)


def test_finished_requests_are_stored_once_and_rolled_back_ones_never(tmp_path):
    ours, plain = drafters(tmp_path, memory_scope="shared")
    text = [0, 1, 2, 1, 0, 0, 2, 2, 1]
    sync(ours, text[:4])
    sync(ours, text[:6])
    sync(ours, [*text[:4], 2])  # two tokens are rolled back
    sync(ours, [*text[:4], 2, 2])
    for _ in range(65):
        sync(ours)
    assert len(ours) == 0
    sync(ours, text)
    plain.session(text[:4]).observe(text[4:6])
    session = plain.session([*text[:4], 2])
    session.observe([2])
    session.finish()
    expected = plain.session(text).draft(6)
    assert ours.draft_trees(7)[0][0, 1 : len(expected) + 1].tolist() == expected.token_ids.tolist()


def serve(drafter, prompt, answer):
    """Generate an answer as an engine would, and return the number of steps."""
    text, end = [*prompt, answer[0]], len(prompt) + len(answer)
    for number in range(1, 100):
        sync(drafter, text)
        tokens, lengths, _ = drafter.draft_chains(8)
        if len(text) == end:
            return number
        wanted = [*prompt, *answer][len(text) :]
        pairs = zip(tokens[0, : lengths[0]].tolist(), wanted, strict=False)
        accepted = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        text = [*text, *wanted[: accepted + 1]]
    raise AssertionError("the answer never ends")


@pytest.mark.parametrize("length", [4, 8, 24])
def test_repeated_question_is_drafted_from_the_memory(length):
    drafter = EngineDrafter(memory_scope="shared", vocab_size=1000)
    prompt, answer = list(range(100, 160)), list(range(500, 500 + length))
    assert serve(drafter, prompt, answer) == length
    sync(drafter, [7, 8, 9])
    assert serve(drafter, prompt, answer) <= 1 + length // 4


def test_request_may_be_absent_for_long_repeatedly(tmp_path):
    ours, _ = drafters(tmp_path)
    text = [0, 1, 2]
    for token in (0, 1, 2):
        sync(ours, text)
        for _ in range(40):
            sync(ours)
        text = [*text, token]
    assert ours.stats()["num_opened"] == 1


@pytest.mark.parametrize(
    ("memory_scope", "tenants", "is_remembered"),
    [
        ("none", ["ann", "ann"], False),
        ("tenant", ["ann", "ann"], True),
        ("tenant", ["ann", "bob"], False),
        ("tenant", ["", ""], False),
        ("shared", ["", ""], True),
        ("shared", ["ann", "ann"], True),
        ("shared", ["ann", "bob"], False),
        ("shared", ["ann", ""], False),
        ("shared", ["", "ann"], False),
    ],
)
def test_memory_scope_selects_the_earlier_requests(memory_scope, tenants, is_remembered):
    drafter = EngineDrafter(memory_scope=memory_scope, vocab_size=40)
    first, second = tenants
    drafter.sync([list(range(30))], names=["a"], request_options=[{"tenant": first}])
    drafter.end(["a"])
    drafter.sync([[35, 3, 4]], names=["b"], request_options=[{"tenant": second}])
    assert bool(drafter.draft_chains(4)[1][0]) == is_remembered
    # The same name of another tenant is another request.
    other = EngineDrafter(memory_scope=memory_scope, vocab_size=40)
    other.sync([[0, 1]], ["a"], request_options=[{"tenant": first}])
    other.sync([[0, 1, 2]], ["a"], request_options=[{"tenant": second}])
    assert other.stats()["num_opened"] == len({first, second})


def test_invalid_options_are_refused_per_row_and_counted():
    predicted = {"predicted_output": [*range(30)]}
    given = [
        predicted,
        {"group": 0.5, "tenant": b"ann", **predicted},
        {"group": "g" * 10**6, **predicted},
        {},
        {"group": "g", "tenant": None},
        {"tenant": "n" * 1025},
        {"tenant": "\ud800"},
        {"group": "\ud800"},
        *({"predicted_output": wrong} for wrong in ([1, "2"], [-1], [1 << 32], "text")),
    ]
    drafter = EngineDrafter(vocab_size=40, memory_scope="tenant")
    names = [str(row) for row in range(len(given))]
    for _ in range(2):  # options are read when a request begins
        drafter.sync([[35, 3, 4] for _ in given], names, request_options=given)
    assert drafter.draft_chains(2)[0].tolist() == [[5, 6]] * 3 + [[-1, -1]] * 9
    stats = drafter.stats()
    assert (stats["num_refused"], stats["num_refused_options"]) == (0, 10)
    [warning] = drafter.warnings
    assert "`group` must be a string or an integer" in warning


@pytest.mark.parametrize("given", [list, np.array])
def test_predicted_output_is_cut_to_the_longest_context(given):
    drafter = EngineDrafter(vocab_size=40, max_context=8)
    options = [{"predicted_output": given(range(30))}]
    drafter.sync([[35, 3, 4]], ["a"], request_options=options)
    assert drafter.draft_chains(8)[0].tolist() == [[5, 6, 7, -1, -1, -1, -1, -1]]
    assert drafter.stats()["num_refused_options"] == 0


def test_sync_without_a_name_for_each_row_is_rejected():
    with pytest.raises(ValueError, match="`names` must have one name for each of 2 rows, not 1"):
        EngineDrafter().sync([[1], [2]], ["a"])
    drafter = EngineDrafter()
    for _ in range(3):
        drafter.sync([[1, 2], [3, 4]], ["a", "a"])  # a defect of the engine
    assert drafter.stats()["num_refused"] == 0


def test_statistics_count_accepted_tokens_by_draft_length():
    drafter, text = EngineDrafter(), [1, 2, 3] * 3
    for new in ([], [1, 2, 3], [1, 9]):
        text += new
        sync(drafter, text)
        drafter.draft_chains(2)
    stats = drafter.stats()
    assert stats["acceptance_histogram"] == [[], [], [0, 1, 1]]
    assert stats["num_accepted_by_source"] == {"context": 3}
    assert stats["draft_s"] > 0


def test_last_tokens_of_a_context_give_the_drafts_of_the_whole():
    whole, parts = EngineDrafter(), EngineDrafter()
    text = [5, 1, 2, 3, 1, 2, 3, 4, 1, 2]
    for end in range(4, 11):
        whole.sync([text[:end]], ["r"])
        start = 0 if end == 4 else end - 3
        parts.sync([text[start:end]], starts=[start], names=["r"])
        assert parts.draft_trees(6)[0].tolist() == whole.draft_trees(6)[0].tolist()
    assert {**parts.stats(), "draft_s": 0} == {**whole.stats(), "draft_s": 0}
    parts.sync([[9, 9]], starts=[50], names=["r"])  # a gap: a new request begins
    assert parts.stats()["num_opened"] == 2
    assert len(parts) == 1
    parts.end(["other", "r"])
    assert len(parts) == 0


@pytest.mark.parametrize(
    "context", [[], [-1], [1.5], "text", [[1]], [2**40], [VOCAB_SIZE], object(), [0, 1, 2, 1, 0]]
)
def test_row_with_an_invalid_or_too_long_context_gets_no_draft(tmp_path, context):
    ours, _ = drafters(tmp_path, max_context=4)
    sync(ours, [0, 1, 2], context)
    assert ours.draft_chains(4)[1].tolist()[1] == 0
    _token_ids, lengths, mask = ours.draft_trees(4)
    assert lengths[1] == 0
    assert mask[1].sum(axis=1).tolist() == [1, 2, 2, 2]
    assert ours.stats()["num_refused"] == 1
    sync(ours, [0, 1, 2, 1], [0, 1])
    assert ours.stats()["num_opened"] == 2


def test_limits_of_a_row_apply_to_it_alone(tmp_path):
    ours, plain = drafters(tmp_path)
    text = [0, 1, 2, 1, 0, 1, 2]
    sync(ours, *[text] * 4)
    tree = plain.session(text).draft(8)
    gain = float(tree.probs[2])
    shallow, likely = (plain.session(text).draft(8, *limits) for limits in ((1,), (None, gain)))
    assert len(likely) < 8
    _, lengths, mask = ours.draft_trees(
        9, max_nodes=[8, 3, 8, 8], max_depth=[9, 9, 1, 9], min_prob=[0, 0, 0, gain]
    )
    assert lengths.tolist() == [8, 3, len(shallow), len(likely)]
    assert mask[2].sum() == 9 + 8
    _chains, lengths, probs = ours.draft_chains(5, max_nodes=[5, 2, 0, 9], min_prob=[0, 0, 0, 1])
    assert lengths.tolist() == [5, 2, 0, 0]
    assert (np.diff(probs[0]) <= 0).all()


def test_probabilities_follow_the_acceptance_of_their_row_alone():
    """The acceptance of another row must not show. Costs, which would correct them, are ignored."""
    base, probs = [1, 2, 3, 1, 2, 3, 1, 2], {}
    for rows in ("wrong", "right"), ("right",):
        drafter, texts = EngineDrafter(**WHOLE), dict.fromkeys(rows, base)
        found = probs[rows] = []
        for step in range(12):
            drafter.sync([*texts.values()], rows)
            drafted, _, ours = drafter.draft_chains(3)
            found.append(dict(zip(rows, ours[:, 0].tolist(), strict=True)))
            news = {"wrong": [60 + step, *base], "right": drafted[-1].tolist()}
            texts = {name: [*text, *news[name]] for name, text in texts.items()}
    both, alone = probs.values()
    assert both[0]["wrong"] == both[0]["right"]
    assert both[-1]["wrong"] < both[0]["wrong"] / 2
    assert both[-1]["right"] > both[0]["right"]
    assert [step["right"] for step in both] == [step["right"] for step in alone]


def test_penalized_request_begins_with_lower_probabilities_and_smaller_drafts():
    text, options = [1, 2, 3, 1, 2, 3, 1, 2], [{}, {"penalized": True}]
    drafter = EngineDrafter(**WHOLE)
    drafter.sync([text, text], ["a", "b"], request_options=options)
    tokens, _, probs = drafter.draft_chains(4)
    assert tokens[0].tolist() == tokens[1].tolist()
    assert (probs[1] < probs[0]).all()
    drafter = EngineDrafter(step_cost=[[1, 1.0], [33, 5.0]])
    drafter.sync([text] * 8, [*"abcdefgh"], request_options=[*[{}] * 4, *[options[1]] * 4])
    lengths = drafter.draft_chains(8)[1]
    assert lengths[4:].sum() < lengths[:4].sum()


def test_tokens_outside_the_vocabulary_of_the_engine_are_not_drafted(tmp_path):
    store = build(tmp_path / "d", [[0, 1, 3, 0, 1, 3]])
    drafter = EngineDrafter(datastore=store.path, vocab_size=3)
    sync(drafter, [2, 0])
    assert drafter.draft_chains(3)[0].tolist() == [[1, -1, -1]]


def test_datastore_of_another_tokenizer_is_refused(tmp_path):
    store = build(tmp_path / "d", [[0, 1]], tokenizer_fingerprint="xxh3:ours")
    EngineDrafter(datastore=store.path, tokenizer="xxh3:ours")
    with pytest.raises(ValueError, match="xxh3:ours, that of the engine is xxh3:theirs"):
        EngineDrafter(datastore=store.path, tokenizer="xxh3:theirs")
    with pytest.raises(FileNotFoundError, match="none: no datastore: build one there"):
        EngineDrafter(datastore=tmp_path / "none")


def test_predictions_of_the_model_are_drafted():
    drafter = EngineDrafter()
    sync(drafter, [1, 2], [3, 4])
    assert drafter.draft_trees(3)[1].tolist() == [0, 0]
    assert drafter.num_predictions == 8
    drafter.observe_predictions([[7, 8], [9, 9], [9, 9], [5, 6], [9, 9], [9, 9]], 3)
    sync(drafter, [1, 2, 1, 2], [3, 4, 3, 4])
    first, second = drafter.draft_trees(5)[0].tolist()
    assert {7, 8} <= set(first)
    assert {5, 6} <= set(second)
    off = EngineDrafter(recycle_predictions=False)
    assert off.num_predictions == 0


@pytest.mark.parametrize(
    ("options", "step_cost", "min_prob"),
    [
        ({}, '"ignored"', "0.1"),
        ({"times_steps": True}, '"measured"', "0.0"),
        ({"times_steps": True, "step_cost": "ignored"}, '"ignored"', "0.1"),
        ({"step_cost": [(1, 2), (3, 4.5)], "min_prob": 0.25}, "[[1.0,2.0],[3.0,4.5]]", "0.25"),
    ],
)
def test_repr_shows_the_resolved_cost_of_a_step(options, step_cost, min_prob):
    shown = repr(EngineDrafter(**options))
    assert f'"step_cost":{step_cost}' in shown
    assert f'"min_prob":{min_prob},' in shown


REPEATED = [1, 2, 3] * 4


def num_drafted(drafter, name):
    drafter.sync([REPEATED], [name])
    return int(drafter.draft_chains(8)[1][0])


def test_counters_include_only_verified_tokens():
    drafter = EngineDrafter(min_prob=0.0)
    assert num_drafted(drafter, "a") == 8
    drafter.sync([[*REPEATED, 1, 2, 9]], ["a"], num_verified=[3])
    stats = drafter.stats()
    assert (stats["num_draft_tokens"], stats["num_accepted_tokens"]) == (3, 2)
    assert (stats["num_cut_tokens"], stats["num_row_steps"]) == (5, 1)
    assert stats["acceptance_histogram"][3] == [0, 0, 1, 0]
    assert int(drafter.draft_chains(8)[1][0]) > 0
    drafter.sync([[*REPEATED, 1, 2, 9, 1]], ["a"], num_verified=[100])
    assert drafter.stats()["num_cut_tokens"] == 5


def test_tokens_that_were_not_verified_lower_no_trust():
    def size(num_verified, emitted):
        """Return the size of a draft after steps that emitted these tokens."""
        drafter = EngineDrafter(step_cost=[[1, 1.0], [9, 2.0]])
        for number in range(30):
            assert num_drafted(drafter, str(number)) > 0
            drafter.sync([[*REPEATED, *emitted]], [str(number)], num_verified=num_verified)
        return num_drafted(drafter, "last")

    assert size([0], [1]) > 2 * size(None, [1, 9])

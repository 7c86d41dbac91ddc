"""`EngineDrafter` against plain sessions, over all that engines do to the rows of a batch."""

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datastores import build, until
from reference_engine import CameBackError, EngineTwin
from specds import EngineDrafter, FusedConfig, FusedDrafter
from specds.drafters import Memory

VOCAB_SIZE = 4
GARBAGE = VOCAB_SIZE + 3
tokens = st.integers(0, 2)
STEPS = ("go on", "move", "leave", "come back", "end", "begin", "take back", "wait", "garbage")
step = st.tuples(
    st.sampled_from(STEPS), st.integers(0, 5), st.lists(tokens, min_size=1, max_size=3)
)


class Engine:
    """Rows as engines have them: a list of contexts, and those that were preempted."""

    def __init__(self):
        self.rows, self.preempted, self.waiting, self.garbage = [], [], set(), set()

    def do(self, what, row, news):
        rows, self.waiting, self.garbage = self.rows, set(), set()
        if what == "begin" or not rows:
            rows.append(list(news))
            return
        row %= len(rows)
        if what == "move":
            rows.insert(0, rows.pop(row))
        elif what == "leave":
            self.preempted.append(rows.pop(row))
        elif what == "come back" and self.preempted:
            rows.insert(row, self.preempted.pop(0))
        elif what == "end":
            rows.pop(row)
        elif what == "take back":
            rows[row] = rows[row][: max(len(rows[row]) - len(news), 1)]
        elif what == "wait":
            self.waiting.add(row)
        elif what == "garbage":
            self.garbage.add(row)
        for row, context in enumerate(rows):
            if row not in self.waiting | self.garbage and what != "take back":
                context += news[: 1 + row % 3]

    def contexts(self):
        return [
            None if row in self.waiting else [*context, GARBAGE] if row in self.garbage else context
            for row, context in enumerate(self.rows)
        ]


def drafters(tmp_path, **config):
    """One for engines, and a plain one of the same sources."""
    store = build(tmp_path / "d", [[0, 1, 2, 1], [2, 2, 0, 1], [1, 0]], vocab_size=VOCAB_SIZE)
    ours = EngineDrafter(datastore=store.path, **config)
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
def test_drafts_are_those_of_a_plain_session_a_request(
    tmp_path, steps, memory_scope, num_threads, shapes
):
    ours, plain = drafters(tmp_path, memory_scope=memory_scope, num_threads=num_threads)
    twin, engine = EngineTwin(plain, VOCAB_SIZE), Engine()
    for number, (what, row, news) in enumerate(steps):
        engine.do(what, row, news)
        contexts = engine.contexts()
        ours.sync([context and np.array(context, np.uint32) for context in contexts])
        try:
            twin.sync(contexts)
        except CameBackError:
            return
        is_chain, size = shapes[number % len(shapes)]
        expected = twin.draft(size, is_chain)
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
    assert ours.stats()["num_opened"] == twin.num_opened


def check_mask(mask, token_ids, tree):
    """A tree below the last token, filled up by other children of it."""
    n, drafted = len(mask), len(tree)
    assert mask[1 : drafted + 1, 1 : drafted + 1].tolist() == tree.mask().tolist()
    assert mask[:, 0].all()
    assert (mask.sum(axis=1)[drafted + 1 :] == 2).all()
    assert mask.diagonal().all()
    assert not np.triu(mask, 1).any()
    siblings = [token_ids[i] for i in range(1, n) if mask[i].sum() == 2]
    assert len(set(siblings)) == len(siblings)


@pytest.mark.parametrize("num_new", [0, 9])
def test_another_request_of_a_template_in_the_same_row_gets_a_session_of_its_own(num_new):
    ours, end = EngineDrafter(vocab_size=300), [*range(100, 200)]
    ours.sync([np.array([1, *end], np.uint32)])
    ours.sync([np.array([2, *end, *range(num_new)], np.uint32)])
    assert ours.stats()["num_opened"] == 2


def test_what_has_ended_is_remembered_once_and_what_was_taken_back_is_not(tmp_path):
    ours, plain = drafters(tmp_path, memory_scope="shared")
    text = [0, 1, 2, 1, 0, 0, 2, 2, 1]
    ours.sync([text[:4]])
    ours.sync([text[:6]])
    ours.sync([[*text[:4], 2]])  # two tokens are taken back
    ours.sync([[*text[:4], 2, 2]])
    for _ in range(65):
        ours.sync([])
    assert len(ours) == 0
    ours.sync([text])
    plain.session(text[:4]).observe(text[4:6])
    session = plain.session([*text[:4], 2])
    session.observe([2])
    session.finish()
    expected = plain.session(text).draft(6)
    assert ours.draft_trees(7)[0][0, 1 : len(expected) + 1].tolist() == expected.token_ids.tolist()


def serve(drafter, prompt, answer):
    """Generates an answer as an engine would; says in how many steps."""
    text, end = [*prompt, answer[0]], len(prompt) + len(answer)
    for number in range(1, 100):
        drafter.sync([text])
        tokens, lengths, _ = drafter.draft_chains(8)
        if len(text) == end:
            return number
        wanted = [*prompt, *answer][len(text) :]
        pairs = zip(tokens[0, : lengths[0]].tolist(), wanted, strict=False)
        accepted = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        text = [*text, *wanted[: accepted + 1]]
    raise AssertionError("it never ends")


@pytest.mark.parametrize("length", [4, 8, 24])
def test_a_short_answer_is_known_when_it_is_asked_for_again(length):
    drafter = EngineDrafter(memory_scope="shared", vocab_size=1000)
    prompt, answer = list(range(100, 160)), list(range(500, 500 + length))
    assert serve(drafter, prompt, answer) == length
    drafter.sync([[7, 8, 9]])
    assert serve(drafter, prompt, answer) <= 1 + length // 4


def remembered(path):
    return [text.tolist() for text in Memory.open(path, 1000).texts("")]


def shares(path, **config):
    config = {"memory_scope": "shared", "snapshot": str(path), "sync_interval": 3600, **config}
    return EngineDrafter(**config, vocab_size=1000)


@pytest.mark.parametrize("ends", [lambda one: one, lambda one: one.close()])
def test_all_requests_are_in_the_snapshot_of_a_drafter_that_ends(tmp_path, ends):
    path = tmp_path / "memory"
    drafter, texts = shares(path), []
    for number in range(5):
        texts.append(list(range(number * 50, number * 50 + 46)))
        for end in range(40, 47):
            drafter.sync([texts[-1][:end]])
            drafter.draft_chains(8)
    ends(drafter)
    del drafter
    assert remembered(path) == texts


def test_a_server_that_is_idle_remembers_what_has_ended(tmp_path):
    path = tmp_path / "memory"
    drafter = shares(path, sync_interval=0.02)
    last = list(range(30))
    drafter.sync([last, list(range(50, 90))])
    drafter.sync([last])
    until(lambda: remembered(path) == [list(range(50, 90))])
    # The other one may be under way for a second.
    until(lambda: last in remembered(path))
    assert len(drafter) == 2


def test_what_comes_back_after_it_was_remembered_adds_what_is_new(tmp_path):
    path = tmp_path / "memory"
    drafter, text = shares(path), list(range(100))
    drafter.sync([text[:60]])
    drafter.sync([[500, 501]])  # it is preempted for another one
    for end in (61, 70, 100):
        drafter.sync([[500, 501], text[:end]])
    assert drafter.stats()["num_opened"] == 2
    del drafter
    assert sorted(remembered(path)) == [text[:60], text[60 - 16 :], [500, 501]]


def test_each_absence_may_be_long(tmp_path):
    ours, _ = drafters(tmp_path)
    text = [0, 1, 2]
    for token in (0, 1, 2):
        ours.sync([text])
        for _ in range(40):
            ours.sync([])
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
    ],
)
def test_memory_is_that_of_a_known_tenant(memory_scope, tenants, is_remembered):
    drafter = EngineDrafter(memory_scope=memory_scope, vocab_size=40)
    first, second = tenants
    drafter.sync([list(range(30))], names=["a"], request_options=[{"tenant": first}])
    drafter.end(["a"])
    drafter.sync([[35, 3, 4]], names=["b"], request_options=[{"tenant": second}])
    assert bool(drafter.draft_chains(4)[1][0]) == is_remembered
    # A request of another tenant is another request.
    other = EngineDrafter(memory_scope=memory_scope, vocab_size=40)
    other.sync([[0, 1]], request_options=[{"tenant": first}])
    other.sync([[0, 1, 2]], request_options=[{"tenant": second}])
    assert other.stats()["num_opened"] == len({first, second})


def test_a_request_drafts_from_what_it_predicts_and_a_group_needs_a_name():
    wishes = [{"predicted_output": [*range(30)]}, {}, {"group": "g"}, {"group": "g" * 10**6}]
    drafter = EngineDrafter(vocab_size=40)
    options = [{"tenant": "", **each} for each in wishes]
    drafter.sync([[35, 3, 4]] * 4, names=[*"abcd"], request_options=options)
    assert drafter.draft_chains(2)[0].tolist() == [[5, 6], [-1, -1], [-1, -1], [-1, -1]]
    assert drafter.stats()["num_refused"] == 1


def test_statistics_say_what_was_accepted_of_drafts_of_each_length():
    drafter, text = EngineDrafter(), [1, 2, 3] * 3
    for news in ([], [1, 2, 3], [1, 9]):
        text += news
        drafter.sync([text])
        drafter.draft_chains(2)
    stats = drafter.stats()
    assert stats["acceptance_histogram"] == [[], [], [0, 1, 1]]
    assert stats["num_accepted_by_source"] == {"context": 3}
    assert stats["draft_s"] > 0


def test_named_rows_are_the_last_tokens_of_contexts():
    whole, parts = EngineDrafter(), EngineDrafter()
    text = [5, 1, 2, 3, 1, 2, 3, 4, 1, 2]
    for end in range(4, 11):
        whole.sync([text[:end]])
        start = 0 if end == 4 else end - 3
        parts.sync([text[start:end]], starts=[start], names=["r"])
        assert parts.draft_trees(6)[0].tolist() == whole.draft_trees(6)[0].tolist()
    assert {**parts.stats(), "draft_s": 0} == {**whole.stats(), "draft_s": 0}
    parts.sync([[9, 9]], starts=[50], names=["r"])  # a gap: the request is begun again
    assert parts.stats()["num_opened"] == 2
    assert len(parts) == 1
    parts.end(["other", "r"])
    assert len(parts) == 0


@pytest.mark.parametrize(
    "context", [[], [-1], [1.5], "text", [[1]], [2**40], [VOCAB_SIZE], object(), [0, 1, 2, 1, 0]]
)
def test_a_row_without_a_context_of_the_vocabulary_within_the_limit_has_no_draft(tmp_path, context):
    ours, _ = drafters(tmp_path, max_context=4)
    ours.sync([[0, 1, 2], context])
    assert ours.draft_chains(4)[1].tolist()[1] == 0
    _token_ids, lengths, mask = ours.draft_trees(4)
    assert lengths[1] == 0
    assert mask[1].sum(axis=1).tolist() == [1, 2, 2, 2]
    assert ours.stats()["num_refused"] == 1
    ours.sync([[0, 1, 2, 1], [0, 1]])
    assert ours.stats()["num_opened"] == 2


def test_rows_have_numbers_depths_and_probabilities_of_their_own(tmp_path):
    ours, plain = drafters(tmp_path)
    text = [0, 1, 2, 1, 0, 1, 2]
    ours.sync([text] * 4)
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


def test_no_token_beyond_the_engine_s_vocabulary_is_drafted(tmp_path):
    store = build(tmp_path / "d", [[0, 1, 3, 0, 1, 3]])
    drafter = EngineDrafter(datastore=store.path, vocab_size=3)
    drafter.sync([[2, 0]])
    assert drafter.draft_chains(3)[0].tolist() == [[1, -1, -1]]


def test_threads_draft_the_same(tmp_path):
    def drafted(num_threads):
        drafter, _ = drafters(tmp_path, memory_scope="shared", num_threads=num_threads)
        random, told = np.random.default_rng(1), []
        rows = [random.integers(0, 4, 9).tolist() for _ in range(17)]
        for step in range(30):
            drafter.sync([np.array(row, np.uint32) for row in rows])
            told += [part.tolist() for part in (*drafter.draft_chains(5), *drafter.draft_trees(9))]
            for row in rows:
                row += random.integers(0, 3, 2).tolist()
            rows.append(rows.pop(step % len(rows)) if step % 3 else [1, 2])
        return told

    assert drafted(1) == drafted(2)


def test_a_datastore_of_another_tokenizer_is_refused(tmp_path):
    store = build(tmp_path / "d", [[0, 1]], tokenizer_fingerprint="xxh3:ours")
    EngineDrafter(datastore=store.path, tokenizer="xxh3:ours")
    with pytest.raises(ValueError, match="xxh3:ours, that of the engine's is xxh3:theirs"):
        EngineDrafter(datastore=store.path, tokenizer="xxh3:theirs")
    with pytest.raises(FileNotFoundError):
        EngineDrafter(datastore=tmp_path / "none")


def test_a_snapshot_is_what_drafts_start_from_and_a_damaged_one_is_a_warning(tmp_path):
    drafter = FusedDrafter(memory=Memory(40))
    drafter.session(list(range(30))).finish()
    drafter.save(tmp_path / "kept")
    config = {"memory_scope": "shared", "snapshot": tmp_path / "kept"}
    ours = EngineDrafter(**config, vocab_size=40)
    ours.sync([[35, 3, 4]])
    assert ours.draft_chains(2)[0].tolist() == [[5, 6]]
    assert ours.warnings == []
    damaged = (tmp_path / "kept").read_bytes()
    (tmp_path / "kept").write_bytes(damaged[:-9] + b"x" + damaged[-8:])
    ours = EngineDrafter(**config, vocab_size=40)
    assert "the snapshot is not used" in ours.warnings[0]
    ours.sync([[35, 3, 4]])
    assert ours.draft_chains(2)[1].tolist() == [0]


def repeats(drafter, num_rows):
    drafter.sync([[row, 1, 2, 3, 1, 2, 3, 1] for row in range(num_rows)])


def test_fewer_nodes_are_drafted_the_larger_the_batch_and_none_where_none_pay():
    cost = [[1, 1.0], [64, 1.0], [128, 2.0]]
    lengths = {}
    for num_rows in (1, 8, 16, 64):
        drafter = EngineDrafter(step_cost=cost)
        repeats(drafter, num_rows)
        lengths[num_rows] = drafter.draft_chains(8)[1]
    assert lengths[1].tolist() == [8]
    assert lengths[8].sum() in range(8 * 5, 8 * 7 + 1)  # as many as are free
    assert 0 < lengths[16].sum() < 16 * 4
    assert lengths[64].sum() == 0
    free = EngineDrafter(step_cost=[(1, 1.0)])
    repeats(free, 64)
    assert free.draft_chains(8)[1].tolist() == [8] * 64


def test_measured_steps_tell_what_drafts_cost():
    lengths = {}
    for cost in (0.02, 0.9):
        drafter = EngineDrafter(step_cost="measured")
        for _ in range(300):
            repeats(drafter, 8)
            drafted = drafter.draft_chains(8)[1]
            drafter.observe_step_time(0.02 * (1 + cost * drafted.sum() / 8))
            lengths.setdefault(cost, []).append(drafted.sum())
    for steps in lengths.values():
        assert steps[0] == 0  # what a step without a draft takes is not known yet
    assert np.median(lengths[0.02]) == 64
    assert np.median(lengths[0.9]) == 0
    for seconds in (0, -1, float("nan"), float("inf")):
        drafter.observe_step_time(seconds)


def test_effort_follows_the_time_of_a_step(tmp_path):
    random = np.random.default_rng(0)
    documents = [(random.zipf(1.3, 300) % 20).tolist() for _ in range(30)]
    store = build(tmp_path / "d", documents, vocab_size=20)
    contexts = [(random.zipf(1.3, 40) % 20).tolist() for _ in range(8)]

    def drafted(step_s=None, **config):
        drafter = EngineDrafter(datastore=store.path, **config)
        drafter.sync(contexts)
        if step_s is not None:
            drafter.draft_trees(33)
            drafter.observe_step_time(step_s)
        return drafter.draft_trees(33)[0].tolist()

    low, normal = drafted(effort="low"), drafted(effort="normal")
    assert low != normal
    assert drafted() == drafted(1e-4) == low
    assert drafted(1.0) == normal


def test_predictions_are_recycled():
    drafter = EngineDrafter()
    drafter.sync([[1, 2], [3, 4]])
    assert drafter.draft_trees(3)[1].tolist() == [0, 0]
    assert drafter.num_predictions == 8
    drafter.observe_predictions([[7, 8], [9, 9], [9, 9], [5, 6], [9, 9], [9, 9]], 3)
    drafter.sync([[1, 2, 1, 2], [3, 4, 3, 4]])
    first, second = drafter.draft_trees(5)[0].tolist()
    assert {7, 8} <= set(first)
    assert {5, 6} <= set(second)
    off = EngineDrafter(recycle_predictions=False)
    assert off.num_predictions == 0

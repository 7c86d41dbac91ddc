"""Numbers of verified nodes, against brute force and in simulations with a known optimum.

Time is that of a simulated clock, so that nothing depends on the machine.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget_rule import Rule, best_size
from models import Drafter
from specds._core import DraftStats, StepTimes, TokenTree
from specds.drafters import Session
from specds.generation.budget import MAX_NODES, AutoBudget, FixedBudget

VOCAB_SIZE = 10_000
SIZES = (0, 1, 2, 4, 8, 16, 32, 63)
LINEAR = [0.010 * (1 + size / 10) for size in range(64)]
FLAT = [0.010 * (1 + size / 1000) for size in range(64)]


class SimulatedSession(Session):
    """Drafts of one chain each, a target that follows them so often, and a clock.

    Args:
        seconds: What a step takes by number of nodes.
        truth: How often the target takes the next token of a draft, by step.
        claims: What the drafter says of that; by default the truth.
        draft_s: What a draft takes.
    """

    def __init__(self, seconds, truth, claims=None, draft_s=50e-6, seed=3):
        self.seconds, self.truth, self.claims = seconds, truth, claims or truth
        self.draft_s, self.rng = draft_s, np.random.default_rng(seed)
        self.now, self.step, self.num_drafts, self.verified = 0.0, 0, 0, []

    def draft(self, max_nodes, max_depth=None, min_prob=0.0):
        self.now += self.draft_s
        self.num_drafts += 1
        probs = self.claims(self.step) ** np.arange(1, max_nodes + 1)
        probs = probs[probs >= min_prob]
        return TokenTree(np.arange(len(probs)), np.arange(-1, len(probs) - 1), probs)

    def decode(self, budget, num_steps, start=0):
        """Run a budget over steps; return the time a token takes, in baseline steps."""
        begin, num_tokens = self.now, 0
        for self.step in range(start, start + num_steps):
            (tree,) = budget.draft([self], [1000])
            self.verified.append(num_nodes := len(tree))
            step_s = self.seconds[num_nodes] * self.rng.uniform(0.95, 1.05)
            self.now += step_s
            right = self.rng.geometric(1 - self.truth(self.step)) - 1
            emitted = list(range(min(right, num_nodes) + 1))
            if right <= num_nodes:
                emitted[-1] = 9999  # the target's own, which was not drafted
            num_tokens += len(emitted)
            budget.record([emitted], step_s)
        return (self.now - begin) / num_tokens / self.seconds[0]


def relative(seconds):
    return [of_size / seconds[0] for of_size in seconds]


def auto(world, reliability=None, costs=None):
    draft_stats = DraftStats() if reliability is None else DraftStats(reliability)
    return AutoBudget(costs or world.seconds, draft_stats, VOCAB_SIZE, clock=lambda: world.now)


def best_of_fixed(seconds, *rates):
    """The time of a token with the best fixed budget, where contexts of these rates alternate."""

    def time_of_a_token(size):
        tokens = np.mean([sum(rate**depth for depth in range(size + 1)) for rate in rates])
        return costs[size] / tokens

    costs = relative(seconds)
    return min(map(time_of_a_token, range(MAX_NODES + 1)))


@pytest.mark.parametrize("reliability", [1.0, 0.3], ids=["known", "unknown"])
@pytest.mark.parametrize(("seconds", "gain"), [(LINEAR, 0.8), (FLAT, 1.0)], ids=["linear", "flat"])
def test_auto_budget_beats_any_fixed_budget_on_mixed_contexts(seconds, gain, reliability):
    world = SimulatedSession(seconds, lambda step: 0.9 if step // 50 % 2 else 0.1)
    # To come to know a drafter takes a step or two of a thousand.
    learning = 1.02 if seconds is FLAT and reliability == 0.3 else 1.0
    best = best_of_fixed(seconds, 0.1, 0.9)
    assert world.decode(auto(world, reliability), 1000) < learning * gain * best


def test_backs_off_is_known_before_the_step():
    world = SimulatedSession(LINEAR, lambda _: 1e-9, draft_s=1e-3)
    budget = auto(world)
    announced = []
    for _ in range(200):
        announced.append(budget.backs_off)
        num_before = world.num_drafts
        world.decode(budget, 1)
        assert (world.num_drafts == num_before) == announced[-1]
    assert not announced[0]
    assert sum(announced) > 150
    assert [FixedBudget(number, 1).backs_off for number in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("claim", "draft_s"), [(None, 50e-6), (None, 1e-3), (0.3, 50e-6), (0.9, 50e-6), (1.0, 50e-6)]
)
@pytest.mark.parametrize("seconds", [LINEAR, FLAT], ids=["linear", "flat"])
def test_rejected_drafts_cost_at_most_two_percent(seconds, claim, draft_s):
    world = SimulatedSession(seconds, lambda _: 1e-9, claim and (lambda _: claim), draft_s)
    assert world.decode(auto(world), 1000) < 1.02
    assert np.mean(world.verified[500:]) < 3
    if draft_s == 1e-3:
        assert world.num_drafts < 100


@pytest.mark.parametrize("claim", [None, 0.8])
def test_budget_drafts_again_after_acceptance_improves(claim):
    def truth(step):
        return 0.8 if step >= 1000 else 1e-9

    again = from_the_start = 0.0
    for seed in range(3, 9):  # a backoff may have just begun
        world = SimulatedSession(LINEAR, truth, claim and (lambda _: claim), seed=seed)
        budget = auto(world)
        world.decode(budget, 1200)
        again += world.decode(budget, 300, 1200)
        late = SimulatedSession(LINEAR, lambda _: 0.8, seed=seed)
        from_the_start += late.decode(auto(late), 300)
    assert again < 1.15 * from_the_start


def test_budget_drafts_nothing_at_depth_zero():
    world = SimulatedSession(FLAT, lambda _: 0.9)
    budget = auto(world)
    for policy in (budget, FixedBudget(8, VOCAB_SIZE)):
        assert [*map(len, policy.draft([world], [0]))] == [0]
    assert world.num_drafts == 0
    assert [len(tree) for tree in FixedBudget(8, VOCAB_SIZE).draft([world, world], [3, 100])] == [
        3,
        8,
    ]


class Listed(Session):
    """Drafts sibling nodes of these probabilities, and records its calls."""

    def __init__(self, probs):
        self.probs = np.array(probs)
        self.asked, self.told = [], []

    def draft(self, max_nodes, max_depth=None, min_prob=0.0):
        self.asked.append(max_nodes)
        probs = self.probs[self.probs >= min_prob][:max_nodes]
        return TokenTree(np.arange(len(probs)), [-1] * len(probs), probs)

    def set_step_time(self, step_seconds):
        self.told.append(step_seconds)


@given(
    drafts=st.lists(
        st.lists(st.floats(1e-3, 1), min_size=1, max_size=63).map(lambda p: sorted(p)[::-1]),
        min_size=1,
        max_size=3,
    ),
    increments=st.lists(st.floats(0, 0.3), min_size=7, max_size=7),
)
def test_auto_budget_size_equals_brute_force(drafts, increments):
    cost = np.interp(range(64), SIZES, np.cumsum([1.0, *increments])).tolist()
    sessions = [Listed(probs) for probs in drafts]
    budget = AutoBudget(cost, DraftStats(1.0), VOCAB_SIZE, len(sessions))
    least = np.float32(budget._rule.min_prob)
    trees = budget.draft(sessions, [9] * len(sessions))
    rule = Rule(1, cost, 1.0)
    gains = [rule.gains(0, Listed(probs).draft(63, min_prob=least)) for probs in drafts]
    assert max(map(len, trees)) == best_size(gains, relative(cost))


def test_sessions_draft_once_and_get_the_baseline_step_time():
    session, budget = Listed([0.9] * 63), auto(SimulatedSession(LINEAR, lambda _: 0.5))
    budget.draft([session], [9])
    assert session.asked == [63]
    assert session.told == [pytest.approx(LINEAR[0])]


def test_free_first_node_does_not_lengthen_drafts():
    seconds = [LINEAR[max(size, 1)] for size in range(64)]
    world = SimulatedSession(seconds, lambda _: 0.5)
    asked = []
    world.draft = lambda most, depth, least: (
        asked.append(least) or SimulatedSession.draft(world, most, depth, least)
    )
    world.decode(auto(world), 100)
    assert min(asked) > 0.03
    assert world.decode(auto(world), 1000) < 1.05 * best_of_fixed(seconds, 0.5)


@pytest.mark.parametrize(("max_nodes", "tokens"), [(6, [1, 2, 4, 5]), (3, [1, 2, 4])])
def test_depth_limit_keeps_all_paths(max_nodes, tokens):
    rows = Drafter(lambda *_: TokenTree([1, 2, 3, 4, 5, 6], [-1, 0, 1, -1, 3, 4], [0.5] * 6))
    (tree,) = FixedBudget(max_nodes, VOCAB_SIZE).draft([rows.session([0])], [2])
    assert tree.token_ids.tolist() == tokens
    assert tree.parents.tolist() == [-1, 0, -1, 2][: len(tokens)]


def test_flat_costs_give_full_drafts_within_seven_steps():
    world = SimulatedSession(FLAT, lambda _: 0.95)
    world.decode(auto(world, costs=StepTimes()), 12)
    assert world.verified[:3] == [0, 0, 0]
    assert max(world.verified[3:7]) > 30
    assert np.median(world.verified[6:]) > 20


def test_chains_of_auto_end_before_unlikely_tokens():
    world = SimulatedSession(FLAT, lambda _: 0.6)
    budget = AutoBudget(FLAT, DraftStats(1.0), VOCAB_SIZE, clock=lambda: world.now, is_chain=True)
    world.decode(budget, 20)
    assert max(world.verified) == 4  # 0.6 ** 5 is below 0.1


def test_budget_cuts_sessions_that_ignore_limits_and_unknown_tokens():
    def unlimited(*_):
        return TokenTree([1, 2, 30, 4], [-1, 0, 1, 2], [0.9, 0.8, 0.7, 0.6])

    session = Drafter(unlimited).session([0])
    known, fixed = FixedBudget(9, 100), FixedBudget(2, 100)
    assert [len(tree) for tree in known.draft([session], [3])] == [3]
    assert [len(tree) for tree in fixed.draft([session], [3])] == [2]
    with pytest.warns(UserWarning, match="a draft with token 30 is cut there"):
        assert [len(tree) for tree in FixedBudget(9, 30).draft([session], [4])] == [2]


def test_rows_join_and_leave():
    budget = AutoBudget([1.0] * (MAX_NODES + 1), DraftStats(), 100, 0)
    assert budget.backs_off
    for number in range(1, 4):
        budget.join()
        assert not budget.backs_off
        trees = budget.draft([Session()] * number, [4] * number)
        assert len(trees) == number
        budget.record([[1]] * number, 1.0)
    budget.leave(0)
    assert len(budget.draft([Session()] * 2, [4, 4])) == 2

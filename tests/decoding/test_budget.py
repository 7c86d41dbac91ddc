"""How many nodes are verified: against brute force, and in worlds whose optimum is known.

Time is that of a simulated clock, so that nothing depends on the machine.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget_rule import best_size
from models import Drafter
from specds._core import DraftStats, TokenTree
from specds.decoding.budget import AutoBudget, FixedBudget
from specds.decoding.step_cost import MOST_NODES, CostModel
from specds.drafters import Session

SIZES = (0, 1, 2, 4, 8, 16, 32, 63)
LINEAR = {size: 0.010 * (1 + size / 10) for size in SIZES}
FLAT = {size: 0.010 * (1 + size / 1000) for size in SIZES}


class World(Session):
    """Drafts of one chain each, a target that follows them so often, and a clock.

    Args:
        seconds: What a step takes by number of nodes.
        truth: How often the target takes the next token of a draft, by step.
        claims: What the drafter says of that; by default the truth.
        draft_s: What a draft takes.
    """

    def __init__(self, seconds, truth, claims=None, draft_s=50e-6, seed=3):
        self.true_cost, self.truth, self.claims = CostModel(seconds), truth, claims or truth
        self.draft_s, self.rng = draft_s, np.random.default_rng(seed)
        self.now, self.step, self.num_drafts, self.verified = 0.0, 0, 0, []

    def draft(self, max_nodes, max_depth=None, min_prob=0.0):
        self.now += self.draft_s
        self.num_drafts += 1
        probs = self.claims(self.step) ** np.arange(1, max_nodes + 1)
        probs = probs[probs >= min_prob]
        return TokenTree(np.arange(len(probs)), np.arange(-1, len(probs) - 1), probs)

    def decode(self, budget, num_steps, start=0):
        """Runs a budget over steps; returns the time a token takes, in plain steps."""
        begin, num_tokens = self.now, 0
        for self.step in range(start, start + num_steps):
            budget.prepare()
            (tree,) = budget.draft([self], [1000])
            self.verified.append(num_nodes := len(tree))
            self.now += self.true_cost.seconds[num_nodes] * self.rng.uniform(0.95, 1.05)
            right = self.rng.geometric(1 - self.truth(self.step)) - 1
            emitted = list(range(min(right, num_nodes) + 1))
            if right <= num_nodes:
                emitted[-1] = 9999  # the target's own, which was not drafted
            num_tokens += len(emitted)
            budget.record([emitted])
        return (self.now - begin) / num_tokens / self.true_cost.seconds[0]


def relative(seconds):
    return [of_size / seconds[0] for of_size in seconds]


def auto(world, reliability=None):
    draft_stats = DraftStats() if reliability is None else DraftStats(reliability)
    return AutoBudget(lambda: world.true_cost, draft_stats, clock=lambda: world.now)


def best_of_fixed(seconds, *rates):
    """The time of a token with the best fixed budget, where contexts of these rates alternate."""

    def time_of_a_token(size):
        tokens = np.mean([sum(rate**depth for depth in range(size + 1)) for rate in rates])
        return costs[size] / tokens

    costs = relative(CostModel(seconds).seconds)
    return min(map(time_of_a_token, range(MOST_NODES + 1)))


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("seconds", [LINEAR, FLAT], ids=["linear", "flat"])
def test_it_is_as_good_as_the_best_fixed_budget(seconds, rate):
    world = World(seconds, lambda _: rate)
    assert world.decode(auto(world), 1000) < 1.05 * best_of_fixed(seconds, rate)


@pytest.mark.parametrize("reliability", [1.0, 0.3], ids=["known", "unknown"])
@pytest.mark.parametrize(("seconds", "gain"), [(LINEAR, 0.8), (FLAT, 1.0)], ids=["linear", "flat"])
def test_it_is_better_than_any_fixed_budget_where_contexts_differ(seconds, gain, reliability):
    world = World(seconds, lambda step: 0.9 if step // 50 % 2 else 0.1)
    # To come to know a drafter takes a step or two of a thousand.
    learning = 1.02 if seconds is FLAT and reliability == 0.3 else 1.0
    best = best_of_fixed(seconds, 0.1, 0.9)
    assert world.decode(auto(world, reliability), 1000) < learning * gain * best


def test_it_says_before_a_step_that_there_will_be_no_draft():
    world = World(LINEAR, lambda _: 1e-9, draft_s=1e-3)
    budget = auto(world)
    announced = []
    for _ in range(200):
        announced.append(budget.pauses)
        num_before = world.num_drafts
        world.decode(budget, 1)
        assert (world.num_drafts == num_before) == announced[-1]
    assert not announced[0]
    assert sum(announced) > 150
    assert [FixedBudget(number).pauses for number in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("claim", "draft_s"), [(None, 50e-6), (None, 1e-3), (0.3, 50e-6), (0.9, 50e-6), (1.0, 50e-6)]
)
@pytest.mark.parametrize("seconds", [LINEAR, FLAT], ids=["linear", "flat"])
def test_drafts_without_hope_and_promises_without_worth_cost_next_to_nothing(
    seconds, claim, draft_s
):
    world = World(seconds, lambda _: 1e-9, claim and (lambda _: claim), draft_s)
    assert world.decode(auto(world), 1000) < 1.02
    assert np.mean(world.verified[500:]) < 3
    if draft_s == 1e-3:
        assert world.num_drafts < 100


@pytest.mark.parametrize("claim", [None, 0.8])
def test_drafts_that_become_good_are_used_again(claim):
    def truth(step):
        return 0.8 if step >= 1000 else 1e-9

    again = from_the_start = 0.0
    for seed in range(3, 9):  # a pause may have just begun
        world = World(LINEAR, truth, claim and (lambda _: claim), seed=seed)
        budget = auto(world)
        world.decode(budget, 1200)
        again += world.decode(budget, 300, 1200)
        late = World(LINEAR, lambda _: 0.8, seed=seed)
        from_the_start += late.decode(auto(late), 300)
    assert again < 1.15 * from_the_start


def test_no_draft_is_made_where_nothing_of_it_could_be_emitted():
    world = World(FLAT, lambda _: 0.9)
    budget = auto(world)
    for policy in (budget, FixedBudget(8)):
        assert [*map(len, policy.draft([world], [0]))] == [0]
    assert world.num_drafts == 0
    assert [len(tree) for tree in FixedBudget(8).draft([world, world], [3, 100])] == [3, 8]


class Listed(Session):
    """Drafts nodes of these probabilities, side by side, and notes what it is asked and told."""

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
def test_a_draft_leaves_out_nothing_that_pays(drafts, increments):
    seconds = np.cumsum([1.0, *increments])
    cost = CostModel(dict(zip(SIZES, seconds, strict=True)))
    sessions = [Listed(probs) for probs in drafts]
    budget = AutoBudget(lambda: cost, DraftStats(1.0), len(sessions))
    budget.prepare()
    trees = budget.draft(sessions, [9] * len(sessions))
    costs = relative(cost.seconds)
    # A node beyond the first costs at least this: less likely ones are left out in any case.
    first = max(size for size in range(64) if costs[size] <= costs[1])
    beyond = [(costs[size] - costs[1]) / (size - first) for size in range(first + 1, 64)]
    least = np.float32(min(beyond, default=0.0))
    gains = [[prob for prob in map(np.float32, probs) if prob >= least] for probs in drafts]
    assert max(map(len, trees)) == best_size(gains, costs)


def test_sessions_are_asked_once_and_told_what_a_plain_step_takes():
    session, budget = Listed([0.9] * 63), auto(World(LINEAR, lambda _: 0.5))
    budget.prepare()
    budget.draft([session], [9])
    assert session.asked == [63]
    assert session.told == [pytest.approx(LINEAR[0])]


def test_a_first_node_that_costs_nothing_does_not_make_drafts_long():
    seconds = {size: LINEAR[max(size, 1)] for size in SIZES}
    world = World(seconds, lambda _: 0.5)
    asked = []
    world.draft = lambda most, depth, least: (
        asked.append(least) or World.draft(world, most, depth, least)
    )
    world.decode(auto(world), 100)
    assert min(asked) > 0.03
    assert world.decode(auto(world), 1000) < 1.05 * best_of_fixed(seconds, 0.5)


@pytest.mark.parametrize(("max_nodes", "tokens"), [(6, [1, 2, 4, 5]), (3, [1, 2, 4])])
def test_near_the_end_a_draft_in_rows_keeps_all_its_rows(max_nodes, tokens):
    rows = Drafter(lambda *_: TokenTree([1, 2, 3, 4, 5, 6], [-1, 0, 1, -1, 3, 4], [0.5] * 6))
    (tree,) = FixedBudget(max_nodes).draft([rows.session([0])], [2])
    assert tree.token_ids.tolist() == tokens
    assert tree.parents.tolist() == [-1, 0, -1, 2][: len(tokens)]

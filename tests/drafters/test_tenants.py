"""Isolation of tenants: no tenant's text is in another's drafts, or left after its deletion."""

from collections import deque
from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from datastores import build, segments
from reference import shown
from specds import FusedDrafter
from specds.drafters import Memory

VOCAB_SIZE = 40
# Less than three tenants need in most of the tests.
MAX_BYTES = 1 << 21


def drafter_of(memory=None, store=None):
    return FusedDrafter(store, memory=memory or Memory(VOCAB_SIZE, max_bytes=MAX_BYTES))


def steps(drafter, tenant, text, group=None):
    """Generate a text as a model would, and yield the draft of each step."""
    session, last, rest = drafter.session(text[:4], tenant, group=group), text[3], text[4:]
    while rest:
        tree = session.draft(16)
        ends = [last, *tree.token_ids.tolist()]
        session.observe_predictions(tree, [[(end + 1) % VOCAB_SIZE] for end in ends])
        number = 1 + len(tree.follow(rest))
        emitted, rest = rest[:number], rest[number:]
        session.observe(emitted)
        last = emitted[-1]
        yield shown(tree)
    session.finish()


def drafts(*arguments):
    return [*steps(*arguments)]


def drafts_of_bob(requests, ann="ann", bob="bob", group=None, store=None):
    """Serve both tenants in turn, step by step; return Bob's drafts and adaptation."""
    drafter, trees = drafter_of(store=store), []
    for of_ann, of_bob in requests:
        hers, his = (
            steps(drafter, name, text, group) for name, text in ((ann, of_ann), (bob, of_bob))
        )
        trees += [tree for _, tree in zip(hers, his, strict=False)]
        trees += [*his]
        deque(hers, 0)
    return trees, drafter._state.learned(bob)


PHRASES = st.builds(lambda a, b: [a, b, (a + b) % 6, 6 + a], *[st.integers(0, 5)] * 2)
# Of so few tokens that those of two tenants have much in common.
TEXTS = st.lists(PHRASES, min_size=2, max_size=29).map(lambda parts: [*chain(*parts)])


def poison(seed):
    """Return a misleading text: a different token follows the same beginning each time."""
    following = np.random.default_rng(seed).integers(0, VOCAB_SIZE, 500).tolist()
    return [token for other in following for token in (1, 2, 3, other)]


OF_ANN = TEXTS | TEXTS | TEXTS | st.builds(poison, st.integers(0, 9)) | st.just([1, 2] * 2000)


@settings(max_examples=25)
@given(st.lists(st.tuples(OF_ANN, OF_ANN, TEXTS), min_size=1, max_size=3), *[st.booleans()] * 2)
def test_drafts_do_not_depend_on_other_tenants(folder, world, is_stored, is_grouped):
    text = np.random.default_rng(1).integers(0, 6, 300).tolist()
    store = build(folder / "d", [text], vocab_size=VOCAB_SIZE, separator=VOCAB_SIZE)
    settings = {"group": "both" if is_grouped else None, "store": store if is_stored else None}
    one = drafts_of_bob([(first, bob) for first, _, bob in world], **settings)
    assert one == drafts_of_bob([(second, bob) for _, second, bob in world], **settings)


def test_requests_of_one_tenant_share_drafts():
    """Control: drafts depend on Ann's text if she has Bob's name."""
    secrets = [7, 8, 9, 10] * 6, [7, 9, 8, 10] * 6
    one, other = (drafts_of_bob([(s, [1, 2, 3, 7, 1, 2, 3, 7])], ann="bob") for s in secrets)
    assert one != other


def drafts_after_ann(tenant, group, first, then):
    """The drafts of a request after one of Ann's in the group "task"."""
    drafter = drafter_of()
    drafts(drafter, "ann", first, group and "task")
    return drafts(drafter, tenant, then, group)


def test_group_belongs_to_one_tenant_and_one_prompt_unless_named():
    texts = [[prompt] * 4 + [1, 2, 3, 5, 6, 7] for prompt in (9, 8)]
    for tenant in ("ann", "bob"):
        task, other = (drafts_after_ann(tenant, group, *texts) for group in ("task", "other"))
        assert (task == other) == (tenant == "bob")
    # Prompts of four tokens, which begin no other's: only samples of the same one are of a group.
    same = [texts[0]] * 2
    assert drafts_after_ann("ann", None, *same) == drafts_after_ann("ann", "task", *same)
    assert drafts_after_ann("ann", None, *same) != drafts_after_ann("ann", "other", *same)


def test_one_tenant_cannot_evict_another_below_its_fair_share():
    bob, found = np.random.default_rng(3).integers(0, 10, 400).tolist() * 2, []
    for length in (10, 3000, 40_000):
        random, memory = np.random.default_rng(4), Memory(VOCAB_SIZE, max_bytes=MAX_BYTES)
        drafter, trees = drafter_of(memory), []
        for _ in range(20):
            memory.insert("ann", random.integers(0, VOCAB_SIZE, length))
            trees += drafts(drafter, "bob", bob)
            assert memory.num_bytes <= memory.max_bytes
        found.append((trees, drafter._state.learned("bob")))
    assert found[0] == found[1] == found[2]


def test_deleted_tenant_is_not_saved_or_restored_by_open_requests(tmp_path):
    def saved(with_ann):
        memory = Memory(VOCAB_SIZE, max_bytes=MAX_BYTES)
        drafter = drafter_of(memory)
        drafts(drafter, "bob", [1, 2, 3] * 9)
        if with_ann:
            drafts(drafter, "ann", [33, 34, 35] * 9)
            still_open = steps(drafter, "ann", [36, 37, 38] * 9)
            next(still_open)
            memory.forget("ann")
            assert drafter._state.learned("ann") == b""
            assert [*still_open]
            assert drafter._state.learned("ann") == b""
            assert memory.texts("ann") == []
        else:
            memory.forget("nobody")
        path = tmp_path / f"memory {with_ann}"
        memory.save(path)
        [segment] = segments(path)
        return segment.read_bytes(), memory.num_bytes, memory.num_tenants

    without, one = saved(False), saved(True)
    assert one[1:] == without[1:]
    # Only the tombstone and counters of served requests may differ.
    differing = sum(a != b for a, b in zip(one[0], without[0], strict=True))
    assert differing < 32 + 16


TEXT = [1, 2, 3, 4, 1, 2, 5, 6] * 9


def test_tenant_adaptation_is_counted_saved_and_restored(tmp_path):
    memory = Memory(VOCAB_SIZE, max_bytes=MAX_BYTES)
    drafter = drafter_of(memory)
    memory.insert("bob", TEXT)
    of_text = memory.num_bytes
    drafts(drafter, "ann", TEXT)
    assert 50_000 < memory.num_bytes - 2 * of_text < 300_000
    memory.save(tmp_path / "memory")
    resumed = drafter_of(Memory.open(tmp_path / "memory", VOCAB_SIZE, max_bytes=MAX_BYTES))
    assert resumed._state.learned("ann") == drafter._state.learned("ann") != b""
    assert resumed._state.learned("bob") == b""
    assert drafts(resumed, "ann", TEXT) == drafts(drafter, "ann", TEXT)


def test_weights_are_evicted_with_their_tenants():
    """Evict a tenant's adaptation before a longer text if memory is short."""
    memory = Memory(VOCAB_SIZE, max_bytes=MAX_BYTES)
    drafter = drafter_of(memory)
    for number in range(60):
        drafts(drafter, str(number), TEXT)
        assert memory.num_bytes <= memory.max_bytes
    assert drafter._state.learned("0") == b"" != drafter._state.learned("59")
    assert memory.num_tenants > 20, "texts are small"

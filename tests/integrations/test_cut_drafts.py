"""Drafts that the engine cuts before verification, such as those that a grammar forbids."""

from specds import EngineDrafter

TEXT = [1, 2, 3] * 4


def drafted(drafter, name):
    drafter.sync([TEXT], [name])
    return int(drafter.draft_chains(8)[1][0])


def test_counters_include_only_verified_tokens():
    drafter = EngineDrafter(min_prob=0.0)
    assert drafted(drafter, "a") == 8
    drafter.sync([[*TEXT, 1, 2, 9]], ["a"], num_verified=[3])
    stats = drafter.stats()
    assert (stats["num_draft_tokens"], stats["num_accepted_tokens"]) == (3, 2)
    assert (stats["num_cut_tokens"], stats["num_row_steps"]) == (5, 1)
    assert stats["acceptance_histogram"][3] == [0, 0, 1, 0]
    assert int(drafter.draft_chains(8)[1][0]) > 0
    drafter.sync([[*TEXT, 1, 2, 9, 1]], ["a"], num_verified=[100])
    assert drafter.stats()["num_cut_tokens"] == 5


def test_tokens_that_were_not_verified_lower_no_trust():
    def size(num_verified, emitted):
        """Return the size of a draft after steps that emitted these tokens."""
        drafter = EngineDrafter(step_cost=[[1, 1.0], [9, 2.0]])
        for number in range(30):
            assert drafted(drafter, str(number)) > 0
            drafter.sync([[*TEXT, *emitted]], [str(number)], num_verified=num_verified)
        return drafted(drafter, "last")

    assert size([0], [1]) > 2 * size(None, [1, 9])

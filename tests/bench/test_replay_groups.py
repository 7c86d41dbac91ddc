"""Requests of one group in a replay."""

from dataclasses import replace

from replays import transcript
from specds import FusedDrafter
from specds.bench.replay.measure import replay_all
from specds.drafters import Memory


def test_rows_of_a_group_draft_from_each_other_as_one():
    def expected(groups):
        drafter = FusedDrafter(memory=Memory(64))
        answers = [transcript([60 + n], list(range(20))) for n in range(2)]
        rows = [replace(row, group=group) for row, group in zip(answers, groups, strict=True)]
        return replay_all(lambda: drafter, 8, rows)["a"].expected

    assert expected(["task", "task"]) != expected(["task", "other"])
    assert expected(["task", "other"]) == expected([None, None])

"""Snapshots of `EngineDrafter`: which requests they hold, and drafts that start from one."""

import pytest

from datastores import segments, until
from reference_engine import sync
from specds import EngineDrafter, FusedDrafter
from specds.drafters import Memory


def stored(path):
    try:
        return [text.tolist() for text in Memory.open(path, 1000).texts("")]
    except FileNotFoundError:
        return []


def shares(path, **config):
    config = {"memory_scope": "shared", "snapshot": str(path), "sync_interval": 3600, **config}
    return EngineDrafter(**config, vocab_size=1000)


@pytest.mark.parametrize("ends", [lambda one: one, lambda one: one.close()])
def test_closing_a_drafter_stores_all_requests_in_its_snapshot(tmp_path, ends):
    path = tmp_path / "memory"
    drafter, texts = shares(path), []
    for number in range(5):
        texts.append(list(range(number * 50, number * 50 + 46)))
        for end in range(40, 47):
            sync(drafter, texts[-1][:end])
            drafter.draft_chains(8)
    ends(drafter)
    del drafter
    assert stored(path) == texts


def test_idle_server_stores_finished_requests(tmp_path):
    path = tmp_path / "memory"
    drafter = shares(path, sync_interval=0.02)
    last = list(range(30))
    sync(drafter, last, list(range(50, 90)))
    sync(drafter, last)
    until(lambda: list(range(50, 90)) in stored(path))
    # The other one counts as running for a second.
    until(lambda: last in stored(path))
    assert len(drafter) == 2


def test_request_that_returns_after_it_was_stored_adds_its_new_tokens(tmp_path):
    path = tmp_path / "memory"
    drafter, text = shares(path), list(range(100))
    drafter.sync([text[:60]], ["a"])
    drafter.sync([[500, 501]], ["b"])  # "a" is preempted
    for end in (61, 70, 100):
        drafter.sync([[500, 501], text[:end]], ["b", "a"])
    assert drafter.stats()["num_opened"] == 2
    del drafter
    assert sorted(stored(path)) == [text[:60], text[60 - 16 :], [500, 501]]


def test_drafts_start_from_a_snapshot_and_a_damaged_one_is_a_warning(tmp_path):
    drafter = FusedDrafter(memory=Memory(40))
    drafter.session(list(range(30))).finish()
    drafter.save(tmp_path / "kept")
    config = {"memory_scope": "shared", "snapshot": tmp_path / "kept"}
    ours = EngineDrafter(**config, vocab_size=40)
    sync(ours, [35, *range(5)])
    assert ours.draft_chains(2)[0].tolist() == [[5, 6]]
    assert ours.warnings == []
    [segment] = segments(tmp_path / "kept")
    damaged = segment.read_bytes()
    segment.write_bytes(damaged[:-9] + b"x" + damaged[-8:])
    ours = EngineDrafter(**config, vocab_size=40)
    assert "the snapshot is not used" in ours.warnings[0]
    sync(ours, [35, *range(5)])
    assert ours.draft_chains(2)[1].tolist() == [0]

"""One memory of several processes: what each has the others get, and a killed one harms nobody."""

import pytest

from datastores import build, texts, until
from specds import Datastore, FormatError
from specds._core import EngineDrafter
from specds.drafters import Memory
from specds.indexing import add_from_memory

EVERY = 0.02


def engine(path, **config):
    config = {"snapshot": str(path), "memory_scope": "shared", "sync_interval": EVERY, **config}
    return EngineDrafter(**config, vocab_size=100)


def test_engines_share_by_their_configuration(path):
    first, second = engine(path), engine(path)
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    first.sync([text], ["a"])
    first.end_all()

    def drafts():
        second.sync([[9, 1, 2]], ["a"])
        tokens, numbers, _ = second.draft_chains(4)
        second.end_all()
        return numbers[0] > 1 and tokens[0, :2].tolist() == [3, 4]

    until(drafts)
    assert first.warnings == second.warnings == []


def test_an_engine_goes_on_with_the_datastore_that_replaced_its_own(path):
    store = path.with_name("d")
    build(store, [[50, 51]], vocab_size=100, separator=99)
    served = engine(path, datastore=str(store))
    served.sync([[1, 2, 3, 4, 5, 6, 7, 8]], ["a"])
    served.end_all()
    until(lambda: texts(Memory.open(path, 100)) != [])
    report = add_from_memory(store, path, "")
    assert (report.num_added_documents, report.num_left) == (1, 0)
    assert Datastore(store).count([1, 2, 3, 4, 5, 6, 7, 8]) == 1
    until(lambda: texts(Memory.open(path, 100)) == [])
    del served
    assert texts(Memory.open(path, 100)) == [], "what the datastore has does not come back"


def test_what_cannot_be_shared_is_told_and_stays(path):
    Memory(100, tokenizer="words").save(path)
    kept = path.read_bytes()
    with pytest.raises(ValueError, match="of another tokenizer: `words`, not ``"):
        Memory(100).share(path)
    with pytest.raises(ValueError, match="of another tokenizer"):
        engine(path)
    path.write_bytes(kept[:-1])
    for share in (lambda: Memory(100, tokenizer="words").share(path), lambda: engine(path)):
        with pytest.raises(FormatError, match="bytes where"):
            share()
    assert path.read_bytes() == kept[:-1]


def test_a_file_that_is_damaged_later_is_told_and_left(path):
    memory = Memory(100)
    memory.share(path, every=EVERY)
    memory.insert("ann", [1])
    until(lambda: texts(Memory.open(path, 100), "ann") == [[1]])

    def fails_on_damage():
        # Again and again, as a last write of the memory may replace the file.
        path.with_name("damaged").write_bytes(b"damaged")
        path.with_name("damaged").replace(path)
        return memory.failure is not None

    until(fails_on_damage)
    assert "memory" in memory.failure
    assert path.read_bytes() == b"damaged"
    path.unlink()
    until(lambda: memory.failure is None)
    assert texts(Memory.open(path, 100), "ann") == [[1]], "nothing was lost"

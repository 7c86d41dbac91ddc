"""What programs that embed the package rely on: pickles, tokens in, texts of objects."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from operator import methodcaller

import numpy as np
import pytest

from specds import BuildOptions, FusedDrafter, build_from_token_ids
from specds.stats import GenerationStats


@pytest.fixture
def store(tmp_path):
    documents = (np.array(ids, np.uint16) for ids in ([0, 1, 2], [0, 1, 3]))
    return build_from_token_ids(documents, tmp_path / "d.specds", vocab_size=4)


def test_tokens_are_a_corpus(store, tmp_path):
    assert (store.num_documents, store.num_tokens, store.separator) == (2, 8, 4)
    assert store.count([0, 1]) == 2
    store.verify()
    with pytest.raises(FileExistsError):
        build_from_token_ids([[1]], store.path, vocab_size=4)
    replaced = build_from_token_ids(
        [[1], [1]], store.path, BuildOptions(overwrite=True), vocab_size=4, separator=0
    )
    assert (replaced.num_documents, replaced.separator) == (1, 0)
    with pytest.raises(ValueError, match="4"):
        build_from_token_ids([[4]], tmp_path / "e", vocab_size=4)


def test_a_datastore_goes_to_other_processes_by_its_path(store):
    assert pickle.loads(pickle.dumps(store)).path == store.path
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(methodcaller("count", [0, 1]), store).result(60) == 2


def test_a_drafter_says_what_it_is(store):
    text = repr(FusedDrafter(store))
    assert text.startswith(f"FusedDrafter(datastore='{store.path}', memory=Memory(")
    assert "FusedConfig(" in text
    assert repr(FusedDrafter()).startswith("FusedDrafter(FusedConfig(")


def test_statistics_are_a_sentence():
    stats = GenerationStats(total_s=0.5)
    assert str(stats) == "0 tokens in 0.50 s, 0/s; 0 passes, 1.0 tokens each"
    stats.record_draft(8, 3)
    stats.num_emitted_tokens = 5
    assert str(stats) == "5 tokens in 0.50 s, 10/s; 1 pass, 4.0 tokens each"
    assert stats.to_dict()["tokens_per_s"] == stats.tokens_per_s == 10
    assert GenerationStats().tokens_per_s == 0

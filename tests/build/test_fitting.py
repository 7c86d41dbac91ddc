"""The prior of a datastore: when there is one, that it does not depend on how the datastore came
about, and what becomes of a damaged one."""

import json
import shutil
from itertools import chain

import numpy as np
import pytest

from datastores import build, files, names
from replays import phrases, text_of
from specds import Datastore, FormatError, FusedDrafter
from specds.build import DatastoreBuilder, compact, merge
from specds.drafters import fit_weights, refit

VOCAB_SIZE = 50
# The fewest tokens that a prior is fitted to, and just as many documents as it takes.
PRIOR_TOKENS = 1024
RANDOM = np.random.default_rng(1)
PHRASES = phrases(RANDOM, 40, 9, VOCAB_SIZE)
DOCUMENTS = [text_of(RANDOM, PHRASES, 400) for _ in range(41)]


def stored(path, documents=DOCUMENTS, prior_tokens=PRIOR_TOKENS, **options):
    facts = {"vocab_size": VOCAB_SIZE, "separator": VOCAB_SIZE, "prior_tokens": prior_tokens}
    return build(path, documents, **facts, **options)


def append(path, documents, **options):
    facts = {"vocab_size": VOCAB_SIZE, "separator": VOCAB_SIZE, "append": True, **options}
    with DatastoreBuilder(path, **facts) as builder:
        for document in documents:
            builder.add_documents(document, [len(document)])
        return builder.finish()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("prior") / "d").path


@pytest.fixture
def path(made, tmp_path):
    """A copy of a datastore with a prior, and nothing beside it."""
    return shutil.copytree(made, tmp_path / "d")


def priors(path):
    return sorted(path.glob("prior-*.bin"))


def test_a_prior_is_a_file_that_the_manifest_names_and_drafters_start_from(path):
    store = Datastore(path)
    store.verify()
    (file,) = priors(path)
    entry = json.loads((path / "manifest.json").read_text())["prior"]
    assert file.name == f"prior-{entry['id']}.bin"
    assert (entry["num_tokens"], entry["num_bytes"]) == (PRIOR_TOKENS, file.stat().st_size)
    assert store.prior == file.read_bytes() == FusedDrafter(store).weights()
    assert store.prior != fit_weights(None, [])
    assert store.num_bytes == sum(map(len, files(path).values()))


@pytest.mark.parametrize(
    ("documents", "prior_tokens"),
    [
        (DOCUMENTS[:40], 1 << 40),  # too few tokens
        ([[*chain(*DOCUMENTS)], *DOCUMENTS[:14]], 1 << 40),  # too few documents
        (DOCUMENTS, PRIOR_TOKENS - 1),
        (DOCUMENTS, 0),
    ],
)
def test_too_small_a_datastore_has_no_prior(tmp_path, documents, prior_tokens):
    assert stored(tmp_path / "d", documents, prior_tokens).prior is None
    assert priors(tmp_path / "d") == []
    assert "prior" not in (tmp_path / "d" / "manifest.json").read_text()


def test_the_prior_depends_on_the_shards_and_not_on_how_they_came_about(tmp_path, path):
    fits = {"prior_tokens": PRIOR_TOKENS}
    assert stored(tmp_path / "cut", max_shard_tokens=2500).num_shards == 7
    one = compact(tmp_path / "cut", **fits)
    assert (one.num_shards, one.prior) == (1, Datastore(path).prior)
    for name, documents in (("a", DOCUMENTS[:20]), ("b", DOCUMENTS[20:])):
        stored(tmp_path / name, documents)
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c", **fits)
    assert append(tmp_path / "a", DOCUMENTS[20:], **fits).prior == merged.prior
    assert files(tmp_path / "a").keys() == files(tmp_path / "c").keys()


def test_what_is_added_is_fitted_to_and_readers_keep_what_they_have(path):
    old = Datastore(path)
    before = old.prior
    same = append(path, DOCUMENTS[:2], drop_duplicates=True, prior_tokens=0)
    assert same.prior == before, "nothing was added"
    new = append(path, [[7] * 1000, [8] * 1000], prior_tokens=PRIOR_TOKENS)
    assert new.prior != before == old.prior
    assert len(priors(path)) == 1, "the old one is gone"
    old.verify()


def test_a_damaged_prior_is_named_at_open_and_replaced_by_a_refit(path, tmp_path):
    (file,) = priors(path)
    whole = file.read_bytes()
    damaged = [whole[:length] for length in (0, 7, len(whole) - 1)]
    for place in range(0, len(whole), len(whole) // 64):
        damaged.append(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(FormatError, match=f"{file.name} has "):
            Datastore(path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=file.name):
        Datastore(path)
    assert refit(path, prior_tokens=PRIOR_TOKENS).prior == file.read_bytes() == whole
    assert refit(path, prior_tokens=0).prior is None
    assert priors(path) == []
    assert names(tmp_path) == ["d"], "nothing is left beside"


def test_a_fit_tells_how_far_it_is_and_one_that_is_stopped_changes_nothing(path, tmp_path):
    before, told = files(path), []

    def stop(stage, done, total):
        if stage == "prior" and done > 0:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        refit(path, prior_tokens=PRIOR_TOKENS, progress=stop)
    assert files(path) == before
    # A build has then published its datastore already.
    with (
        pytest.raises(InterruptedError),
        DatastoreBuilder(
            path,
            vocab_size=VOCAB_SIZE,
            separator=VOCAB_SIZE,
            overwrite=True,
            prior_tokens=PRIOR_TOKENS,
        ) as builder,
    ):
        builder.add_documents([*chain(*DOCUMENTS)], [400] * 41)
        builder.finish(stop)
    without = Datastore(path)
    without.verify()
    assert without.prior is None
    assert names(tmp_path) == ["d"]
    refit(path, prior_tokens=PRIOR_TOKENS)
    assert files(path) == before
    refit(path, prior_tokens=1 << 40, progress=lambda *now: told.append(now))
    total = without.num_tokens // 16
    assert (told[0], told[-1]) == (("prior", 0, total), ("prior", total, total))
    assert told == sorted(told)
    assert len(told) > 3

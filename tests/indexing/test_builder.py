"""The builder of the core: accepted and rejected input, leftovers, resuming."""

import json
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datastores import build, files, names
from specds import Datastore, FormatError
from specds.indexing import DatastoreBuilder, compact, merge

DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=7), min_size=1, max_size=11)
CASES = settings(max_examples=40)
FACTS = {"vocab_size": 4, "separator": 4}


def planned(path, max_shard_tokens=4, plan="a corpus", **options):
    sizes = {**FACTS, "max_shard_tokens": max_shard_tokens}
    return DatastoreBuilder(path, **(sizes | options), plan=plan)


def add(builder, documents):
    for document in documents:
        builder.add_documents(document, [len(document)])


def kill(builder):
    """End a build as a kill does: all files remain, and the lock is released."""
    staging = builder.staging_folder
    left = settled(staging)
    with builder:
        pass
    for name, content in left.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_bytes(content)
    staging.chmod(0o700)


def settled(folder):
    """Return the files of a folder once its shards are indexed, which is done in the background."""
    before = None
    while True:
        try:
            found = files(folder)
        except FileNotFoundError:  # a file was renamed meanwhile
            continue
        if found == before:
            return found
        before = found
        time.sleep(0.002)


def continuations(store, context):
    token_ids, counts = store.continuations(store.lookup(context), 10)
    return dict(zip(token_ids.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize(("tokens", "lengths"), [([1, 2, 3], [3]), ([], []), ([], [0, 0])])
def test_a_build_without_a_datastore_leaves_nothing(tmp_path, tokens, lengths):
    with DatastoreBuilder(tmp_path / "d", **FACTS) as builder:
        builder.add_documents(tokens, lengths)
        assert len(names(tmp_path)) == 1
        if not tokens:
            with pytest.raises(ValueError, match="the corpus is empty"):
                builder.finish()
    assert names(tmp_path) == []


def test_a_build_stopped_at_any_point_leaves_the_old_datastore(tmp_path):
    build(tmp_path / "d", [[1, 2]])
    options = {**FACTS, "max_shard_tokens": 4, "overwrite": True}
    calls, num_stopped = [], 0

    def stop(*told):
        calls.append(told)
        if len(calls) > num_stopped:
            raise KeyboardInterrupt

    while True:
        calls.clear()
        with DatastoreBuilder(tmp_path / "d", **options) as builder:
            builder.add_documents([3, 3, 3, 3], [2, 2])
            try:
                builder.finish(stop)
                break
            except KeyboardInterrupt:
                num_stopped += 1
        assert names(tmp_path) == ["d"]
        assert Datastore(tmp_path / "d").num_tokens == 3
    assert num_stopped > 5
    assert Datastore(tmp_path / "d").num_tokens == 6
    # Reported progress rises to its total in every stage.
    for stage, total in (("sort", 6), ("write", 6), ("sync", 2)):
        here = [(done, of) for name, done, of in calls if name == stage]
        assert here == sorted(here)
        assert {of for _, of in here} == {total}
        assert here[-1] == (total, total)


def test_existing_target_and_second_builder_are_rejected(tmp_path):
    path = tmp_path / "d"
    with DatastoreBuilder(path, **FACTS) as late:
        late.add_documents([3], [1])
        for plan in (None, "same"):
            with pytest.raises(BlockingIOError, match="is being written"):
                planned(path, plan=plan)
        path.write_text("a letter")
        with pytest.raises(FileExistsError):
            planned(path)
        with pytest.raises(FileExistsError):
            late.finish()
    assert path.read_text() == "a letter"
    assert names(tmp_path) == ["d"]


def test_overwriting_replaces_a_datastore_under_its_readers_and_nothing_else(tmp_path):
    options = {"max_shard_tokens": 4}
    readers = [build(tmp_path / "d", [[1, n], [3, 3]], **options) for n in (2, 3)]
    assert [continuations(reader, [1]) for reader in readers] == [{2: 1}, {3: 1}]
    assert len(names(tmp_path / "d")) == 3, "a manifest and two shards"
    manifest = tmp_path / "d" / "manifest.json"
    newer = manifest.read_text().replace('"format_version": 5', '"format_version": 99')
    manifest.write_text(newer)
    with pytest.raises(FormatError, match="99"):
        Datastore(tmp_path / "d")
    build(tmp_path / "d", [[1, 3]]).verify()
    (tmp_path / "file").write_text("a letter")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "manifest.json").write_text('{"format": "other"}')
    for name in ("file", "folder"):
        with pytest.raises(FormatError, match="is not a datastore"):
            build(tmp_path / name, [[1]])
    assert names(tmp_path) == ["d", "file", "folder"]


def test_rejected_call_adds_nothing_and_the_build_continues(tmp_path):
    rows = [
        ([1, 4], [2], "token 4 is outside the vocabulary of 4"),
        ([1, 2**32 - 1], [1, 1], "token 4294967295"),
        ([1, 2], [1], "`lengths` must add up to the number of tokens, 2"),
        ([1, 2], [1, 2], "`lengths`"),
        ([1, 2], [], "`lengths`"),
        ([1, 2], [2**62, 3], "`lengths`"),
        ([1, 2, 1, 2, 3, 1], [2, 4], "a document takes 5 tokens, separator included, and a shard"),
    ]
    with DatastoreBuilder(tmp_path / "d", **FACTS, max_shard_tokens=4) as builder:
        builder.add_documents([1, 2], [1, 1])
        for tokens, lengths, message in rows:
            with pytest.raises(ValueError, match=message):
                builder.add_documents(tokens, lengths)
            assert (builder.num_tokens, builder.num_documents) == (4, 2)
        with pytest.raises(ValueError, match="`sources` must be one for each of the 1 doc"):
            builder.add_documents([1], [1], ["a", "b"])
        builder.add_documents([3, 1, 3], [0, 3, 0])
        store = builder.finish()
    assert (store.num_tokens, store.num_documents, store.num_shards) == (8, 3, 2)
    store.verify()


def test_unusable_options_are_named_in_the_error(tmp_path):
    for argument, change in (
        ("vocab_size", {"vocab_size": 0}),
        ("vocab_size", {"vocab_size": 2**24}),
        ("separator", {"separator": 5}),
        ("max_shard_tokens", {"max_shard_tokens": 1}),
        ("max_shard_tokens", {"max_shard_tokens": 1 << 31}),
    ):
        with pytest.raises(ValueError, match=f"^`{argument}`"):
            DatastoreBuilder(tmp_path / "d", **(FACTS | change))
    with pytest.raises(FileExistsError):
        DatastoreBuilder("/", **FACTS)
    with pytest.raises(FileNotFoundError, match=r"no'$"):
        DatastoreBuilder(tmp_path / "no" / "d", **FACTS)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("vocab_size", "separator", "bits"),
    [(1, 0, 16), (65_536, 65_535, 16), (65_536, 65_536, 24), (65_537, 0, 24)],
)
def test_tokens_are_as_wide_as_the_vocabulary_needs(tmp_path, vocab_size, separator, bits):
    store = build(tmp_path / "d", [[vocab_size - 1]], vocab_size=vocab_size, separator=separator)
    (tokens,) = store.path.glob("shard-*/tokens.bin")
    assert tokens.stat().st_size == 2 * bits // 8 + 8
    store.verify()


@pytest.mark.parametrize(("vocab_size", "bytes_a_token"), [(100, 4), (70_000, 8)])
def test_memory_bounds_the_shards(tmp_path, vocab_size, bytes_a_token):
    """The sort takes 2 MiB, and 4 bytes a token (8 where tokens have 24 bits)."""
    for num_tokens, num_shards in ((4000, 1), (3999, 2), (2000, 2), (1000, 4)):
        options = {"max_memory": (2 << 20) + bytes_a_token * num_tokens, "vocab_size": vocab_size}
        store = build(tmp_path / "d", [[1] * 999] * 4, separator=99, **options)
        assert store.num_shards == num_shards


# Killed and resumed builds ----------------------------------------------------------------


@CASES
@given(DOCUMENTS, st.lists(st.integers(0, 11), max_size=3), st.booleans())
def test_killed_build_resumes_to_the_same_bytes(
    tmp_path_factory, documents, kills, drop_duplicates
):
    folder, options = tmp_path_factory.mktemp("killed"), {"drop_duplicates": drop_duplicates}
    for stop in kills:
        builder = planned(folder / "d", 12, **options)
        assert builder.num_given <= len(documents)
        add(builder, documents[builder.num_given : stop])
        kill(builder)
    with planned(folder / "d", 12, **options) as builder:
        add(builder, documents[builder.num_given :])
        if not any(documents):
            with pytest.raises(ValueError, match="the corpus is empty"):
                builder.finish()
            return
        builder.finish().verify()
    with planned(folder / "other", 12, **options) as builder:
        add(builder, documents)
        builder.finish()
    assert files(folder / "d") == files(folder / "other")


def test_killed_build_resumes_at_its_last_checkpoint(tmp_path):
    documents = [[(i * j + j // 7) % 4 for j in range(200_000)] for i in range(3)] * 17
    builder = planned(tmp_path / "d", 1 << 30)
    add(builder, documents[:45])
    kill(builder)
    with planned(tmp_path / "d", 1 << 30) as builder:
        assert (builder.num_given, builder.num_tokens) == (42, 42 * 200_001)
        add(builder, documents[42:])
        ours = builder.finish()
    other = build(tmp_path / "other", documents)
    manifests = [json.loads((store.path / "manifest.json").read_text()) for store in (ours, other)]
    assert manifests[0]["shards"] == manifests[1]["shards"]


OTHER_PLANS = [{"max_shard_tokens": 5}, {"plan": "another corpus"}, {"plan": None}]


@pytest.mark.parametrize("other", [*OTHER_PLANS, {"drop_duplicates": True}, {}], ids=str)
def test_build_with_another_plan_or_without_one_starts_again(tmp_path, other):
    builder = planned(tmp_path / "d")
    add(builder, [[1, 2], [1, 2], [3]])
    kill(builder)
    with planned(tmp_path / "d", **other) as builder:
        assert builder.num_given == (0 if other else 2)


REPEATED = [[1, 2], [3], [1, 2], [1], [2], [3]]


@pytest.mark.parametrize(
    ("max_documents", "max_tokens", "num_documents"),
    [(2, 100, 2), (3, 100, 3), (100, 5, 2), (100, 6, 2), (100, 7, 3), (100, 2, 0)],
)
@pytest.mark.parametrize("killed_at", [0, 2, 4])
def test_limits_are_exact_after_a_kill_and_ignore_duplicates(
    tmp_path, max_documents, max_tokens, num_documents, killed_at
):
    options = {"max_documents": max_documents, "max_tokens": max_tokens, "drop_duplicates": True}
    builder = planned(tmp_path / "d", 3, **options)
    add(builder, REPEATED[:killed_at])
    kill(builder)
    with planned(tmp_path / "d", 3, **options) as builder:
        add(builder, REPEATED[builder.num_given :])
        assert builder.is_full
        assert builder.num_documents == num_documents
        assert builder.num_tokens <= max_tokens
    for drop_duplicates, kept in ((False, 6), (True, 4)):
        with DatastoreBuilder(tmp_path / "e", **FACTS, drop_duplicates=drop_duplicates) as builder:
            add(builder, REPEATED)
            told = builder.num_given, builder.num_documents, builder.num_duplicates
            assert told == (6, kept, 6 - kept)


# Datastores that are there ------------------------------------------------------------------------


def append(path, documents, **options):
    with DatastoreBuilder(path, **FACTS, append=True, corpus=["later"], **options) as builder:
        add(builder, documents)
        return builder.finish()


def test_appended_documents_are_new_shards_that_open_readers_do_not_see(tmp_path):
    old = build(tmp_path / "d", [[1, 2], [3]], corpus=["a\tline"])
    new = append(tmp_path / "d", [[1, 3], [3]])
    new.verify()
    assert (new.num_documents, new.num_shards, new.corpus) == (4, 2, ["a\tline", "later"])
    before = files(tmp_path / "d")
    append(tmp_path / "d", [[3], [1, 3]], drop_duplicates=True)
    assert files(tmp_path / "d") == before, "what is there is not added again"
    assert [continuations(store, [1]) for store in (old, new)] == [{2: 1}, {2: 1, 3: 1}]


def test_appending_and_merging_need_datastores_of_the_same_tokenizer(tmp_path):
    with pytest.raises(FileNotFoundError):
        append(tmp_path / "d", [[1]])
    with pytest.raises(FormatError, match="is not a datastore"):
        append(tmp_path, [[1]])
    for name, change in (("a", {}), ("b", {"separator": 3}), ("c", {"tokenizer_name": "x"})):
        build(tmp_path / name, [[1, 2]], tokenizer_fingerprint=name, **change)
    before = files(tmp_path)
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="of another tokenizer"):
            append(tmp_path / name, [[1]])
    for sources, out, error in (
        ("ab", "d", ValueError),
        ("ac", "d", ValueError),
        (["a", "none"], "d", FileNotFoundError),
        ("", "d", ValueError),
        ("a", "b", FileExistsError),
    ):
        with pytest.raises(error):
            merge([tmp_path / name for name in sources], tmp_path / out)
    assert files(tmp_path) == before


def test_merged_datastore_has_each_shard_once_even_if_it_was_a_source(tmp_path):
    small = {"max_shard_tokens": 4, "corpus": ["one line"]}
    sources = [tmp_path / "a", tmp_path / "b"]
    for path, documents in zip(sources, ([[1, 2], [1, 2, 3]], [[1, 2, 3], [3]]), strict=True):
        old = build(path, documents, **small)
    merged = merge(sources, tmp_path / "c")
    merged.verify()
    assert (merged.num_shards, merged.num_documents, merged.corpus) == (3, 3, ["one line"])
    assert merge(sources, tmp_path / "b", overwrite=True).num_documents == 3
    old.verify()
    for path in sources:
        shutil.rmtree(path)
    assert continuations(merged, [1, 2]) == {3: 1}
    Datastore(tmp_path / "c").verify()


@CASES
@given(DOCUMENTS, st.integers(9, 19), st.integers(9, 59), st.booleans())
def test_compacted_datastore_equals_that_of_one_build(
    tmp_path_factory, documents, before, after, drop_duplicates
):
    folder, documents = tmp_path_factory.mktemp("compacted"), [*documents, [0]]
    build(folder / "d", documents, max_shard_tokens=before)
    options = {"max_shard_tokens": after, "drop_duplicates": drop_duplicates}
    compact(folder / "d", **options).verify()
    build(folder / "other", documents, **options)
    assert files(folder / "d") == files(folder / "other")
    written = (folder / "d" / "manifest.json").stat().st_mtime_ns
    is_one = compact(folder / "d", max_shard_tokens=after).num_shards == 1
    assert not is_one or written == (folder / "d" / "manifest.json").stat().st_mtime_ns
    assert files(folder / "d") == files(folder / "other")


def test_compaction_serves_its_readers_and_resumes_after_a_stop(tmp_path):
    path, expected = tmp_path / "d", {2: 2, 3: 1}
    old = build(path, [[1, 2], [1, 3], [1, 2]], max_shard_tokens=3)
    before, asked = files(path), []

    def stop(*_):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        compact(path, max_shard_tokens=6, progress=stop)
    assert files(path) == before
    assert compact(path, max_shard_tokens=6).num_shards == 2
    new = compact(path, progress=lambda *_: asked.append(continuations(Datastore(path), [1])))
    assert len(asked) > 2
    assert all(found == expected for found in asked)
    assert (old.num_shards, new.num_shards) == (3, 1)
    assert continuations(old, [1]) == continuations(new, [1]) == expected
    old.verify()


SOURCES = st.lists(st.text(max_size=300) | st.sampled_from(["", "a/b.py", "a/b.py:1"]))


@given(DOCUMENTS, SOURCES, st.integers(0, 12), st.booleans())
@CASES
def test_source_of_each_document_survives_kills_merge_and_compaction(
    folder, documents, sources, num_added, drops
):
    documents = [document for document in documents if document] or [[1]]
    sources = (sources + [""] * len(documents))[: len(documents)]
    expected = [source.replace("\n", " ") for source in sources]
    if drops:
        first = {str(d): s for d, s in reversed([*zip(documents, expected, strict=True)])}
        expected = [first[text] for text in dict.fromkeys(map(str, documents))]

    def of(store):
        return [store.source(index) for index in range(store.num_documents)]

    def add_from(builder, begin, end):
        for document, source in [*zip(documents, sources, strict=True)][begin:end]:
            builder.add_documents(document, [len(document)], [source])

    for path in (folder / "d", folder / ".d.build"):
        shutil.rmtree(path, ignore_errors=True)
    options = {"max_shard_tokens": 9, "drop_duplicates": drops, "overwrite": True}
    killed = planned(folder / "d", **options)
    add_from(killed, 0, num_added)
    kill(killed)
    with planned(folder / "d", **options) as builder:
        add_from(builder, builder.num_given, None)
        store = builder.finish()
    store.verify()
    assert of(store) == expected
    others = [store.path, build(folder / "e", [[0] * 8]).path]
    merged = of(merge(others, folder / "m", overwrite=True))
    if len(merged) > len(expected):  # equal shards are merged into one
        assert merged == [*expected, ""]
    compacted = compact(folder / "m")
    compacted.verify()
    assert of(compacted) == merged


# The same corpus gives the same bytes. If the format changes on purpose: raise `FORMAT_VERSION` and
# replace this datastore.
GOLDEN = Path(__file__).parent.parent / "data" / "format-5.specds"
NAMED = {"tokenizer_name": 'naïve "tokenizer"', "tokenizer_fingerprint": "f00d"}
NAMED |= {"corpus": ["a\tline", "another"]}


def test_the_golden_datastore_answers_and_is_built_again_to_the_byte(tmp_path):
    store = Datastore(GOLDEN)
    store.verify()
    assert store.lookup([99, 1, 2]).count == 2
    assert continuations(store, [99, 1, 2]) == {4: 1, 99: 1}
    # Two shards of two keys.
    documents = [[i * i % 97 for i in range(300)], [1, 2, 99, 3], [1, 2, 4], [5] * 300]
    options = {"vocab_size": 100, "separator": 99, "max_shard_tokens": 306, **NAMED}
    build(tmp_path / "d", documents, **options)
    assert files(tmp_path / "d") == files(GOLDEN)


def test_a_datastore_of_wide_tokens_has_the_golden_build_id(tmp_path):
    """It hashes the checksums of all sections, so it stands for a quarter of a megabyte."""
    documents, wide = [[1, 65_999, 2], [65_999, 2, 3]], {"vocab_size": 66_000, "separator": 66_000}
    store = build(tmp_path / "d", documents, **wide, **NAMED)
    manifest = json.loads((store.path / "manifest.json").read_text())
    assert manifest["build_id"] == "1da50a8f9e4c928109014782b12cbf13"

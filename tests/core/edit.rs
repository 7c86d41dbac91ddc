//! Joining datastores, and rebuilding their shards.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::Error;
use specds::build::DatastoreOptions;
use specds::build::{compact, merge};
use specds::lookup::Datastore;
use specds::storage::MAX_SHARD_TOKENS;

use crate::files::{names, read_all};
use crate::{build, compacted, few, options, small, tempdir};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_compacted_datastore_is_that_of_one_build(
        documents in vec(vec(0_u32..4, 1..8), 1..12),
        before in 9_u64..20,
        after in 9_u64..60,
        drop_duplicates: bool,
    ) {
        let folder = tempdir().unwrap();
        let (path, other) = (folder.path().join("d"), folder.path().join("other"));
        build(&path, small(before), &documents).unwrap();
        compacted(&path, after, drop_duplicates).unwrap().verify().unwrap();
        let options = DatastoreOptions { drop_duplicates, ..small(after) };
        build(&other, options, &documents).unwrap();
        prop_assert_eq!(read_all(&path), read_all(&other));
        let manifest = fs::metadata(path.join("manifest.json")).unwrap().modified().unwrap();
        compacted(&path, after, false).unwrap();
        let again = fs::metadata(path.join("manifest.json")).unwrap().modified().unwrap();
        let is_one = Datastore::open(&path).unwrap().manifest().shards.len() == 1;
        prop_assert!(!is_one || manifest == again, "a single shard is left alone");
        prop_assert_eq!(read_all(&path), read_all(&other));
    }
}

#[test]
fn readers_of_the_old_shards_go_on_while_and_after_they_are_compacted() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let old = build(&path, small(3), &[vec![1, 2], vec![1, 3], vec![1, 2]]).unwrap();
    let asked = |datastore: &Datastore| {
        let found = datastore.lookup(&[1], 16, 1).unwrap();
        datastore.continuations(&found, 10)
    };
    let mut num_reports = 0;
    let mut report = |_, _, _| {
        num_reports += 1;
        assert_eq!(asked(&Datastore::open(&path).unwrap()), [(2, 2), (3, 1)]);
        Ok(())
    };
    let new = compact(&path, few(MAX_SHARD_TOKENS, false), &mut report).unwrap();
    assert!(num_reports > 2);
    assert_eq!(
        (old.manifest().shards.len(), new.manifest().shards.len()),
        (3, 1)
    );
    assert_eq!(asked(&old), asked(&new));
    old.verify().unwrap();
}

#[test]
fn a_merged_datastore_has_all_shards_once_also_where_it_was_a_source() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    build(&path("a"), small(4), &[vec![1, 2], vec![1, 2, 3]]).unwrap();
    build(&path("b"), small(4), &[vec![1, 2, 3], vec![3]]).unwrap();
    let merged = merge(&[path("a"), path("b")], path("c"), false).unwrap();
    merged.verify().unwrap();
    assert_eq!(merged.manifest().shards.len(), 3);
    assert_eq!(merged.num_documents(), 3);
    assert_eq!(
        merged.manifest().corpus,
        ["a\tline", "another"],
        "each line once"
    );
    let (old, added) = (Datastore::open(path("b")).unwrap(), [path("a"), path("b")]);
    assert_eq!(merge(&added, path("b"), true).unwrap().num_documents(), 3);
    old.verify().unwrap();
    for source in added {
        fs::remove_dir_all(source).unwrap();
    }
    let found = merged.lookup(&[1, 2], 16, 1).unwrap();
    assert_eq!(merged.continuations(&found, 10), [(3, 1)]);
    Datastore::open(path("c")).unwrap().verify().unwrap();
}

#[test]
fn what_cannot_be_merged_is_refused_and_nothing_is_left() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    build(&path("a"), options(4, 4), &[vec![1, 2]]).unwrap();
    build(&path("b"), options(4, 3), &[vec![1, 2]]).unwrap();
    let other = DatastoreOptions {
        tokenizer_fingerprint: "another".to_owned(),
        ..options(4, 4)
    };
    build(&path("c"), other, &[vec![1, 2]]).unwrap();
    for other in ["b", "c"] {
        let error = merge(&[path("a"), path(other)], path("d"), false).unwrap_err();
        assert!(
            matches!(&error, Error::OtherTokenizer { path: named, .. } if *named == path(other)),
            "{error}"
        );
    }
    let error = merge(&[path("a"), path("none")], path("d"), false).unwrap_err();
    assert!(matches!(error, Error::Io { .. }));
    let error = merge(&[] as &[&Path], path("d"), false).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }));
    let error = merge(&[path("a")], path("b"), false).unwrap_err();
    assert!(matches!(error, Error::Exists(_)));
    assert_eq!(names(folder.path()), ["a", "b", "c"]);
}

#[test]
fn a_stopped_compaction_leaves_the_old_shards_and_is_taken_up() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    build(&path, small(3), &[vec![1, 2], vec![1, 3], vec![1, 2]]).unwrap();
    let before = read_all(&path);
    let stopped = compact(&path, few(6, false), &mut |_, _, _| {
        Err(specds::Error::Stopped)
    });
    let error = stopped.unwrap_err();
    assert!(matches!(error, Error::Stopped));
    assert_eq!(read_all(&path), before);
    assert_eq!(
        compacted(&path, 6, false).unwrap().manifest().shards.len(),
        2
    );
}

//! Builds that were killed and go on, and documents that come to a datastore later.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::build::{DatastoreBuilder, DatastoreOptions, Existing};
use specds::lookup::Datastore;
use specds::{Error, Result};

use crate::files::{names, read_all, write_all};
use crate::{build, options, silent, tempdir};

fn planned(max_shard_tokens: u64) -> DatastoreOptions {
    DatastoreOptions {
        max_shard_tokens,
        plan: Some("a corpus".to_owned()),
        ..options(4, 4)
    }
}

fn add(builder: &mut DatastoreBuilder, documents: &[Vec<u32>]) -> Result<()> {
    documents
        .iter()
        .try_for_each(|document| builder.add_documents(document, &[document.len()]))
}

/// Ends a build as a kill does: nothing is tidied up, but the lock is gone.
fn kill(builder: DatastoreBuilder) {
    let staging = builder.staging_folder().to_owned();
    let files = read_all(&staging);
    drop(builder);
    let _ = fs::remove_dir_all(&staging);
    write_all(&staging, &files);
}

fn documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    vec(vec(0_u32..4, 0..8), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_killed_build_goes_on_to_the_same_bytes(
        documents in documents(),
        kills in vec(0_usize..12, 0..4),
        drop_duplicates: bool,
    ) {
        let folder = tempdir().unwrap();
        let (path, other) = (folder.path().join("d"), folder.path().join("other"));
        let options = DatastoreOptions { drop_duplicates, ..planned(12) };
        for kill_at in kills {
            let mut builder = DatastoreBuilder::create(&path, options.clone()).unwrap();
            let given = usize::try_from(builder.num_given()).unwrap();
            prop_assert!(given <= documents.len());
            add(&mut builder, &documents[given..kill_at.clamp(given, documents.len())]).unwrap();
            kill(builder);
        }
        let mut builder = DatastoreBuilder::create(&path, options.clone()).unwrap();
        let given = usize::try_from(builder.num_given()).unwrap();
        add(&mut builder, &documents[given..]).unwrap();
        let finished = builder.finish(&mut silent);
        let undisturbed = build(&other, options, &documents);
        match (finished, undisturbed) {
            (Ok(finished), Ok(undisturbed)) => {
                finished.verify().unwrap();
                prop_assert_eq!(&finished.manifest().build_id, &undisturbed.manifest().build_id);
                prop_assert_eq!(read_all(&path), read_all(&other));
            }
            (Err(Error::EmptyCorpus), Err(Error::EmptyCorpus)) => {}
            (finished, undisturbed) => panic!("{finished:?} {undisturbed:?}"),
        }
    }
}

#[test]
fn a_text_is_taken_up_at_its_last_checkpoint() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let documents: Vec<Vec<u32>> = (0..50)
        .map(|i| (0..200_000).map(|j| (i * j + j / 7) % 4).collect())
        .collect();
    let mut builder = DatastoreBuilder::create(&path, planned(1 << 30)).unwrap();
    add(&mut builder, &documents[..45]).unwrap();
    kill(builder);
    let mut builder = DatastoreBuilder::create(&path, planned(1 << 30)).unwrap();
    assert_eq!(builder.num_given(), 42);
    assert_eq!(builder.num_tokens(), 42 * 200_001);
    add(&mut builder, &documents[42..]).unwrap();
    let datastore = builder.finish(&mut silent).unwrap();
    let other = build(&folder.path().join("other"), planned(1 << 30), &documents).unwrap();
    assert_eq!(datastore.manifest(), other.manifest());
}

#[test]
fn a_build_of_another_plan_or_without_one_begins_anew() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let others = [
        planned(5),
        DatastoreOptions {
            plan: Some("another corpus".to_owned()),
            ..planned(4)
        },
        DatastoreOptions {
            plan: None,
            ..planned(4)
        },
        DatastoreOptions {
            drop_duplicates: true,
            ..planned(4)
        },
    ];
    for other in others {
        let mut builder = DatastoreBuilder::create(&path, planned(4)).unwrap();
        add(&mut builder, &[vec![1, 2], vec![1, 2], vec![3]]).unwrap();
        kill(builder);
        let builder = DatastoreBuilder::create(&path, other).unwrap();
        assert_eq!(builder.num_given(), 0);
    }
    let mut builder = DatastoreBuilder::create(&path, planned(4)).unwrap();
    add(&mut builder, &[vec![1, 2], vec![1, 2], vec![3]]).unwrap();
    kill(builder);
    let builder = DatastoreBuilder::create(&path, planned(4)).unwrap();
    assert_eq!(builder.num_given(), 2);
}

#[test]
fn duplicates_are_left_out_and_limits_hold_exactly_also_after_a_kill() {
    let folder = tempdir().unwrap();
    let documents = [vec![1, 2], vec![3], vec![1, 2], vec![1], vec![2], vec![3]];
    for (drop_duplicates, num_documents) in [(false, 6), (true, 4)] {
        let options = DatastoreOptions {
            drop_duplicates,
            ..options(4, 4)
        };
        let path = folder.path().join(num_documents.to_string());
        let mut builder = DatastoreBuilder::create(&path, options).unwrap();
        add(&mut builder, &documents).unwrap();
        assert_eq!(builder.num_given(), 6);
        assert_eq!(builder.num_documents(), num_documents);
        assert_eq!(builder.num_duplicates(), 6 - num_documents);
    }
    // (max_documents, max_tokens) -> documents that are added; duplicates do not count.
    let rows = [
        (2, 100, 2),
        (3, 100, 3),
        (100, 5, 2),
        (100, 6, 2),
        (100, 7, 3),
        (100, 2, 0),
    ];
    for (row, (max_documents, max_tokens, num_documents)) in rows.into_iter().enumerate() {
        for killed_at in [0, 2, 4] {
            let path = folder.path().join(format!("{row}-{killed_at}"));
            let options = DatastoreOptions {
                max_documents,
                max_tokens,
                drop_duplicates: true,
                ..planned(3)
            };
            let mut builder = DatastoreBuilder::create(&path, options.clone()).unwrap();
            add(&mut builder, &documents[..killed_at]).unwrap();
            kill(builder);
            let mut builder = DatastoreBuilder::create(&path, options).unwrap();
            let given = usize::try_from(builder.num_given()).unwrap();
            add(&mut builder, &documents[given..]).unwrap();
            assert!(builder.is_full());
            assert_eq!(builder.num_documents(), num_documents, "row {row}");
            assert!(builder.num_tokens() <= max_tokens);
        }
    }
}

fn append(path: &Path, documents: &[Vec<u32>], drop_duplicates: bool) -> Result<Datastore> {
    let options = DatastoreOptions {
        existing: Existing::Append,
        corpus: vec!["later".to_owned()],
        drop_duplicates,
        ..options(4, 4)
    };
    build(path, options, documents)
}

#[test]
fn appended_documents_are_shards_of_their_own_under_readers_of_the_old() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let old = build(&path, options(4, 4), &[vec![1, 2], vec![3]]).unwrap();
    let new = append(&path, &[vec![1, 3], vec![3]], false).unwrap();
    assert_eq!(new.num_documents(), 4);
    assert_eq!(new.manifest().shards.len(), 2);
    assert_eq!(new.manifest().shards[0], old.manifest().shards[0]);
    assert_eq!(new.manifest().corpus, ["a\tline", "another", "later"]);
    new.verify().unwrap();
    let again = append(&path, &[vec![3], vec![1, 3]], true).unwrap();
    assert_eq!(
        again.manifest(),
        new.manifest(),
        "what is there is not added again"
    );
    for (datastore, next) in [(old, vec![(2, 1)]), (new, vec![(2, 1), (3, 1)])] {
        let found = datastore.lookup(&[1], 16, 1).unwrap();
        assert_eq!(datastore.continuations(&found, 10), next);
    }
}

#[test]
fn appending_needs_a_datastore_of_the_same_tokenizer() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    assert!(matches!(
        append(&path, &[vec![1]], true),
        Err(Error::Io { .. })
    ));
    build(&path, options(4, 3), &[vec![1, 2]]).unwrap();
    let before = read_all(&path);
    let error = append(&path, &[vec![1]], true).unwrap_err();
    assert!(matches!(error, Error::OtherTokenizer { .. }), "{error}");
    assert_eq!(read_all(&path), before);
    let error = append(folder.path(), &[vec![1]], true).unwrap_err();
    assert!(matches!(error, Error::NotADatastore(_)));
    assert_eq!(names(folder.path()), ["d"]);
}

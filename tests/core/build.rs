//! The builder: what it takes, what it refuses, and what it leaves behind.

use std::fs;
use std::path::PathBuf;

use specds::Error;
use specds::build::{DatastoreBuilder, DatastoreOptions, Existing};
use specds::index::Stage;
use specds::lookup::Datastore;
use specds::storage::MAX_VOCAB_SIZE;

use crate::files::names;
use crate::{build, options, refusal, silent, small, tempdir};

/// A file of the datastore's first shard.
fn shard_file(datastore: &Datastore, name: &str) -> PathBuf {
    let id = &datastore.manifest().shards[0].id;
    datastore.path().join(format!("shard-{id}")).join(name)
}

/// Whether a build is dropped, or its corpus has no tokens.
#[test]
fn a_build_without_a_datastore_leaves_nothing() {
    let folder = tempdir().unwrap();
    for (tokens, lengths) in [
        (vec![1, 2, 3], vec![3]),
        (vec![], vec![]),
        (vec![], vec![0, 0]),
    ] {
        let mut builder = DatastoreBuilder::create(folder.path().join("d"), options(4, 4)).unwrap();
        builder.add_documents(&tokens, &lengths).unwrap();
        assert_eq!(names(folder.path()).len(), 1);
        if tokens.is_empty() {
            let finished = builder.finish(&mut silent);
            assert!(matches!(finished, Err(Error::EmptyCorpus)));
        } else {
            drop(builder);
        }
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn a_build_stopped_at_any_point_leaves_the_old_datastore() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    build(&path, options(4, 4), &[vec![1, 2]]).unwrap();
    let mut calls = 0;
    for last in 0.. {
        let options = DatastoreOptions {
            existing: Existing::Replace,
            ..small(4)
        };
        let mut builder = DatastoreBuilder::create(&path, options).unwrap();
        builder.add_documents(&[3, 3, 3, 3], &[2, 2]).unwrap();
        calls = 0;
        let finished = builder.finish(&mut |_, _, _| {
            calls += 1;
            if calls > last {
                Err(specds::Error::Stopped)
            } else {
                Ok(())
            }
        });
        let Err(error) = finished else { break };
        assert!(matches!(error, Error::Stopped));
        assert_eq!(names(folder.path()), ["d"]);
        assert_eq!(Datastore::open(&path).unwrap().num_tokens(), 3);
    }
    assert!(calls > 5);
    assert_eq!(names(folder.path()), ["d"]);
    assert_eq!(Datastore::open(&path).unwrap().num_tokens(), 6);
}

#[test]
fn progress_rises_to_the_total_in_every_stage() {
    let folder = tempdir().unwrap();
    let mut builder = DatastoreBuilder::create(folder.path().join("d"), small(5)).unwrap();
    builder.add_documents(&[1; 12], &[3, 3, 3, 3]).unwrap();
    let mut heard = Vec::new();
    let mut progress = |stage, done, total| {
        heard.push((stage, done, total));
        Ok(())
    };
    builder.finish(&mut progress).unwrap();
    for (stage, total) in [(Stage::Sort, 16), (Stage::Write, 16), (Stage::Sync, 4)] {
        let here: Vec<_> = heard.iter().filter(|(other, ..)| *other == stage).collect();
        assert!(here.iter().all(|&&(_, done, of)| done <= of && of == total));
        assert!(here.is_sorted_by_key(|(_, done, _)| done));
        assert_eq!(here.last().unwrap().1, total, "{}", stage.name());
    }
}

#[test]
fn what_is_there_is_refused_at_once_and_at_the_end_and_so_is_a_second_builder() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let created = |plan| {
        let options = DatastoreOptions {
            plan,
            ..options(4, 4)
        };
        DatastoreBuilder::create(&path, options)
    };
    let mut late = created(None).unwrap();
    late.add_documents(&[3], &[1]).unwrap();
    for plan in [None, Some("same".to_owned())] {
        let error = created(plan).unwrap_err();
        assert!(matches!(error, Error::Locked(named) if named == path));
    }
    fs::write(&path, "a letter").unwrap();
    assert!(matches!(created(None), Err(Error::Exists(_))));
    let error = late.finish(&mut silent).unwrap_err();
    assert!(matches!(error, Error::Exists(named) if named == path));
    assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
    assert_eq!(names(folder.path()), ["d"]);
}

#[test]
fn overwriting_replaces_a_datastore_under_its_readers_and_nothing_else() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let overwrite = || DatastoreOptions {
        existing: Existing::Replace,
        ..small(4)
    };
    let old = build(&path("d"), overwrite(), &[vec![1, 2], vec![3, 3]]).unwrap();
    let new = build(&path("d"), overwrite(), &[vec![1, 3], vec![3, 3]]).unwrap();
    for (datastore, next) in [(old, 2), (new, 3)] {
        let found = datastore.lookup(&[1], 16, 1).unwrap();
        assert_eq!(datastore.continuations(&found, 10), [(next, 1)]);
    }
    assert_eq!(names(&path("d")).len(), 3, "a manifest and two shards");

    let manifest = path("d").join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let newer = text.replace("\"format_version\": 3", "\"format_version\": 99");
    fs::write(&manifest, newer).unwrap();
    let datastore = build(&path("d"), overwrite(), &[vec![1, 3]]).unwrap();
    datastore.verify().unwrap();

    fs::write(path("file"), "a letter").unwrap();
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("folder/manifest.json"), "{\"format\": \"other\"}").unwrap();
    for name in ["file", "folder"] {
        let error = DatastoreBuilder::create(path(name), overwrite()).unwrap_err();
        assert!(matches!(error, Error::NotADatastore(_)));
    }
    assert_eq!(names(folder.path()), ["d", "file", "folder"]);
}

#[test]
fn a_refused_call_adds_nothing_and_the_build_goes_on() {
    let folder = tempdir().unwrap();
    let mut builder = DatastoreBuilder::create(folder.path().join("d"), small(4)).unwrap();
    builder.add_documents(&[1, 2], &[1, 1]).unwrap();
    let rows: [(&[u32], &[usize], &str); 7] = [
        (&[1, 4], &[2], "token 4 is outside the vocabulary of 4"),
        (&[1, u32::MAX], &[1, 1], "token 4294967295"),
        (
            &[1, 2],
            &[1],
            "`lengths` must add up to the number of tokens, 2",
        ),
        (&[1, 2], &[1, 2], "`lengths`"),
        (&[1, 2], &[], "`lengths`"),
        (&[1, 2], &[usize::MAX, 3], "`lengths`"),
        (
            &[1, 2, 1, 2, 3, 1],
            &[2, 4],
            "a document takes 5 tokens, separator included, and a shard holds 4",
        ),
    ];
    for (tokens, lengths, message) in rows {
        let refused = refusal(builder.add_documents(tokens, lengths));
        assert!(refused.contains(message), "{refused}");
        assert_eq!((builder.num_tokens(), builder.num_documents()), (4, 2));
    }
    builder.add_documents(&[3, 1, 3], &[0, 3, 0]).unwrap();
    let datastore = builder.finish(&mut silent).unwrap();
    assert_eq!((datastore.num_tokens(), datastore.num_documents()), (8, 3));
    assert_eq!(datastore.manifest().shards.len(), 2);
    datastore.verify().unwrap();
}

#[test]
fn unusable_options_are_refused_by_name() {
    let folder = tempdir().unwrap();
    let rows = [
        ("vocab_size", options(0, 0)),
        ("vocab_size", options(MAX_VOCAB_SIZE + 1, 0)),
        ("separator", options(4, 5)),
        ("max_shard_tokens", small(1)),
        ("max_shard_tokens", small(1 << 31)),
    ];
    for (argument, options) in rows {
        let refused = refusal(DatastoreBuilder::create(folder.path().join("d"), options));
        assert!(refused.starts_with(&format!("`{argument}`")), "{refused}");
    }
    let error = DatastoreBuilder::create("/", options(4, 4)).unwrap_err();
    assert!(matches!(error, Error::Exists(_)));
    let error = DatastoreBuilder::create(folder.path().join("no/d"), options(4, 4)).unwrap_err();
    assert!(matches!(error, Error::Io { path, .. } if path == folder.path().join("no")));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn tokens_are_as_wide_as_the_vocabulary_needs() {
    let folder = tempdir().unwrap();
    let rows = [
        (1, 0, 16),
        (65_536, 65_535, 16),
        (65_536, 65_536, 24),
        (65_537, 0, 24),
    ];
    for (vocab_size, separator, bits) in rows {
        let path = folder.path().join(format!("{vocab_size}-{separator}"));
        let datastore = build(
            &path,
            options(vocab_size, separator),
            &[vec![vocab_size - 1]],
        )
        .unwrap();
        let tokens = fs::read(shard_file(&datastore, "tokens.bin")).unwrap();
        assert_eq!(tokens.len(), 2 * bits / 8 + 8);
        datastore.verify().unwrap();
    }
}

/// libsais takes 2 MiB, and 4 bytes a token (8 where tokens have 24 bits).
#[test]
fn memory_bounds_the_shards() {
    let folder = tempdir().unwrap();
    let documents = vec![vec![1; 999]; 4];
    for (vocab_size, bytes_per_token) in [(100, 4), (70_000, 8)] {
        for (num_tokens, num_shards) in [(4000, 1), (3999, 2), (2000, 2), (1000, 4)] {
            let options = DatastoreOptions {
                max_memory: (2 << 20) + bytes_per_token * num_tokens,
                ..options(vocab_size, 99)
            };
            let path = folder.path().join(format!("{vocab_size}-{num_tokens}"));
            let datastore = build(&path, options, &documents).unwrap();
            assert_eq!(datastore.manifest().shards.len(), num_shards);
        }
    }
}

//! What an older version built must open forever, or fail with `Error::Version`; and the same
//! corpus must give the same bytes. If the format changes on purpose: raise `FORMAT_VERSION`, keep
//! this datastore with its version, add the new one.
//!
//! `format-2-kept` is of a version that could leave suffixes out, and says that it has kept all.

use std::fs;
use std::path::{Path, PathBuf};

use specds::Error;
use specds::build::DatastoreOptions;
use specds::lookup::Datastore;

use crate::files::read_all;
use crate::forgery::reseal;
use crate::{build, options, tempdir};

fn golden() -> PathBuf {
    named("format-2.specds")
}

fn named(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

#[test]
fn a_datastore_of_the_first_format_is_refused_as_such() {
    let error = Datastore::open(named("format-1.specds")).unwrap_err();
    assert!(matches!(
        error,
        Error::Version {
            expected: 2,
            found: 1,
            ..
        }
    ));
}

/// Builds the golden datastore: two shards of two keys, of which one has frequent n-grams.
fn rebuild(path: &Path) -> Datastore {
    let squares = (0..300).map(|i| i * i % 97).collect();
    let options = DatastoreOptions {
        max_shard_tokens: 306,
        ..options(100, 99)
    };
    let documents = [squares, vec![1, 2, 99, 3], vec![1, 2, 4], vec![5; 300]];
    build(path, options, &documents).unwrap()
}

#[test]
fn the_golden_datastores_open_and_answer() {
    for path in [golden(), named("format-2-kept.specds")] {
        let datastore = Datastore::open(path).unwrap();
        datastore.verify().unwrap();
        let found = datastore.lookup(&[99, 1, 2], 16, 1).unwrap();
        assert_eq!((found.length, found.count()), (2, 2));
        assert_eq!(datastore.continuations(&found, 10), [(4, 1), (99, 1)]);
    }
}

#[test]
fn a_datastore_that_has_left_suffixes_out_is_refused_as_such() {
    let text = fs::read_to_string(named("format-2-kept.specds").join("manifest.json")).unwrap();
    for (kept, left_out) in [
        ("\"position_stride\": 1", "\"position_stride\": 2"),
        ("\"max_duplicates\": 0", "\"max_duplicates\": 9"),
    ] {
        let folder = tempdir().unwrap();
        let path = folder.path().join("manifest.json");
        fs::write(&path, reseal(&text.replace(kept, left_out))).unwrap();
        let error = Datastore::open(folder.path()).unwrap_err();
        assert!(matches!(error, Error::Incomplete { .. }), "{error}");
    }
}

#[test]
fn the_golden_datastore_is_built_again_to_the_byte() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    rebuild(&path);
    assert!(read_all(&path) == read_all(&golden()), "the bytes differ");
}

/// The build id hashes the checksums of all sections, so it stands for a quarter of a megabyte.
#[test]
fn a_datastore_of_wide_tokens_has_the_golden_build_id() {
    let folder = tempdir().unwrap();
    let documents = [vec![1, 65_999, 2], vec![65_999, 2, 3]];
    let datastore = build(
        &folder.path().join("d"),
        options(66_000, 66_000),
        &documents,
    )
    .unwrap();
    assert_eq!(
        datastore.manifest().build_id,
        "4bdfa0e08f26c280383295ad4dd1d20c"
    );
}

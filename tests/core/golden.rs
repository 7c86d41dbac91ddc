//! The same corpus gives the same bytes. If the format changes on purpose: raise `FORMAT_VERSION` and
//! replace this datastore.

use std::path::{Path, PathBuf};

use specds::build::DatastoreOptions;
use specds::lookup::Datastore;

use crate::files::read_all;
use crate::{build, options, tempdir};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format-4.specds")
}

/// Builds the golden datastore: two shards of two keys.
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
fn the_golden_datastore_opens_and_answers() {
    let datastore = Datastore::open(golden()).unwrap();
    datastore.verify().unwrap();
    let found = datastore.lookup(&[99, 1, 2], 16, 1).unwrap();
    assert_eq!((found.length, found.count()), (2, 2));
    assert_eq!(datastore.continuations(&found, 10), [(4, 1), (99, 1)]);
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
        "ea12e477231755de1e49ce35b63cfccb"
    );
}

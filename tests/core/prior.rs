//! What a datastore gives drafters to start from: when there is one, that it does not depend on how
//! the datastore came about, and what becomes of a damaged one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use specds::build::{DatastoreOptions, Existing, merge};
use specds::fused::{Weights, fit_missing, prior_of, refit};
use specds::index::Stage;
use specds::lookup::Datastore;
use specds::storage::{MAX_SHARD_TOKENS, Manifest};
use specds::{Error, Result};
use xxhash_rust::xxh3::xxh3_128;

use crate::files::{read_all, write_all, write_in_place};
use crate::forgery::seal;
use crate::random::Random;
use crate::{compacted, options, silent, tempdir};

const VOCAB_SIZE: u32 = 50;

/// The fewest tokens that a prior is fitted to.
const PRIOR_TOKENS: u64 = 1024;

/// Just as many documents as it takes: phrases one after the other.
static DOCUMENTS: LazyLock<Vec<Vec<u32>>> = LazyLock::new(|| {
    let mut random = Random(1);
    let phrases: Vec<_> = (0..40).map(|_| random.tokens(9, 0, VOCAB_SIZE)).collect();
    let mut document = |_| random.phrases(&phrases, 400);
    (0..41).map(&mut document).collect()
});

fn plain() -> DatastoreOptions {
    options(VOCAB_SIZE, VOCAB_SIZE)
}

/// Builds a datastore and gives it a prior of at most `prior_tokens` tokens.
fn build(
    path: &Path,
    options: DatastoreOptions,
    documents: &[Vec<u32>],
    prior_tokens: u64,
) -> Result<Datastore> {
    fit_missing(
        crate::build(path, options, documents)?,
        prior_tokens,
        &mut silent,
    )
}

/// A copy of one datastore with a prior.
fn copied(to: &Path) -> PathBuf {
    type Files = std::collections::BTreeMap<PathBuf, Vec<u8>>;
    static FILES: LazyLock<Files> = LazyLock::new(|| {
        let folder = tempdir().unwrap();
        let path = folder.path().join("d");
        build(&path, plain(), &DOCUMENTS, PRIOR_TOKENS).unwrap();
        read_all(&path)
    });
    let path = to.join("d");
    write_all(&path, &FILES);
    path
}

fn manifest(path: &Path) -> Manifest {
    serde_json::from_slice(&fs::read(path.join("manifest.json")).unwrap()).unwrap()
}

fn priors(path: &Path) -> Vec<PathBuf> {
    let names = read_all(path).into_keys();
    names
        .filter(|name| name.to_string_lossy().starts_with("prior-"))
        .collect()
}

fn bytes(datastore: &Datastore) -> Vec<u8> {
    prior_of(datastore).unwrap().to_bytes()
}

#[test]
fn a_prior_is_a_file_that_the_manifest_names_and_drafters_start_from() {
    let folder = tempdir().unwrap();
    let path = copied(folder.path());
    let datastore = Datastore::open(&path).unwrap();
    datastore.verify().unwrap();
    let entry = datastore.manifest().prior.clone().unwrap();
    let [name] = &priors(&path)[..] else {
        panic!("one prior");
    };
    let content = fs::read(path.join(name)).unwrap();
    assert_eq!(name, Path::new(&format!("prior-{}.bin", entry.id)));
    assert_eq!(format!("{:032x}", xxh3_128(&content)), entry.id);
    assert_eq!(content, bytes(&datastore));
    assert_eq!(
        (entry.num_tokens, entry.num_bytes),
        (PRIOR_TOKENS, content.len() as u64)
    );
    assert_eq!(datastore.prior(), Some(&content[..]));
    assert_ne!(prior_of(&datastore), Some(Weights::default()));
    let sizes = read_all(&path).into_values();
    assert_eq!(
        datastore.num_bytes(),
        sizes.map(|file| file.len() as u64).sum::<u64>()
    );
}

#[test]
fn too_small_a_datastore_has_no_prior() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let replace = DatastoreOptions {
        existing: Existing::Replace,
        ..plain()
    };
    let few_tokens = &DOCUMENTS[..40];
    let few_documents = [&[DOCUMENTS.concat()], &DOCUMENTS[..14]].concat();
    let rows = [
        (few_tokens, u64::MAX),
        (&few_documents, u64::MAX),
        (&DOCUMENTS, PRIOR_TOKENS - 1),
        (&DOCUMENTS, 0),
    ];
    for (documents, prior_tokens) in rows {
        let datastore = build(&path, replace.clone(), documents, prior_tokens).unwrap();
        assert_eq!(datastore.prior(), None);
        assert_eq!(datastore.manifest().prior, None);
        assert!(priors(&path).is_empty());
        assert!(
            !fs::read_to_string(path.join("manifest.json"))
                .unwrap()
                .contains("prior")
        );
    }
}

#[test]
fn the_prior_depends_on_the_shards_and_not_on_how_they_came_about() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let expected = bytes(&Datastore::open(copied(folder.path())).unwrap());
    let small = DatastoreOptions {
        max_shard_tokens: 2500,
        ..plain()
    };
    let cut = build(&path("cut"), small.clone(), &DOCUMENTS, PRIOR_TOKENS).unwrap();
    assert_eq!(cut.manifest().shards.len(), 7);
    let one = compacted(&path("cut"), MAX_SHARD_TOKENS, false).unwrap();
    assert_eq!(one.prior(), None);
    let one = fit_missing(one, PRIOR_TOKENS, &mut silent).unwrap();
    assert_eq!(one.manifest().shards.len(), 1);
    assert!(bytes(&one) == expected, "compacted");
    let (first, second) = DOCUMENTS.split_at(20);
    build(&path("a"), plain(), first, PRIOR_TOKENS).unwrap();
    build(&path("b"), plain(), second, PRIOR_TOKENS).unwrap();
    let halves = [path("a"), path("b")];
    let merged = merge(&halves, path("c"), false).unwrap();
    assert_eq!(merged.prior(), None);
    let merged = fit_missing(merged, PRIOR_TOKENS, &mut silent).unwrap();
    let append = DatastoreOptions {
        existing: Existing::Append,
        ..plain()
    };
    let added = build(&path("a"), append, second, PRIOR_TOKENS).unwrap();
    assert_eq!(added.manifest().shards, merged.manifest().shards);
    assert!(bytes(&added) == bytes(&merged), "added to");
}

#[test]
fn what_is_added_is_fitted_to_and_readers_keep_what_they_have() {
    let folder = tempdir().unwrap();
    let path = copied(folder.path());
    let old = Datastore::open(&path).unwrap();
    let before = bytes(&old);
    let append = DatastoreOptions {
        existing: Existing::Append,
        drop_duplicates: true,
        ..plain()
    };
    let same = build(&path, append.clone(), &DOCUMENTS[..2], 0).unwrap();
    assert_eq!(bytes(&same), before, "nothing was added");
    let new = build(&path, append, &[vec![7; 1000], vec![8; 1000]], PRIOR_TOKENS).unwrap();
    assert_ne!(bytes(&new), before);
    assert_eq!(priors(&path).len(), 1, "the old one is gone");
    assert_eq!(bytes(&old), before);
    old.verify().unwrap();
}

#[test]
fn a_damaged_prior_is_named_at_open_and_replaced_by_a_refit() {
    let folder = tempdir().unwrap();
    let path = copied(folder.path());
    let [name] = &priors(&path)[..] else {
        panic!("one prior");
    };
    let file = path.join(name);
    let content = fs::read(&file).unwrap();
    let expected = bytes(&Datastore::open(&path).unwrap());
    for place in (0..content.len()).step_by(content.len() / 64) {
        let mut flipped = content.clone();
        flipped[place] ^= 1;
        write_in_place(&file, &flipped);
        let error = Datastore::open(&path).unwrap_err();
        assert!(
            matches!(&error, Error::Checksum(path) if *path == file),
            "{error}"
        );
    }
    for length in [0, 7, content.len() - 1] {
        write_in_place(&file, &content[..length]);
        let error = Datastore::open(&path).unwrap_err();
        assert!(
            matches!(&error, Error::Truncated { path, .. } if *path == file),
            "{error}"
        );
    }
    fs::remove_file(&file).unwrap();
    let error = Datastore::open(&path).unwrap_err();
    assert!(
        matches!(&error, Error::Io { path, .. } if *path == file),
        "{error}"
    );

    let again = refit(&path, PRIOR_TOKENS, &mut silent).unwrap();
    assert_eq!(bytes(&again), expected);
    assert_eq!(fs::read(&file).unwrap(), content);
    let without = refit(&path, 0, &mut silent).unwrap();
    assert_eq!(without.prior(), None);
    assert!(priors(&path).is_empty());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing is left beside"
    );
}

#[test]
fn a_prior_of_another_version_is_none() {
    let folder = tempdir().unwrap();
    let path = copied(folder.path());
    let mut manifest = manifest(&path);
    let entry = manifest.prior.as_mut().unwrap();
    entry.id = format!("{:032x}", xxh3_128(b"weights of tomorrow"));
    entry.num_bytes = 19;
    let name = format!("prior-{}.bin", entry.id);
    fs::write(path.join(name), "weights of tomorrow").unwrap();
    fs::write(path.join("manifest.json"), seal(manifest)).unwrap();
    let datastore = Datastore::open(&path).unwrap();
    datastore.verify().unwrap();
    assert_eq!(prior_of(&datastore), None);
}

#[test]
fn a_fit_that_is_stopped_leaves_the_datastore_as_it_is_and_nothing_beside() {
    let folder = tempdir().unwrap();
    let path = copied(folder.path());
    let mut stop = |stage, done, _| match stage {
        Stage::Prior if done > 0 => Err(specds::Error::Stopped),
        _ => Ok(()),
    };
    let before = read_all(&path);
    let stopped = refit(&path, PRIOR_TOKENS, &mut stop);
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert!(read_all(&path) == before);
    let replace = DatastoreOptions {
        existing: Existing::Replace,
        ..plain()
    };
    let rebuilt = crate::build(&path, replace, &DOCUMENTS).unwrap();
    let stopped = fit_missing(rebuilt, PRIOR_TOKENS, &mut stop);
    assert!(matches!(stopped, Err(Error::Stopped)));
    let without = Datastore::open(&path).unwrap();
    without.verify().unwrap();
    assert_eq!(without.prior(), None);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    fit_missing(without, PRIOR_TOKENS, &mut silent).unwrap();
    assert!(read_all(&path) == before);
}

#[test]
fn the_fit_tells_how_far_it_is() {
    let folder = tempdir().unwrap();
    let path = copied(folder.path());
    let mut told = Vec::new();
    let mut progress = |stage: Stage, done, total| {
        told.push((stage.name(), done, total));
        Ok(())
    };
    refit(&path, u64::MAX, &mut progress).unwrap();
    let total = manifest(&path).num_tokens / 16;
    assert_eq!(told.first(), Some(&("prior", 0, total)));
    assert_eq!(told.last(), Some(&("prior", total, total)));
    assert!(told.is_sorted() && told.len() > 3, "{told:?}");
}

//! What others have put where we read or write: links, pipes, foreign folders, damage to be copied.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use specds::build::{DatastoreBuilder, DatastoreOptions, Existing, merge};
use specds::fused::Memory;
use specds::fused::refit;
use specds::lookup::Datastore;
use specds::memory::MemoryOptions;
use specds::storage::MAX_SHARD_TOKENS;
use specds::{Error, Result};
use tempfile::TempDir;

use crate::files::read_all;
use crate::{build, compacted, options, silent, small, tempdir};

fn append() -> DatastoreOptions {
    DatastoreOptions {
        existing: Existing::Append,
        ..options(4, 4)
    }
}

/// A datastore of three shards, and the folder it is in.
fn datastore() -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let documents: Vec<Vec<u32>> = (0..600).map(|i| [i % 4, i / 150].repeat(15)).collect();
    build(&path, small(6200), &documents).unwrap();
    (folder, path)
}

fn to_few(path: &Path) -> Result<Datastore> {
    compacted(path, MAX_SHARD_TOKENS, false)
}

/// A file of the second shard.
fn file(path: &Path, name: &str) -> PathBuf {
    let datastore = Datastore::open(path).unwrap();
    let id = &datastore.manifest().shards[1].id;
    path.join(format!("shard-{id}")).join(name)
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_datastore_has_one_lock_whatever_name_it_is_reached_by() {
    let (folder, path) = datastore();
    let link = folder.path().join("link");
    symlink("d", &link).unwrap();
    fs::create_dir(folder.path().join("below")).unwrap();
    let around = folder.path().join("below/../link");
    let builder = DatastoreBuilder::create(&path, append()).unwrap();
    for name in [&link, &around] {
        let error = DatastoreBuilder::create(name, append()).unwrap_err();
        assert!(matches!(error, Error::Locked(_)), "{error}");
        let error = merge(&[&path], name, true).unwrap_err();
        assert!(matches!(error, Error::Locked(_)), "{error}");
        assert!(matches!(to_few(name), Err(Error::Locked(_))));
    }
    drop(builder);
    build(&link, append(), &[vec![3, 3, 3]]).unwrap();
    assert!(link.is_symlink());
    assert_eq!(Datastore::open(&path).unwrap().num_documents(), 601);
}

#[test]
fn names_that_are_not_text_have_folders_of_their_own() {
    let folder = tempdir().unwrap();
    let [one, other] = [b"x\xff", b"x\xfe"].map(|name| folder.path().join(OsStr::from_bytes(name)));
    let _builder = DatastoreBuilder::create(one, options(4, 4)).unwrap();
    build(&other, options(4, 4), &[vec![1]]).unwrap();
    let long = DatastoreBuilder::create(folder.path().join("a".repeat(250)), options(4, 4));
    assert!(matches!(long, Err(Error::Io { .. })));
}

#[test]
fn what_no_write_of_ours_has_left_beside_the_target_is_not_touched() {
    type Row = (&'static str, fn(&Path));
    let rows: [Row; 6] = [
        ("a folder of the user", |staging| {
            fs::create_dir_all(staging.join("photos")).unwrap();
            fs::write(staging.join("thesis.tex"), "x").unwrap();
        }),
        ("a link to one", |staging| {
            fs::create_dir(staging.with_file_name("home")).unwrap();
            fs::write(staging.with_file_name("home").join("letter"), "x").unwrap();
            symlink("home", staging).unwrap();
        }),
        ("a link to an empty one", |staging| {
            fs::create_dir(staging.with_file_name("home")).unwrap();
            symlink("home", staging).unwrap();
        }),
        ("a file", |staging| fs::write(staging, "x").unwrap()),
        ("a folder that anyone can write", |staging| {
            fs::create_dir(staging).unwrap();
            fs::set_permissions(staging, fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("a lock that is a link", |staging| {
            fs::create_dir(staging).unwrap();
            fs::write(staging.with_file_name("letter"), "x").unwrap();
            symlink("../letter", staging.join("specds.lock")).unwrap();
        }),
    ];
    for (row, put) in rows {
        let folder = tempdir().unwrap();
        put(&folder.path().join(".d.build"));
        let before = read_all(folder.path());
        let error = DatastoreBuilder::create(folder.path().join("d"), options(4, 4)).unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{row}: {error}");
        assert_eq!(read_all(folder.path()), before, "{row}");
    }
}

#[test]
fn links_within_our_own_folder_are_removed_and_not_followed() {
    let folder = tempdir().unwrap();
    let staging = folder.path().join(".d.build");
    let home = folder.path().join("home");
    fs::create_dir_all(home.join("photos")).unwrap();
    fs::write(home.join("letter"), "x").unwrap();
    let before = read_all(&home);
    fs::create_dir(&staging).unwrap();
    fs::write(staging.join("specds.lock"), "").unwrap();
    symlink("../home", staging.join("datastore")).unwrap();
    symlink("../home/letter", staging.join("plan.new")).unwrap();
    build(&folder.path().join("d"), options(4, 4), &[vec![1, 2]]).unwrap();
    assert_eq!(read_all(&home), before);
    assert!(!staging.exists());
}

#[test]
fn a_snapshot_is_written_to_no_file_of_others_and_read_by_nobody_else() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let memory = Memory::new(MemoryOptions::new(10)).unwrap();
    memory.insert("ann", &[1, 2, 3]).unwrap();
    fs::write(path("letter"), "x").unwrap();
    symlink("letter", path(".link.new")).unwrap();
    fs::hard_link(path("letter"), path(".hard.new")).unwrap();
    pipe(&path(".pipe.new"));
    for name in ["link", "hard", "pipe"] {
        let error = memory.save(path(name)).unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{name}: {error}");
        assert!(!path(name).exists());
    }
    assert_eq!(fs::read(path("letter")).unwrap(), b"x");
    fs::write(path(".open.new"), "left by a kill").unwrap();
    fs::set_permissions(path(".open.new"), fs::Permissions::from_mode(0o666)).unwrap();
    for name in ["open", "new"] {
        memory.save(path(name)).unwrap();
        let mode = path(name).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_merge_takes_the_files_of_a_shard_and_nothing_else_that_lies_there() {
    let (folder, path) = datastore();
    let merged = folder.path().join("merged");
    symlink("/etc/passwd", file(&path, "x.bin")).unwrap();
    pipe(&file(&path, "pipe"));
    // What cannot be linked is copied: as with other file systems, so with a link to a file.
    let keys = file(&path, "keys.bin");
    fs::rename(&keys, folder.path().join("keys")).unwrap();
    symlink(folder.path().join("keys"), &keys).unwrap();
    let datastore = merge(&[&path], &merged, false).unwrap();
    datastore.verify().unwrap();
    assert_eq!(read_all(&merged).len(), 1 + 3 * 6);
    assert!(!file(&merged, "keys.bin").is_symlink());
    assert_eq!(file(&merged, "tokens.bin").metadata().unwrap().nlink(), 2);

    let mut content = fs::read(&keys).unwrap();
    content[0] ^= 1;
    fs::write(folder.path().join("keys"), content).unwrap();
    let error = merge(&[&path], &merged, true).unwrap_err();
    assert!(matches!(error, Error::Checksum(path) if path == keys));
    datastore.verify().unwrap();
}

#[test]
fn a_pipe_is_refused_by_name_and_not_waited_for() {
    for name in ["tokens.bin", "shard.json", "manifest.json"] {
        let (folder, path) = datastore();
        let name = match name {
            "manifest.json" => path.join(name),
            name => file(&path, name),
        };
        fs::remove_file(&name).unwrap();
        pipe(&name);
        let opened = Datastore::open(&path).unwrap_err();
        let merged = merge(&[&path], folder.path().join("merged"), false).unwrap_err();
        for error in [opened, merged] {
            assert!(error.to_string().contains("not a regular file"), "{error}");
            assert!(matches!(error, Error::Io { path, .. } if path == name));
        }
    }
}

#[test]
fn damage_is_named_and_never_copied_under_a_new_checksum() {
    type Write = (&'static str, fn(&Path) -> Result<Datastore>);
    let writes: [Write; 3] = [
        ("compact", to_few),
        ("add", |path| {
            let options = DatastoreOptions {
                drop_duplicates: true,
                ..append()
            };
            build(path, options, &[vec![3, 3, 3]])
        }),
        ("refit", |path| refit(path, 100_000, &mut silent)),
    ];
    for (write, run) in writes {
        // The highest byte of an end makes a document that would fill the memory.
        for (name, byte) in [
            ("tokens.bin", 0),
            ("documents.bin", 0),
            ("documents.bin", 3),
        ] {
            let (folder, path) = datastore();
            let victim = file(&path, name);
            let mut content = fs::read(&victim).unwrap();
            content[byte] ^= 0x40;
            fs::write(&victim, content).unwrap();
            let before = read_all(&path);
            let error = run(&path).unwrap_err();
            let named = match &error {
                Error::Checksum(path) | Error::Corrupt { path, .. } => path,
                other => panic!("{write} {name}: {other}"),
            };
            assert_eq!(*named, victim, "{write} {name}");
            assert_eq!(read_all(folder.path()).len(), before.len());
            assert_eq!(read_all(&path), before, "{write} {name}");
        }
    }
}

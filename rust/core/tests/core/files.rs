//! Damaged files of a datastore, which are rejected without a panic.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use specds_core::Error;
use specds_core::draft::Session;
use specds_core::fused::{Effort, FusedConfig, FusedDrafter, FusedSession};
use specds_core::papers::rest::{RestConfig, RestSession};
use specds_index::{Datastore, DatastoreOptions, Manifest, ShardManifest};
use tempfile::TempDir;

use crate::{build, drafted, options, tempdir};

pub(crate) const SECTIONS: [&str; 6] =
    ["tokens.bin", "suffixes.bin", "firsts.bin", "keys.bin", "documents.bin", "sources.bin"];

/// Returns the content of all files below `folder` by their relative paths.
pub(crate) fn read_all(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// Writes all these files below `folder`.
pub(crate) fn write_all(folder: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (name, content) in files {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), content).unwrap();
    }
}

/// Overwrites a file. Truncating it first, as `fs::write` does, makes some file systems wait for the disk.
pub(crate) fn write_in_place(path: &Path, content: &[u8]) {
    let mut file = File::options().write(true).open(path).unwrap();
    file.write_all(content).unwrap();
    file.set_len(content.len() as u64).unwrap();
}

/// A datastore of two shards that differ in their tokens alone.
pub(crate) struct Victim {
    folder: TempDir,
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Victim {
    pub(crate) fn new() -> Self {
        Self::of(5, options(4, 4), &[vec![1, 2, 0, 1], vec![1, 0, 2, 1]])
    }

    pub(crate) fn of(
        max_shard_tokens: u64,
        mut options: DatastoreOptions,
        documents: &[Vec<u32>],
    ) -> Self {
        let folder = tempdir().unwrap();
        options.max_shard_tokens = Some(max_shard_tokens);
        build(&folder.path().join("d"), options, documents).unwrap();
        let files = read_all(&folder.path().join("d"));
        Self { folder, files }
    }

    /// Restores all files.
    pub(crate) fn restore(&self) {
        let _ = fs::remove_dir_all(self.path());
        write_all(&self.path(), &self.files);
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    pub(crate) fn open(&self) -> Result<Datastore, Error> {
        Datastore::open(self.path())
    }

    /// Returns the result of `check` while file `name` has this content.
    pub(crate) fn with<T>(&self, name: &Path, content: &[u8], check: impl FnOnce(&Self) -> T) -> T {
        let path = self.path().join(name);
        write_in_place(&path, content);
        let result = check(self);
        write_in_place(&path, &self.files[name]);
        result
    }

    pub(crate) fn sections(&self) -> impl Iterator<Item = (&PathBuf, &Vec<u8>)> {
        self.files.iter().filter(|(name, _)| name.extension().is_some_and(|end| end == "bin"))
    }

    pub(crate) fn manifest(&self) -> Manifest {
        serde_json::from_slice(&self.files[Path::new("manifest.json")]).unwrap()
    }

    /// The path of a shard's file in the datastore.
    pub(crate) fn file(&self, shard: usize, name: &str) -> PathBuf {
        let id = &self.manifest().shards[shard].id;
        Path::new(&format!("shard-{id}")).join(name)
    }

    pub(crate) fn shard(&self, shard: usize) -> ShardManifest {
        serde_json::from_slice(&self.files[&self.file(shard, "shard.json")]).unwrap()
    }
}

/// Queries a datastore that may be damaged: nothing panics, no count exceeds the number of tokens, and drafts are trees
/// of known tokens.
pub(crate) fn ask(datastore: Datastore, text: &[u32]) -> Arc<Datastore> {
    let datastore = Arc::new(datastore);
    let check = |count: u64| assert!(count <= datastore.num_tokens());
    for pattern in [1, 2, 3, 9].iter().flat_map(|&length| text.windows(length)) {
        let found = datastore.lookup(pattern, 16, 1).unwrap();
        check(found.count());
        check(datastore.find(pattern).unwrap().count());
        datastore.continuations(&found, 10);
        for position in datastore.positions(&found, 3) {
            check(datastore.document_at(position).unwrap().tokens.len() as u64);
        }
    }
    let rest = RestSession::new(Arc::clone(&datastore), RestConfig::default());
    let mut sessions: Vec<Box<dyn Session>> = vec![Box::new(rest.unwrap())];
    for effort in [Effort::Low, Effort::Normal] {
        let config = FusedConfig { effort, ..FusedConfig::default() };
        let of = Some(Arc::clone(&datastore));
        let drafter = FusedDrafter::new(of, None, config).unwrap();
        sessions.push(Box::new(FusedSession::new(Arc::new(drafter), "").unwrap()));
    }
    for session in &mut sessions {
        for tokens in text.chunks(8) {
            session.observe(tokens, None).unwrap();
            let tree = drafted(session.as_mut(), 32);
            let is_known = |&token: &u32| token < datastore.vocab_size();
            assert!(tree.len() <= 32 && tree.token_ids().iter().all(is_known));
            let mut parents = (0..).zip(tree.parents());
            assert!(parents.all(|(node, &parent)| parent < node));
            assert!(tree.probs().iter().all(|prob| (0.0..=1.0).contains(prob)));
        }
    }
    datastore
}

/// A text with n-grams that the datastores below have, and others.
pub(crate) const TEXT: [u32; 12] = [1, 2, 0, 1, 3, 0, 1, 0, 2, 1, 1, 2];

#[test]
fn flipped_byte_is_found_at_open_or_harmless_until_verify() {
    let victim = Victim::new();
    for (name, content) in &victim.files {
        let is_section = name.extension().is_some_and(|end| end == "bin");
        let num_payload = if is_section { content.len() - 8 } else { 0 };
        for byte in 0..content.len() {
            let masks = (0..8).map(|bit| 1 << bit).chain([0xff]);
            for mask in masks.filter(|mask| byte >= num_payload || [1, 0x80, 0xff].contains(mask)) {
                let mut flipped = content.clone();
                flipped[byte] ^= mask;
                victim.with(name, &flipped, |victim| match victim.open() {
                    Err(error) => assert!(!is_section || matches!(error, Error::Corrupt { .. })),
                    Ok(datastore) => {
                        assert!(byte < num_payload, "byte {byte} of {}", name.display());
                        let error = ask(datastore, &TEXT).verify().unwrap_err();
                        assert!(matches!(error, Error::Checksum(path) if path.ends_with(name)));
                    }
                });
            }
        }
    }
    victim.open().unwrap().verify().unwrap();
}

#[test]
fn truncation_of_any_length_is_found_at_open() {
    let victim = Victim::new();
    for (name, content) in &victim.files {
        for length in 0..content.len() {
            let opened = victim.with(name, &content[..length], Victim::open);
            let error = opened.expect_err(&format!("{} cut to {length} bytes", name.display()));
            if name.extension().is_some_and(|end| end == "bin") {
                let lengths = (content.len() as u64, length as u64);
                let is_told = matches!(error, Error::Truncated { path, expected, found }
                    if path.ends_with(name) && (expected, found) == lengths);
                assert!(is_told, "{} cut to {length} bytes", name.display());
            }
        }
        let longer = [content, &b"\0"[..]].concat();
        assert!(victim.with(name, &longer, Victim::open).is_err());
    }
}

#[test]
fn missing_file_is_named() {
    let victim = Victim::new();
    for (name, content) in victim.sections() {
        let path = victim.path().join(name);
        fs::remove_file(&path).unwrap();
        assert!(matches!(victim.open(), Err(Error::Io { path: named, .. }) if named == path));
        fs::write(path, content).unwrap();
    }
    fs::remove_file(victim.path().join("manifest.json")).unwrap();
    assert!(matches!(victim.open(), Err(Error::NotADatastore(path)) if path == victim.path()));
}

#[test]
fn manifest_of_another_version_or_content_is_rejected_with_the_remedy() {
    let victim = Victim::new();
    let manifest = Path::new("manifest.json");
    let text = String::from_utf8(victim.files[manifest].clone()).unwrap();
    let changed = |from, to| text.replace(from, to);
    let ours = "\"format_version\": 5";
    let other = "{\"format\": \"other\", \"format_version\": 1}";
    let version = |number| text.replace(ours, &format!("\"format_version\": {number}"));
    let mut rows = vec![
        (version(4), "reads 5: rebuild it"),
        (version(6), "reads 5: upgrade the reader or rebuild it"),
    ];
    // The JSON is valid, but not the one that was written.
    let edits = [("  ", " "), ("}\n", "} \n"), ("another", "anothex")];
    rows.extend(edits.map(|(from, to)| (changed(from, to), "has changed since it was written")));
    let none = ["", "{}", "[]", "\0", other];
    rows.extend(none.map(|text| (text.to_owned(), "is not a datastore")));
    for (text, said) in rows {
        let opened = victim.with(manifest, text.as_bytes(), Victim::open);
        let error = opened.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    let path = victim.path();
    fs::remove_dir_all(&path).unwrap();
    assert!(matches!(victim.open(), Err(Error::Io { path: named, .. }) if named == path));
    fs::write(&path, "a letter").unwrap();
    assert!(matches!(victim.open(), Err(Error::NotADatastore(_))));
}

#[test]
fn swapped_files_are_found_by_their_lengths_or_by_verify() {
    let victim = Victim::new();
    for name in ["tokens.bin", "suffixes.bin", "keys.bin"] {
        let neighbour = &victim.files[&victim.file(1, name)];
        victim.with(&victim.file(0, name), neighbour, |victim| {
            let error = ask(victim.open().unwrap(), &TEXT).verify().unwrap_err();
            assert!(matches!(error, Error::Checksum(_)), "{name}: {error}");
        });
    }
    let tokens = &victim.files[&victim.file(0, "tokens.bin")];
    let error = victim.with(&victim.file(0, "documents.bin"), tokens, Victim::open);
    assert!(matches!(error, Err(Error::Truncated { .. })));
    let neighbour = &victim.files[&victim.file(1, "shard.json")];
    let error = victim.with(&victim.file(0, "shard.json"), neighbour, Victim::open);
    assert!(matches!(error, Err(Error::Checksum(_))));
}

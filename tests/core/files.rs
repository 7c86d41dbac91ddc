//! Lies: every file is cut, flipped, swapped and forged, and is refused without a panic.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use specds::datastore::{Datastore, DatastoreOptions, Manifest, SectionManifest, ShardManifest};
use specds::error::Error;
use tempfile::TempDir;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::{build, options, tempdir};

const HEADER: usize = 64;
const PAYLOAD: usize = 4096;
const SECTIONS: [&str; 6] = [
    "tokens.bin",
    "suffixes.bin",
    "firsts.bin",
    "keys.bin",
    "documents.bin",
    "ngrams.bin",
];

/// All files below `folder`, by their path from there.
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

/// Emptying a file first, as `fs::write` does, makes some file systems wait for the disk.
pub(crate) fn write_in_place(path: &Path, content: &[u8]) {
    let mut file = File::options().write(true).open(path).unwrap();
    file.write_all(content).unwrap();
    file.set_len(content.len() as u64).unwrap();
}

/// A datastore of two shards that differ in their tokens alone.
struct Victim {
    folder: TempDir,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Victim {
    fn new() -> Self {
        Self::of(&[vec![1, 2, 0, 1], vec![1, 0, 2, 1]])
    }

    fn of(documents: &[Vec<u32>]) -> Self {
        Self::built(options(4, 4), documents)
    }

    fn built(options: DatastoreOptions, documents: &[Vec<u32>]) -> Self {
        let folder = tempdir().unwrap();
        let options = DatastoreOptions {
            max_shard_tokens: 5,
            ..options
        };
        build(&folder.path().join("d"), options, documents).unwrap();
        let files = read_all(&folder.path().join("d"));
        Self { folder, files }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    fn open(&self) -> Result<Datastore, Error> {
        Datastore::open(self.path())
    }

    /// What `check` says of the datastore while file `name` has this content.
    fn with<T>(&self, name: &Path, content: &[u8], check: impl FnOnce(&Self) -> T) -> T {
        let path = self.path().join(name);
        write_in_place(&path, content);
        let said = check(self);
        write_in_place(&path, &self.files[name]);
        said
    }

    fn sections(&self) -> impl Iterator<Item = (&PathBuf, &Vec<u8>)> {
        self.files
            .iter()
            .filter(|(name, _)| name.extension().is_some_and(|end| end == "bin"))
    }

    fn manifest(&self) -> Manifest {
        serde_json::from_slice(&self.files[Path::new("manifest.json")]).unwrap()
    }

    /// The path of a shard's file in the datastore.
    fn file(&self, shard: usize, name: &str) -> PathBuf {
        let id = &self.manifest().shards[shard].id;
        Path::new(&format!("shard-{id}")).join(name)
    }

    fn shard(&self, shard: usize) -> ShardManifest {
        serde_json::from_slice(&self.files[&self.file(shard, "shard.json")]).unwrap()
    }
}

/// Asks everything there is to ask; nothing may panic, and no drafted token may be unknown.
fn ask(datastore: &Datastore) {
    for context in [&[1][..], &[1, 2], &[2, 0, 1], &[3], &[0, 1, 0, 2]] {
        let found = datastore.lookup(context, 16, 1).unwrap();
        for (token, _) in datastore.continuations(&found, 10) {
            assert!(token < datastore.vocab_size());
        }
        for continuation in datastore.samples(&found, 10, 100).iter() {
            assert!(
                continuation
                    .iter()
                    .all(|&token| token < datastore.vocab_size())
            );
        }
    }
}

#[test]
fn every_flipped_bit_of_a_header_or_padding_is_found_at_open() {
    let victim = Victim::new();
    for (name, content) in victim.sections() {
        let padding = (HEADER..PAYLOAD)
            .step_by(61)
            .chain(content.len() - 8..content.len());
        for byte in (0..HEADER).chain(padding) {
            for bit in 0..8 {
                let mut flipped = content.clone();
                flipped[byte] ^= 1 << bit;
                let error = victim.with(name, &flipped, Victim::open).err();
                let is_found = match byte {
                    0..8 => matches!(error, Some(Error::Corrupt { .. })),
                    8..10 => matches!(error, Some(Error::Version { .. })),
                    10..HEADER => matches!(error, Some(Error::Checksum { .. })),
                    _ => matches!(error, Some(Error::Corrupt { .. })),
                };
                assert!(
                    is_found,
                    "bit {bit} of byte {byte} of {}: {error:?}",
                    name.display()
                );
            }
        }
    }
    victim.open().unwrap().verify().unwrap();
}

#[test]
fn every_flipped_byte_of_a_payload_is_found_by_verify_and_harmless_before() {
    let victim = Victim::new();
    for (name, content) in victim.sections() {
        for byte in PAYLOAD..content.len() - 8 {
            for mask in [0x01, 0x80, 0xff] {
                let mut flipped = content.clone();
                flipped[byte] ^= mask;
                victim.with(name, &flipped, |victim| match victim.open() {
                    Err(error) => assert!(matches!(error, Error::Corrupt { .. })),
                    Ok(datastore) => {
                        ask(&datastore);
                        let error = datastore.verify().unwrap_err();
                        assert!(matches!(error, Error::Checksum { path } if path.ends_with(name)));
                    }
                });
            }
        }
    }
}

#[test]
fn every_truncation_is_found_at_open() {
    let victim = Victim::new();
    for (name, content) in &victim.files {
        let lengths = (0..HEADER + 2)
            .chain((HEADER..PAYLOAD).step_by(97))
            .chain(PAYLOAD..content.len());
        for length in lengths.filter(|&length| length < content.len()) {
            let opened = victim.with(name, &content[..length], Victim::open);
            assert!(opened.is_err(), "{} cut to {length} bytes", name.display());
        }
        let longer = [content, &b"\0"[..]].concat();
        assert!(victim.with(name, &longer, Victim::open).is_err());
    }
}

#[test]
fn a_truncated_section_is_named_with_its_lengths() {
    let victim = Victim::new();
    let name = victim.file(1, "tokens.bin");
    let content = &victim.files[&name];
    for length in [0, 63, 64, content.len() - 1] {
        let error = victim
            .with(&name, &content[..length], Victim::open)
            .unwrap_err();
        let Error::Truncated {
            path,
            expected,
            found,
        } = error
        else {
            panic!("{error}")
        };
        assert!(path.ends_with(&name));
        assert_eq!((expected, found), (content.len() as u64, length as u64));
    }
}

#[test]
fn every_flipped_bit_of_a_manifest_is_found_at_open() {
    let victim = Victim::new();
    for name in [PathBuf::from("manifest.json"), victim.file(1, "shard.json")] {
        for byte in 0..victim.files[&name].len() {
            for bit in 0..8 {
                let mut flipped = victim.files[&name].clone();
                flipped[byte] ^= 1 << bit;
                assert!(
                    victim.with(&name, &flipped, Victim::open).is_err(),
                    "bit {bit} of byte {byte} of {}",
                    name.display()
                );
            }
        }
    }
    let name = Path::new("manifest.json");
    let text = String::from_utf8(victim.files[name].clone()).unwrap();
    for text in [
        text.replace("  ", " "),
        text.clone() + " ",
        text.replace("another", "anothex"),
    ] {
        let error = victim
            .with(name, text.as_bytes(), Victim::open)
            .unwrap_err();
        assert!(matches!(error, Error::Checksum { .. }));
    }
}

#[test]
fn a_missing_file_is_named() {
    let victim = Victim::new();
    for (name, content) in victim.sections() {
        let path = victim.path().join(name);
        fs::remove_file(&path).unwrap();
        assert!(matches!(victim.open(), Err(Error::Io { path: named, .. }) if named == path));
        fs::write(path, content).unwrap();
    }
    fs::remove_file(victim.path().join("manifest.json")).unwrap();
    assert!(matches!(victim.open(), Err(Error::NotADatastore { path }) if path == victim.path()));
}

#[test]
fn what_is_not_a_datastore_is_called_so() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    assert!(matches!(Datastore::open(&path), Err(Error::Io { path: named, .. }) if named == path));
    fs::write(&path, "a letter").unwrap();
    assert!(matches!(
        Datastore::open(&path),
        Err(Error::NotADatastore { .. })
    ));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(
        Datastore::open(&path),
        Err(Error::NotADatastore { .. })
    ));
    for text in [
        "",
        "{}",
        "[]",
        "\u{0}",
        "{\"format\": \"other\", \"format_version\": 1}",
    ] {
        fs::write(path.join("manifest.json"), text).unwrap();
        assert!(
            matches!(Datastore::open(&path), Err(Error::NotADatastore { .. })),
            "{text}"
        );
    }
}

#[test]
fn another_version_is_called_so_with_the_way_out() {
    let victim = Victim::new();
    let manifest = Path::new("manifest.json");
    let text = String::from_utf8(victim.files[manifest].clone()).unwrap();
    let rows = [
        (1, "reads 2: rebuild it with `specds build`"),
        (
            3,
            "reads 2: upgrade specds, or rebuild it with `specds build`",
        ),
    ];
    for (version, way_out) in rows {
        let text = text.replace(
            "\"format_version\": 2",
            &format!("\"format_version\": {version}"),
        );
        let error = victim
            .with(manifest, text.as_bytes(), Victim::open)
            .unwrap_err();
        assert!(
            matches!(error, Error::Version { expected: 2, found, .. } if found == version),
            "{error}"
        );
        assert!(error.to_string().ends_with(way_out), "{error}");
    }

    let section = victim.file(0, "tokens.bin");
    let mut content = victim.files[&section].clone();
    content[8] = 3;
    let error = victim.with(&section, &content, Victim::open).unwrap_err();
    assert!(matches!(
        error,
        Error::Version {
            expected: 2,
            found: 3,
            ..
        }
    ));
}

#[test]
fn a_foreign_file_is_refused() {
    let victim = Victim::new();
    let name = victim.file(0, "tokens.bin");
    let foreign = vec![b'x'; victim.files[&name].len()];
    let error = victim.with(&name, &foreign, Victim::open).unwrap_err();
    assert!(matches!(error, Error::Corrupt { path, .. } if path.ends_with(name)));
}

#[test]
fn files_of_other_shards_and_kinds_are_refused() {
    let victim = Victim::new();
    for name in SECTIONS {
        let neighbour = &victim.files[&victim.file(1, name)];
        let error = victim.with(&victim.file(0, name), neighbour, Victim::open);
        assert!(matches!(error, Err(Error::Mismatch { .. })), "{name}");
    }
    let keys = &victim.files[&victim.file(0, "keys.bin")];
    let error = victim.with(&victim.file(0, "documents.bin"), keys, Victim::open);
    assert!(matches!(error, Err(Error::Mismatch { .. })));
    let neighbour = &victim.files[&victim.file(1, "shard.json")];
    let error = victim.with(&victim.file(0, "shard.json"), neighbour, Victim::open);
    assert!(matches!(error, Err(Error::Checksum { .. })));
}

#[test]
fn a_shard_means_the_same_in_any_datastore() {
    let (victim, other) = (Victim::new(), Victim::of(&[vec![3, 3], vec![1, 0, 2, 1]]));
    assert_eq!(victim.shard(1), other.shard(1));
    for name in SECTIONS {
        let (one, same) = (victim.file(1, name), other.file(1, name));
        assert_eq!(victim.files[&one], other.files[&same]);
    }
}

/// A header written from the byte table of the format alone.
fn header(shard_id: u128, kind: u16, section: &SectionManifest) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(b"SPECDS\0\x01");
    header.extend(2_u16.to_le_bytes());
    header.extend(kind.to_le_bytes());
    header.extend([4, 3, 2, 1]);
    header.extend(shard_id.to_be_bytes());
    header.extend(section.count.to_le_bytes());
    header.extend(section.num_bytes.to_le_bytes());
    header.extend(section.xxh3.to_le_bytes());
    header.extend(section.element_bits.to_le_bytes());
    header.extend([0, 0]);
    header.extend(&xxh3_64(&header).to_le_bytes()[..4]);
    header
}

fn json(manifest: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(manifest).unwrap() + "\n"
}

/// The text of a manifest with whatever it now says.
fn seal(mut manifest: Manifest) -> String {
    manifest.build_id = String::new();
    manifest.build_id = format!("{:032x}", xxh3_128(json(&manifest).as_bytes()));
    json(&manifest)
}

/// Makes every checksum and id right for what a shard now says and its payloads now are.
fn forge(victim: &Victim, index: usize, mut shard: ShardManifest) {
    let old = victim.path().join(victim.file(index, ""));
    for (name, section) in SECTIONS.iter().zip(sections_mut(&mut shard)) {
        let content = fs::read(old.join(name)).unwrap();
        section.xxh3 = xxh3_64(&content[PAYLOAD..content.len() - 8]);
    }
    let id = xxh3_128(json(&shard).as_bytes());
    for ((name, section), kind) in SECTIONS.iter().zip(sections_mut(&mut shard)).zip(1..) {
        let mut content = fs::read(old.join(name)).unwrap();
        content[..HEADER].copy_from_slice(&header(id, kind, section));
        fs::write(old.join(name), content).unwrap();
    }
    fs::write(old.join("shard.json"), json(&shard)).unwrap();
    fs::rename(old, victim.path().join(format!("shard-{id:032x}"))).unwrap();

    let mut manifest = victim.manifest();
    let lengths = sections_mut(&mut shard).map(|section| section.file_len());
    manifest.shards[index].id = format!("{id:032x}");
    manifest.shards[index].num_tokens = shard.tokens.count;
    manifest.shards[index].num_documents = shard.documents.count;
    manifest.shards[index].num_bytes = lengths.iter().sum::<u64>() + json(&shard).len() as u64;
    manifest.num_tokens = manifest.shards.iter().map(|shard| shard.num_tokens).sum();
    manifest.num_documents = manifest
        .shards
        .iter()
        .map(|shard| shard.num_documents)
        .sum();
    fs::write(victim.path().join("manifest.json"), seal(manifest)).unwrap();
}

fn sections_mut(shard: &mut ShardManifest) -> [&mut SectionManifest; 6] {
    let ShardManifest {
        tokens,
        suffixes,
        firsts,
        keys,
        documents,
        ngrams,
        ..
    } = shard;
    [tokens, suffixes, firsts, keys, documents, ngrams]
}

#[test]
fn files_are_what_the_byte_table_says() {
    let victim = Victim::new();
    forge(&victim, 0, victim.shard(0));
    forge(&victim, 1, victim.shard(1));
    assert_eq!(read_all(&victim.path()), victim.files);
}

#[test]
fn manifests_that_contradict_themselves_are_refused() {
    type Row = (&'static str, fn(&mut Manifest));
    let rows: [Row; 14] = [
        ("no vocabulary", |m| m.vocab_size = 0),
        ("a huge vocabulary", |m| m.vocab_size = u32::MAX),
        ("a separator outside", |m| m.separator = 6),
        ("more tokens", |m| m.num_tokens += 1),
        ("more documents", |m| m.num_documents += 1),
        ("no shards", |m| m.shards.clear()),
        ("a shard too many", |m| m.shards.push(m.shards[0].clone())),
        ("a shard too few", |m| m.shards.truncate(1)),
        ("no tokens in a shard", |m| m.shards[0].num_tokens = 0),
        ("the largest count", |m| m.shards[0].num_tokens = u64::MAX),
        ("a huge shard", |m| m.shards[0].num_bytes = u64::MAX),
        ("more documents than tokens", |m| {
            m.shards[0].num_documents = 6;
        }),
        ("an id that is a path", |m| {
            m.shards[0].id = format!("../{}", &m.shards[0].id[3..]);
        }),
        ("a short id", |m| m.shards[0].id.truncate(31)),
    ];
    let victim = Victim::new();
    let name = Path::new("manifest.json");
    for (row, edit) in rows {
        let mut manifest = victim.manifest();
        edit(&mut manifest);
        let text = seal(manifest);
        let error = victim
            .with(name, text.as_bytes(), Victim::open)
            .unwrap_err();
        let is_found = matches!(&error, Error::Corrupt { path, .. } if path.ends_with(name));
        assert!(is_found, "{row}: {error}");
    }
}

#[test]
fn shards_that_contradict_themselves_are_refused() {
    type Row = (&'static str, fn(&mut ShardManifest));
    let rows: [Row; 8] = [
        ("another format", |s| {
            s.format = "specds datastore".to_owned();
        }),
        ("no tokens", |s| {
            s.tokens.count = 0;
            s.documents.count = 0;
        }),
        ("wide tokens", |s| s.tokens.element_bits = 24),
        ("wide positions", |s| s.suffixes.element_bits = 64),
        ("fewer positions", |s| s.suffixes.count -= 1),
        ("more positions", |s| s.suffixes.count += 1),
        ("more documents than tokens", |s| s.documents.count = 6),
        ("a longer payload", |s| s.keys.num_bytes = 0),
    ];
    for (row, edit) in rows {
        let victim = Victim::new();
        let mut shard = victim.shard(0);
        edit(&mut shard);
        forge(&victim, 0, shard);
        let error = victim.open().unwrap_err();
        assert!(matches!(&error, Error::Corrupt { .. }), "{row}: {error}");
    }
    let others: [Row; 2] = [
        ("another vocabulary", |s| {
            s.vocab_size = 5;
            s.firsts.count += 1;
            s.firsts.num_bytes += 4;
        }),
        ("another separator", |s| s.separator = 3),
    ];
    for (row, edit) in others {
        let victim = Victim::new();
        let mut shard = victim.shard(0);
        edit(&mut shard);
        forge(&victim, 0, shard);
        let error = victim.open().unwrap_err();
        assert!(matches!(&error, Error::Mismatch { .. }), "{row}: {error}");
    }
}

#[test]
fn sections_that_contradict_the_tokens_are_found_though_every_checksum_is_right() {
    // Shard 0 is 1 2 0 1 4, so its suffixes begin at 2 0 3 1 4, in three bits each.
    let rows: [(&str, usize, u8, bool); 10] = [
        ("tokens.bin", 0, 0xff, false),
        ("tokens.bin", 0, 1 ^ 2, false),
        ("suffixes.bin", 0, 0b111, false),
        ("suffixes.bin", 0, 0b10, false),
        ("suffixes.bin", 0, 0b0001_0010, false),
        ("suffixes.bin", 0, 0b1101_1000, false),
        ("firsts.bin", 4, 1 ^ 2, false),
        ("firsts.bin", 4, 0x80, true),
        ("keys.bin", 2, 1, false),
        ("documents.bin", 0, 1, false),
    ];
    for (name, byte, mask, is_found_at_open) in rows {
        let victim = Victim::new();
        let name = victim.file(0, name);
        let mut content = victim.files[&name].clone();
        content[PAYLOAD + byte] ^= mask;
        fs::write(victim.path().join(&name), content).unwrap();
        forge(&victim, 0, victim.shard(0));
        let error = match victim.open() {
            Err(error) => {
                assert!(is_found_at_open, "{error}");
                error
            }
            Ok(datastore) => {
                assert!(!is_found_at_open);
                ask(&datastore);
                datastore.verify().unwrap_err()
            }
        };
        assert!(
            matches!(&error, Error::Corrupt { .. }),
            "{} {byte}: {error}",
            name.display()
        );
    }
}

#[test]
fn a_thinned_index_that_keeps_other_suffixes_is_found_though_every_checksum_is_right() {
    // Of 1 1 1 1 4, a stride of 2 keeps the suffixes at 0 2 4, stored as 0 1 2 in two bits each.
    for (mask, is_kept) in [
        (0, true),
        (0b11, false),
        (0b1_0001, false),
        (0b11_0000, false),
    ] {
        let thinned = DatastoreOptions {
            position_stride: 2,
            max_duplicates: 2,
            ..options(4, 4)
        };
        let victim = Victim::built(thinned, &[vec![1, 1, 1, 1], vec![1, 0, 2, 1]]);
        let name = victim.file(0, "suffixes.bin");
        let mut content = victim.files[&name].clone();
        content[PAYLOAD] ^= mask;
        fs::write(victim.path().join(&name), content).unwrap();
        forge(&victim, 0, victim.shard(0));
        let datastore = victim.open().unwrap();
        ask(&datastore);
        let said = datastore.verify();
        match said {
            Ok(()) => assert!(is_kept),
            Err(error) => assert!(
                !is_kept && matches!(error, Error::Corrupt { .. }),
                "{error}"
            ),
        }
    }
}

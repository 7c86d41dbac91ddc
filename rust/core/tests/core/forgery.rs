//! Forged datastores with valid checksums, whose contradictions are rejected.

use std::fs;
use std::path::Path;

use specds_core::Error;
use specds_index::{Manifest, ShardEntry, ShardManifest};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::files::{SECTIONS, TEXT, Victim, ask, read_all};

fn json(manifest: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(manifest).unwrap() + "\n"
}

/// Returns the content of a changed manifest with a valid build id.
pub(crate) fn seal(mut manifest: Manifest) -> String {
    manifest.build_id = String::new();
    manifest.build_id = format!("{:032x}", xxh3_128(json(&manifest).as_bytes()));
    json(&manifest)
}

/// Makes all checksums and ids valid for a changed shard.
pub(crate) fn forge(victim: &Victim, index: usize, mut shard: ShardManifest) {
    let old = victim.path().join(victim.file(index, ""));
    let mut num_bytes = 0;
    for (name, checksum) in SECTIONS.iter().zip(&mut shard.checksums) {
        let content = fs::read(old.join(name)).unwrap();
        *checksum = xxh3_64(&content[..content.len() - 8]);
        num_bytes += content.len() as u64;
    }
    if let Some(sources) = &mut shard.sources {
        let content = fs::read(old.join("sources.bin")).unwrap();
        sources.checksum = xxh3_64(&content[..content.len() - 8]);
        num_bytes += content.len() as u64;
    }
    let id = xxh3_128(json(&shard).as_bytes());
    fs::write(old.join("shard.json"), json(&shard)).unwrap();
    fs::rename(old, victim.path().join(format!("shard-{id:032x}"))).unwrap();

    let mut manifest = victim.manifest();
    manifest.shards[index].id = format!("{id:032x}");
    manifest.shards[index].num_tokens = shard.num_tokens;
    manifest.shards[index].num_documents = shard.num_documents;
    manifest.shards[index].num_bytes = num_bytes + json(&shard).len() as u64;
    let sum = |count: fn(&ShardEntry) -> u64| {
        let counts = manifest.shards.iter().map(count);
        counts.fold(0, u64::wrapping_add)
    };
    manifest.num_tokens = sum(|shard| shard.num_tokens);
    manifest.num_documents = sum(|shard| shard.num_documents);
    fs::write(victim.path().join("manifest.json"), seal(manifest)).unwrap();
}

#[test]
fn forged_but_unchanged_datastore_equals_the_original() {
    let victim = Victim::new();
    forge(&victim, 0, victim.shard(0));
    forge(&victim, 1, victim.shard(1));
    assert_eq!(read_all(&victim.path()), victim.files);
}

#[test]
fn inconsistent_manifests_are_rejected() {
    type ManifestFault = (&'static str, fn(&mut Manifest));
    let rows: [ManifestFault; 14] = [
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
        let opened = victim.with(name, text.as_bytes(), Victim::open);
        let error = opened.unwrap_err();
        let is_found = matches!(&error, Error::Corrupt { path, .. } if path.ends_with(name));
        assert!(is_found, "{row}: {error}");
    }
}

#[test]
fn inconsistent_shards_are_rejected() {
    type ShardFault = (&'static str, fn(&mut ShardManifest));
    let rows: [ShardFault; 8] = [
        ("another format", |s| {
            s.format = "specds datastore".to_owned();
        }),
        ("no tokens", |s| s.num_tokens = 0),
        ("too many tokens", |s| s.num_tokens = 1 << 40),
        ("no documents", |s| s.num_documents = 0),
        ("more documents than tokens", |s| s.num_documents = 6),
        ("another vocabulary", |s| s.vocab_size = 5),
        ("another separator", |s| s.separator = 3),
        ("huge names", |s| s.sources.as_mut().unwrap().num_bytes = u64::MAX),
    ];
    for (row, edit) in rows {
        let victim = Victim::new();
        let mut shard = victim.shard(0);
        edit(&mut shard);
        forge(&victim, 0, shard);
        let error = victim.open().unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{row}: {error}");
    }
}

#[test]
fn sections_that_contradict_the_tokens_are_found_by_verify() {
    // Shard 0 is 1 2 0 1 4, so its suffixes begin at 2 0 3 1 4, in three bits each.
    let rows: [(&str, usize, u8, bool); 12] = [
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
        ("sources.bin", 0, 1, false),
        ("sources.bin", 3, 1, false),
    ];
    for (name, byte, mask, is_found_at_open) in rows {
        let victim = Victim::new();
        let name = victim.file(0, name);
        let mut content = victim.files[&name].clone();
        content[byte] ^= mask;
        fs::write(victim.path().join(&name), content).unwrap();
        forge(&victim, 0, victim.shard(0));
        let opened = victim.open();
        assert_eq!(opened.is_err(), is_found_at_open);
        let asked = opened.and_then(|datastore| ask(datastore, &TEXT).verify());
        let error = asked.unwrap_err();
        let is_found = matches!(&error, Error::Corrupt { .. });
        assert!(is_found, "{} {byte}: {error}", name.display());
    }
}

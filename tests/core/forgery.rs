//! Lies with all checksums right: what contradicts itself is refused all the same.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use specds::Error;
use specds::draft::Session;
use specds::fused::Weights;
use specds::fused::{FusedConfig, FusedDrafter, FusedSession};
use specds::storage::{Manifest, PriorEntry, SectionManifest, ShardManifest};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::drafted;
use crate::files::{HEADER, PAYLOAD, SECTIONS, TEXT, Victim, ask, read_all};
use crate::random::Random;

/// A header written from the byte table of the format alone.
pub(crate) fn header(shard_id: u128, kind: u16, section: &SectionManifest) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(b"SPECDS\0\x01");
    header.extend(3_u16.to_le_bytes());
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
pub(crate) fn seal(mut manifest: Manifest) -> String {
    manifest.build_id = String::new();
    manifest.build_id = format!("{:032x}", xxh3_128(json(&manifest).as_bytes()));
    json(&manifest)
}

/// Makes every checksum and id right for what a shard now says and its payloads now are.
pub(crate) fn forge(victim: &Victim, index: usize, mut shard: ShardManifest) {
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

fn sections_mut(shard: &mut ShardManifest) -> [&mut SectionManifest; 5] {
    let ShardManifest {
        tokens,
        suffixes,
        firsts,
        keys,
        documents,
        ..
    } = shard;
    [tokens, suffixes, firsts, keys, documents]
}

#[test]
fn files_are_what_the_byte_table_says() {
    let victim = Victim::new();
    forge(&victim, 0, victim.shard(0));
    forge(&victim, 1, victim.shard(1));
    assert_eq!(read_all(&victim.path()), victim.files);
}

fn prior(id: &str, num_bytes: u64) -> PriorEntry {
    PriorEntry {
        id: id.to_owned(),
        num_tokens: 9,
        num_bytes,
    }
}

#[test]
fn manifests_that_contradict_themselves_are_refused() {
    type Row = (&'static str, fn(&mut Manifest));
    let rows: [Row; 16] = [
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
        ("a prior that is a path", |m| {
            m.prior = Some(prior("../56789abcdef0123456789abcdef012", 9));
        }),
        ("a huge prior", |m| {
            m.prior = Some(prior("0123456789abcdef0123456789abcdef", u64::MAX));
        }),
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
    let rows: [Row; 10] = [
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
        ("another vocabulary", |s| {
            s.vocab_size = 5;
            s.firsts.count += 1;
            s.firsts.num_bytes += 4;
        }),
        ("another separator", |s| s.separator = 3),
    ];
    for (row, edit) in rows {
        let victim = Victim::new();
        let mut shard = victim.shard(0);
        edit(&mut shard);
        forge(&victim, 0, shard);
        let error = victim.open().unwrap_err();
        let is_refused = match row {
            "another vocabulary" | "another separator" => matches!(error, Error::Mismatch(_)),
            _ => matches!(error, Error::Corrupt { .. }),
        };
        assert!(is_refused, "{row}: {error}");
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
                ask(datastore, &TEXT).verify().unwrap_err()
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
fn weights_of_any_numbers_draft_nothing_that_is_no_tree() {
    const NUMBERS: [f32; 4] = [f32::MAX, -f32::MAX, 1.0, -1.0];
    let mut random = Random(5);
    let texts: Vec<_> = (0..20).map(|_| random.tokens(60, 0, 4)).collect();
    for text in &texts {
        let mut bytes = Weights::default().to_bytes();
        let end = bytes.len() - 8;
        for weight in bytes[8..end].chunks_exact_mut(4) {
            let index = random.tokens(1, 0, 4)[0] as usize;
            weight.copy_from_slice(&NUMBERS[index].to_le_bytes());
        }
        let checksum = xxh3_64(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        let weights = Weights::from_bytes(&bytes).unwrap();
        let drafter = FusedDrafter::new(None, None, FusedConfig::default(), weights);
        let mut session = FusedSession::new(Arc::new(drafter.unwrap()), "").unwrap();
        for tokens in text.chunks(3) {
            session.observe(tokens, None).unwrap();
            assert!(drafted(&mut session, 8).len() <= 8);
        }
    }
}

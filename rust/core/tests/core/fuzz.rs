//! Random damage with valid checksums, which is answered or rejected without a panic or an excessive allocation.
//! `make fuzz` tries a thousand times as many inputs (`SPECDS_FUZZ=1000`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use specds_core::draft::Session;
use specds_core::fused::{FusedConfig, FusedDrafter, FusedSession};
use specds_core::memory::{Memory, MemoryOptions};
use specds_index::{DatastoreBuilder, DatastoreOptions, merge};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::files::{SECTIONS, Victim, ask, read_all, write_all, write_in_place};
use crate::forgery::{forge, seal};
use crate::random::Random;
use crate::{build, compacted, drafted, options, tempdir};

const VOCAB_SIZE: u32 = 12;

/// Returns the random inputs of a test.
fn inputs(everyday: u64) -> impl Iterator<Item = Random> {
    let times = std::env::var("SPECDS_FUZZ").map_or(1, |times| times.parse().unwrap());
    (0..everyday * times).map(|seed| Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Applies one to three random changes of the kinds that damage and forgery make.
fn mutate(random: &mut Random, bytes: &mut [u8]) {
    const MOST: u64 = u32::MAX as u64;
    const WORDS: [u64; 8] = [0, 1, 255, 1 << 31, MOST, 1 << 40, 1 << 63, u64::MAX];
    let Ok(length @ 1..) = u32::try_from(bytes.len()) else {
        return;
    };
    for _ in 0..=random.below(3) {
        let start = random.below(length) as usize;
        let end = bytes.len().min(start + 1 + random.below(64) as usize);
        let other = random.below(length) as usize;
        match random.below(7) {
            0 => bytes[start] ^= 1 << random.below(8),
            1 => bytes[start..end].fill(0),
            2 => bytes[start..end].fill(0xff),
            3 => bytes.copy_within(start..end, other.min(bytes.len() - (end - start))),
            4 => bytes.fill_with(|| u8::try_from(random.below(256)).unwrap()),
            way => {
                let width = if way == 5 { 4 } else { 8 };
                let word = WORDS[random.below(8) as usize].to_le_bytes();
                if let Some(place) = bytes[start / width * width..].get_mut(..width) {
                    place.copy_from_slice(&word[..width]);
                }
            }
        }
    }
}

fn documents() -> Vec<Vec<u32>> {
    let mut random = Random(3);
    let phrases: Vec<_> = (0..9).map(|_| random.tokens(7, 0, VOCAB_SIZE)).collect();
    (0..90).map(|_| random.phrases(&phrases, 200)).collect()
}

fn part<'a>(random: &mut Random, text: &'a [u32]) -> &'a [u32] {
    let start = random.below(100) as usize;
    &text[start..start + 24]
}

/// Writes new datastores from a damaged one, which must not spread the damage.
fn rewrite(path: &Path, documents: &[Vec<u32>]) {
    let beside = path.with_file_name("merged");
    let _ = merge(&[path], &beside, true);
    let append =
        DatastoreOptions { append: true, drop_duplicates: true, ..options(VOCAB_SIZE, VOCAB_SIZE) };
    let _ = build(path, append, &documents[..2]);
    if let Ok(compacted) = compacted(path, 1 << 20) {
        compacted.verify().unwrap();
    }
    let _ = fs::remove_dir_all(beside);
}

#[test]
fn datastores_with_damage_are_answered_or_rejected() {
    let documents = documents();
    let text = documents[4].clone();
    let victim = Victim::of(6000, options(VOCAB_SIZE, VOCAB_SIZE), &documents);
    for mut random in inputs(40) {
        let shard = random.below(3) as usize;
        let kind = random.below(6) as usize;
        let name = victim.file(shard, SECTIONS[kind]);
        let mut content = victim.files[&name].clone();
        let end = content.len() - 8;
        mutate(&mut random, &mut content[..end]);
        if SECTIONS[kind] == "firsts.bin" {
            content[..end].as_chunks_mut::<4>().0.sort_by_key(|word| u32::from_le_bytes(*word));
        }
        write_in_place(&victim.path().join(&name), &content);
        let is_sealed = random.below(16) == 0;
        if is_sealed {
            forge(&victim, shard, victim.shard(shard));
        }
        if let Ok(datastore) = victim.open() {
            let datastore = ask(datastore, part(&mut random, &text));
            if random.below(4) == 0 {
                datastore.warm(true).unwrap();
                let _ = datastore.verify();
            }
        }
        if is_sealed {
            rewrite(&victim.path(), &documents);
            victim.restore();
        } else {
            write_in_place(&victim.path().join(&name), &victim.files[&name]);
        }
    }
}

/// Replaces, repeats or removes a part of a JSON document.
fn lie(random: &mut Random, value: &mut Value) {
    const NAMES: [&str; 5] = ["", "..", "../../etc/passwd", "/", "\0"];
    const NUMBERS: [u64; 7] = [0, 1, 3, 255, 1 << 31, 1 << 40, u64::MAX];
    let below = |random: &mut Random, length: usize| {
        random.below(u32::try_from(length).unwrap().max(1)) as usize
    };
    match value {
        Value::Object(fields) => {
            let at = below(random, fields.len());
            lie(random, fields.values_mut().nth(at).unwrap());
        }
        Value::Array(items) if !items.is_empty() && random.below(3) > 0 => {
            let at = below(random, items.len());
            lie(random, &mut items[at]);
        }
        Value::Array(items) => match items.pop() {
            Some(item) if random.below(2) == 0 => items.extend([item.clone(), item]),
            _ => {}
        },
        Value::String(text) if random.below(2) == 0 => {
            let rest: String = text.chars().skip(3).collect();
            *text = NAMES[below(random, NAMES.len())].to_owned() + &rest;
        }
        Value::String(text) => {
            text.pop();
        }
        other => *other = NUMBERS[below(random, NUMBERS.len())].into(),
    }
}

/// Returns a manifest with one or two changes; `None` if it cannot be parsed.
fn lied<T: Serialize + DeserializeOwned>(random: &mut Random, manifest: &T) -> Option<T> {
    let mut value = serde_json::to_value(manifest).unwrap();
    for _ in 0..=random.below(2) {
        lie(random, &mut value);
    }
    serde_json::from_value(value).ok()
}

#[test]
fn manifests_with_forgery_are_answered_or_rejected() {
    let documents = documents();
    let victim = Victim::of(6000, options(VOCAB_SIZE, VOCAB_SIZE), &documents);
    for mut random in inputs(60) {
        let index = random.below(3) as usize;
        if random.below(2) == 0 {
            let Some(shard) = lied(&mut random, &victim.shard(index)) else {
                continue;
            };
            forge(&victim, index, shard);
        } else if let Some(manifest) = lied(&mut random, &victim.manifest()) {
            fs::write(victim.path().join("manifest.json"), seal(manifest)).unwrap();
        }
        if let Ok(datastore) = victim.open() {
            ask(datastore, part(&mut random, &documents[4]));
        }
        victim.restore();
    }
}

/// Makes length and checksum of a snapshot valid.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    let covered = [&bytes[32..], &bytes[..24]].concat();
    bytes[24..32].copy_from_slice(&xxh3_64(&covered).to_le_bytes());
    bytes
}

#[test]
fn snapshots_with_damage_are_opened_or_rejected() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("memory");
    let max_bytes = 1 << 20;
    let options = MemoryOptions { max_bytes, ..MemoryOptions::new(VOCAB_SIZE) };
    let memory = Arc::new(Memory::new(options.clone()).unwrap());
    let drafter =
        |memory| Arc::new(FusedDrafter::new(None, Some(memory), FusedConfig::default()).unwrap());
    let draft = |drafter: &Arc<FusedDrafter>| {
        let mut session = FusedSession::new(Arc::clone(drafter), "ann").unwrap();
        session.observe(&[1, 2, 1], None).unwrap();
        assert!(drafted(&mut session, 8).len() <= 8);
        session.observe(&[2, 1, 2, 3], None).unwrap();
    };
    draft(&drafter(Arc::clone(&memory)));
    let mut random = Random(9);
    for tenant in ["ann", "bob", "ann", "", "cid"] {
        memory.insert(tenant, &random.tokens(40, 0, VOCAB_SIZE)).unwrap();
    }
    let store = folder.path().join("store");
    memory.save(&store, None).unwrap();
    let is_head = |name: &PathBuf| name.to_string_lossy().contains("head");
    let (heads, segments): (Vec<_>, Vec<_>) =
        read_all(&store).into_iter().partition(|(name, _)| is_head(name));
    let (name, whole) = &segments[0];
    let head = String::from_utf8(heads[0].1.clone()).unwrap();
    let (head, _) = head.split_once("\"checksum\"").unwrap();
    fs::create_dir(&path).unwrap();
    for mut random in inputs(700) {
        let mut bytes = whole.clone();
        mutate(&mut random, &mut bytes[8..]);
        if random.below(4) == 0 {
            bytes.truncate(32 + random.below(400) as usize);
        }
        let bytes = sealed(bytes);
        let forged = format!("{:032x}-{:016x}", xxh3_128(&bytes), 0);
        let length = |bytes: &[u8]| format!("\"num_bytes\": {}", bytes.len());
        let head = head.replace(name.to_str().unwrap(), &forged);
        let head = head.replace(&length(whole), &length(&bytes));
        let text = |checksum| format!("{head}\"checksum\": \"{checksum}\"\n}}\n");
        let checksum = format!("{:032x}", xxh3_128(text("").as_bytes()));
        fs::write(path.join("head-000000000000"), text(&checksum)).unwrap();
        fs::write(path.join(&forged), bytes).unwrap();
        let opened = Memory::open(&path, options.clone());
        fs::remove_file(path.join(&forged)).unwrap();
        if let Err(error) = &opened {
            assert!(!error.to_string().contains("head"), "{error}");
        }
        if let Ok(memory) = opened {
            assert!(memory.num_bytes() <= max_bytes);
            memory.insert("bob", &[1, 2, 3]).unwrap();
            draft(&drafter(Arc::new(memory)));
        }
    }
}

#[test]
fn checkpoints_of_a_killed_build_with_damage_are_resumed_or_rejected() {
    let documents = documents();
    let planned = || DatastoreOptions {
        max_shard_tokens: Some(2500),
        drop_duplicates: true,
        plan: Some("a corpus".to_owned()),
        ..options(VOCAB_SIZE, VOCAB_SIZE)
    };
    let folder = tempdir().unwrap();
    let path = folder.path().join("d");
    let staging = folder.path().join(".d.build");
    let mut builder = DatastoreBuilder::create(&path, planned()).unwrap();
    for document in &documents[..40] {
        builder.add_document(document).unwrap();
    }
    let killed = read_all(&staging);
    drop(builder);
    for mut random in inputs(10) {
        write_all(&staging, &killed);
        fs::set_permissions(&staging, PermissionsExt::from_mode(0o700)).unwrap();
        let names: Vec<_> = killed.keys().filter(|name| !name.ends_with("specds.lock")).collect();
        let name = staging.join(names[random.below(u32::try_from(names.len()).unwrap()) as usize]);
        let mut content = fs::read(&name).unwrap();
        mutate(&mut random, &mut content);
        fs::write(&name, content).unwrap();
        if let Ok(mut builder) = DatastoreBuilder::create(&path, planned()) {
            let given = usize::try_from(builder.num_given()).unwrap_or(usize::MAX);
            for document in documents[..40].iter().skip(given) {
                let _ = builder.add_document(document);
            }
            let _ = builder.finish();
        }
        let _ = fs::remove_dir_all(&path);
        let _ = fs::remove_dir_all(&staging);
    }
}

//! Snapshots of a memory: what they bring back, and every lie in one.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::fused::Memory;
use specds::memory::MemoryOptions;
use specds::{Error, Result};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use crate::memory::{memory, options, text};
use crate::{refusal, tempdir};

const MAX_BYTES: usize = 1 << 20;
const UNFIT: &str = "its parts do not fit together";

fn place() -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("memory");
    (folder, path)
}

fn open(path: &Path) -> Result<Memory> {
    Memory::open(path, options(MAX_BYTES))
}

/// A small snapshot, byte for byte.
fn small() -> Vec<u8> {
    let (_folder, path) = place();
    let memory = memory(MAX_BYTES);
    memory.insert("ann", &[1, 2, 3]).unwrap();
    memory.insert("bob", &[4]).unwrap();
    memory.insert("ann", &[5, 6]).unwrap();
    memory.save(&path).unwrap();
    fs::read(&path).unwrap()
}

/// Makes length and checksum true again.
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    let covered = [&bytes[32..], &bytes[..24]].concat();
    bytes[24..32].copy_from_slice(&xxh3_64(&covered).to_le_bytes());
    bytes
}

fn reason(opened: Result<Memory>) -> String {
    match opened {
        Err(Error::Snapshot { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_saved_comes_back(
        inserts in vec((prop::sample::select(&["ann", "bob", "", "ünï"][..]), any::<u32>(), 0_usize..150), 0..60),
        vocab_size in prop_oneof![Just(100), Just(65_536), Just(65_537), Just(1 << 20)],
    ) {
        let (_folder, path) = place();
        let options = MemoryOptions { vocab_size, ..options(MemoryOptions::MIN_BYTES) };
        let memory = Memory::new(options.clone()).unwrap();
        let shifted = |seed, length| {
            let tokens = text(seed, length);
            tokens.into_iter().map(|token| token + vocab_size - 100).collect::<Vec<_>>()
        };
        for (tenant, seed, length) in inserts {
            memory.insert(tenant, &shifted(seed, length)).unwrap();
        }
        memory.save(&path).unwrap();
        // With room for tables that grew in other steps.
        let options = MemoryOptions { max_bytes: MAX_BYTES, ..options };
        let opened = Memory::open(&path, options).unwrap();
        for tenant in ["ann", "bob", "", "ünï"] {
            prop_assert_eq!(opened.texts(tenant), memory.texts(tenant));
        }
        prop_assert_eq!(opened.num_tokens(), memory.num_tokens());
        prop_assert_eq!(opened.num_tenants(), memory.num_tenants());
        let again = path.with_extension("again");
        opened.save(&again).unwrap();
        prop_assert_eq!(fs::read(&again).unwrap(), fs::read(&path).unwrap());
    }
}

#[test]
fn the_golden_snapshot_opens_and_is_written_again_to_the_byte() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/memory-4.bin");
    let memory = open(&golden).unwrap();
    assert_eq!(memory.texts("ann"), [vec![1, 2, 3], vec![5, 6]]);
    assert_eq!(memory.texts("bob"), [[4]]);
    assert_eq!(small(), fs::read(golden).unwrap());
}

#[test]
fn a_snapshot_cut_at_any_byte_is_refused() {
    let (_folder, path) = place();
    let whole = small();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        reason(open(&path));
        if length >= 32 {
            fs::write(&path, sealed(whole[..length].to_vec())).unwrap();
            assert_eq!(reason(open(&path)), UNFIT);
        }
    }
    fs::write(&path, [&whole[..], b"\0"].concat()).unwrap();
    assert!(reason(open(&path)).contains("where"));
    fs::write(&path, sealed([&whole[..], b"\0"].concat())).unwrap();
    assert_eq!(reason(open(&path)), UNFIT);
}

#[test]
fn a_snapshot_with_any_byte_changed_is_refused() {
    let (_folder, path) = place();
    let whole = small();
    for place in 0..whole.len() {
        for change in [1, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[place] ^= change;
            fs::write(&path, &bytes).unwrap();
            reason(open(&path));
        }
    }
    fs::write(&path, &whole).unwrap();
    open(&path).unwrap();
}

#[test]
fn what_a_poisoned_snapshot_says_is_checked() {
    let (_folder, path) = place();
    let whole = small();
    let find = |part: &[u8]| whole.windows(part.len()).position(|window| window == part);
    let (token, name) = (find(&[5, 0, 6, 0]).unwrap(), find(b"bob").unwrap());
    let length = name + 3 + 40;
    let rows: [(usize, &[u8], &str); 10] = [
        (token, &[100], "it holds tokens outside its vocabulary"),
        (name, b"ann", "it names a tenant that cannot be"),
        (name, &[0xFF], UNFIT),
        (name + 3 + 7, &[0x80], UNFIT),
        (length, &[0], UNFIT),
        (length, &[2], UNFIT),
        (length, &[200], UNFIT),
        (length, &[0xFF; 8], UNFIT),
        (32, &[0xFF; 8], UNFIT),
        (whole.len(), &[], ""),
    ];
    for (place, lie, said) in rows {
        let mut bytes = whole.clone();
        bytes[place..place + lie.len()].copy_from_slice(lie);
        fs::write(&path, sealed(bytes)).unwrap();
        match open(&path) {
            Ok(_) => assert!(lie.is_empty(), "the control is read"),
            refused => assert_eq!(reason(refused), said, "{lie:?} at {place}"),
        }
    }
}

#[test]
fn what_is_no_snapshot_or_a_newer_one_is_refused_by_name() {
    let (_folder, path) = place();
    assert!(matches!(open(&path), Err(Error::Io { .. })));
    fs::write(&path, "a text file, longer than the header of any snapshot").unwrap();
    assert_eq!(reason(open(&path)), "it is none");
    let mut bytes = small();
    bytes[8] = 9;
    fs::write(&path, sealed(bytes)).unwrap();
    assert_eq!(
        reason(open(&path)),
        "it has format version 9, this version of specds reads 4"
    );
}

#[test]
fn a_smaller_memory_keeps_the_latest_texts() {
    let (_folder, path) = place();
    let large = memory(MAX_BYTES);
    for seed in 0..200 {
        large.insert("ann", &text(seed, 100)).unwrap();
    }
    large.save(&path).unwrap();
    let opened = Memory::open(&path, options(1 << 16)).unwrap();
    assert!(opened.num_bytes() <= 1 << 16);
    let kept = opened.texts("ann");
    assert!((15..50).contains(&kept.len()), "{}", kept.len());
    let first = 200 - u32::try_from(kept.len()).unwrap();
    let expected: Vec<_> = (first..200).map(|seed| text(seed, 100)).collect();
    assert_eq!(kept, expected);
    opened.insert("ann", &text(0, 50)).unwrap();
    assert!(
        opened
            .texts("ann")
            .ends_with(&[text(199, 100), text(0, 50)]),
        "the newest goes last"
    );
}

#[test]
fn what_was_forgotten_or_evicted_is_not_in_the_next_snapshot() {
    let (_folder, path) = place();
    let memory = memory(MemoryOptions::MIN_BYTES);
    let holds = |tokens: &[u32]| {
        memory.save(&path).unwrap();
        let stored = tokens
            .iter()
            .flat_map(|&token| token.to_le_bytes().into_iter().take(2));
        let stored: Vec<u8> = stored.collect();
        let bytes = fs::read(&path).unwrap();
        bytes.windows(stored.len()).any(|window| window == stored)
    };
    memory.insert("ann", &text(1, 50)).unwrap();
    memory.insert("bob", &text(2, 50)).unwrap();
    assert!(holds(&text(1, 50)) && holds(&text(2, 50)));
    memory.forget("ann");
    assert!(!holds(&text(1, 50)) && holds(&text(2, 50)));
    for seed in 3..50 {
        memory.insert("ann", &text(seed, 100)).unwrap();
    }
    assert!(!holds(&text(3, 100)) && holds(&text(49, 100)));
    assert!(holds(&text(2, 50)), "he has little");
}

#[test]
fn a_save_that_fails_leaves_what_was_there() {
    let (folder, path) = place();
    let memory = memory(MAX_BYTES);
    memory.insert("ann", &[1]).unwrap();
    assert_eq!(refusal(memory.save("..")), "`path` must name a file");
    let nowhere = folder.path().join("nowhere").join("memory");
    assert!(matches!(memory.save(&nowhere), Err(Error::Io { .. })));
    fs::create_dir(&path).unwrap();
    assert!(matches!(memory.save(&path), Err(Error::Io { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn saves_to_one_path_at_a_time_never_mix() {
    let (folder, path) = place();
    let saved = |tenant: &str| {
        let memory = memory(MAX_BYTES);
        memory.insert(tenant, &text(1, 5000)).unwrap();
        for _ in 0..20 {
            memory.save(&path).unwrap();
            let opened = open(&path).unwrap();
            let has_text = |tenant: &&str| opened.texts(tenant) == [text(1, 5000)];
            assert!(["ann", "bob", "cat"].iter().any(has_text));
        }
    };
    thread::scope(|scope| {
        for tenant in ["ann", "bob", "cat"] {
            scope.spawn(move || saved(tenant));
        }
    });
    open(&path).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_another_has_saved_meanwhile_stays_but_for_who_was_forgotten() {
    let (_folder, path) = place();
    let first = memory(MAX_BYTES);
    first.merge_into(&path, None).unwrap();
    let [ours, theirs] = [(), ()].map(|()| open(&path).unwrap());
    theirs.insert("ann", &[1, 2]).unwrap();
    theirs.insert("bob", &[3]).unwrap();
    theirs.merge_into(&path, None).unwrap();
    ours.insert("ann", &[4, 5]).unwrap();
    ours.forget("bob");
    fs::create_dir(path.with_file_name("nowhere")).unwrap();
    ours.save(path.with_file_name("nowhere")).unwrap_err();
    ours.merge_into(&path, None).unwrap();
    let both = [vec![4, 5], vec![1, 2]];
    for merged in [&ours, &open(&path).unwrap()] {
        assert_eq!(merged.texts("ann"), both);
        assert!(merged.find("bob").is_none());
    }
    // Nothing has changed there since: what was forgotten now does not come from it.
    ours.clear();
    ours.merge_into(&path, None).unwrap();
    assert_eq!(open(&path).unwrap().num_tenants(), 0);
    ours.save(path.with_extension("mine")).unwrap();
    theirs.save(&path).unwrap();
    assert_eq!(open(&path).unwrap().num_tenants(), 2, "a save replaces");

    fs::write(&path, "somebody's").unwrap();
    assert!(refusal(ours.merge_into(&path, None)).contains("cannot be opened as a memory"));
    assert_eq!(fs::read(&path).unwrap(), b"somebody's");
}

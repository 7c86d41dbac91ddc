//! Eviction, size limits and concurrent readers of a memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;
use specds_core::memory::{IndexedTokens, Memory, MemoryOptions};

use crate::tempdir;

const VOCAB_SIZE: u32 = 100;
const MAX_NAME: usize = Memory::MAX_NAME;
const BYTES_PER_TOMBSTONE: usize = 64;

fn memory(max_bytes: usize) -> Memory {
    Memory::new(options(max_bytes)).unwrap()
}

fn options(max_bytes: usize) -> MemoryOptions {
    MemoryOptions { max_bytes, tokenizer: "naïve".to_owned(), ..MemoryOptions::new(VOCAB_SIZE) }
}

/// Returns the positions of a pattern by definition, the latest first.
fn occurrences(text: &[u32], pattern: &[u32]) -> Vec<usize> {
    let ends = pattern.len()..=text.len();
    let ends = ends.filter(|&end| text[..end].ends_with(pattern));
    ends.map(|end| end - 1).rev().collect()
}

/// Returns a text of `length` tokens that differs from those of other seeds.
fn text(seed: u32, length: usize) -> Vec<u32> {
    let step = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let states = std::iter::successors(Some(seed.wrapping_mul(2_654_435_761) | 1), step);
    states.map(|state| (state >> 9) % VOCAB_SIZE).take(length).collect()
}

/// Returns a text of at most `num_tokens` different tokens with the skewed frequencies of a language.
fn skewed(num_tokens: u32, length: usize) -> Vec<u32> {
    let (first, second) = (text(1, length), text(2, length));
    let rank = |(a, b): (u32, u32)| (a + 1) * (b + 1) * num_tokens / (VOCAB_SIZE * VOCAB_SIZE + 1);
    first.into_iter().zip(second).map(rank).collect()
}

#[test]
fn positions_of_tokens_and_pairs_equal_a_scan_through_many_growths() {
    let with_ends = |token| {
        let is_end = token == 39;
        if is_end { IndexedTokens::BOUNDARY } else { token }
    };
    let text: Vec<_> = skewed(40, 20_000).into_iter().map(with_ends).collect();
    let mut history = IndexedTokens::default();
    for (number, piece) in text.chunks(17).enumerate() {
        history.extend(piece);
        let length = history.tokens().len();
        assert_eq!(history.tokens(), &text[..length]);
        if number >= 20 && length < text.len() {
            continue;
        }
        let places = |pattern: &[u32]| {
            let mut places = occurrences(history.tokens(), pattern);
            places.retain(|_| !pattern.contains(&IndexedTokens::BOUNDARY));
            places
        };
        for token in (0..40).map(with_ends) {
            let found: Vec<_> = history.of_token(token).collect();
            assert_eq!(found, places(&[token]));
            for before in (0..40).map(with_ends) {
                let found: Vec<_> = history.of_pair(before, token).collect();
                assert_eq!(found, places(&[before, token]));
            }
        }
    }
    let counts = (0..40).map(|token| history.of_pair(token, token).count());
    assert!(counts.clone().any(|count| count == 1) && counts.clone().any(|count| count > 100));
}

#[test]
fn million_tokens_take_at_most_sixteen_bytes_each() {
    let mut history = IndexedTokens::default();
    for piece in skewed(1000, 1_100_000).chunks(1000) {
        history.extend(piece);
        let length = history.tokens().len();
        assert!(length < 1_000_000 || history.num_bytes() <= 16 * length);
    }
}

#[derive(Debug, Clone)]
enum MemoryStep {
    Insert(&'static str, Vec<u32>),
    Forget(&'static str),
    Clear,
}

const TENANTS: [&str; 3] = ["ann", "bob", ""];

fn steps() -> impl Strategy<Value = Vec<MemoryStep>> {
    let tenant = || prop::sample::select(&TENANTS[..]);
    let tokens = prop_oneof![
        4 => vec(0_u32..4, 0..4),
        4 => (any::<u32>(), 1_usize..200).prop_map(|(seed, length)| text(seed, length)),
    ];
    let step = prop_oneof![
        20 => (tenant(), tokens).prop_map(|(tenant, tokens)| MemoryStep::Insert(tenant, tokens)),
        1 => tenant().prop_map(MemoryStep::Forget),
        1 => Just(MemoryStep::Clear),
    ];
    vec(step, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn eviction_keeps_the_latest_texts_and_an_equal_share_of_each_tenant(
        steps in steps(),
        max_kib in 18_usize..24,
    ) {
        let memory = memory(max_kib << 10);
        // The texts of each tenant by definition, in the order of their arrival.
        let mut oracle = BTreeMap::<_, Vec<_>>::new();
        let mut forgotten = BTreeSet::new();
        for step in steps {
            let num_bytes = |tenant: &&str| memory.find(tenant).map_or(0, |found| found.num_bytes());
            let before_all = TENANTS.map(|tenant| num_bytes(&tenant));
            let (all, mut room, mut writer) = (memory.num_bytes(), 0, None);
            match step {
                MemoryStep::Insert(tenant, tokens) => {
                    memory.insert(tenant, &tokens).unwrap();
                    let texts = oracle.entry(tenant).or_default();
                    if !tokens.is_empty() && !texts.contains(&tokens) {
                        texts.push(tokens.clone());
                    }
                    // An upper bound of the bytes of these tokens.
                    (room, writer) = (64 * tokens.len() + 2000, Some(tenant));
                }
                MemoryStep::Forget(tenant) => {
                    memory.forget(tenant);
                    oracle.remove(tenant);
                    if !forgotten.contains("everybody") {
                        forgotten.insert(tenant);
                    }
                }
                MemoryStep::Clear => {
                    memory.clear();
                    oracle.clear();
                    // One tombstone stands for all tenants from then on.
                    forgotten = BTreeSet::from(["everybody"]);
                }
            }
            let num_tenants = TENANTS.iter().filter(|tenant| memory.find(tenant).is_some()).count();
            for (tenant, before) in TENANTS.iter().zip(before_all) {
                let alive = memory.texts(tenant);
                let expected = oracle.entry(tenant).or_default();
                if alive.len() < expected.len() {
                    prop_assert!(all + room > memory.max_bytes(), "evicted without need");
                    let is_one = |at: &usize| before_all[*at] > 0 || writer == Some(TENANTS[*at]);
                    let num_sharing = (0..TENANTS.len()).filter(is_one).count();
                    let share = memory.max_bytes() / num_sharing.max(1) / 4 * 3;
                    prop_assert!(writer == Some(*tenant) || before > share, "the tenant was below its share");
                }
                expected.drain(..expected.len().saturating_sub(alive.len()));
                prop_assert_eq!(&alive, expected);
            }
            let num_tokens: usize = oracle.values().flatten().map(Vec::len).sum();
            prop_assert_eq!(memory.num_tokens(), num_tokens);
            prop_assert_eq!(memory.num_tenants(), num_tenants);
            let sum: usize = TENANTS.iter().map(num_bytes).sum();
            prop_assert_eq!(memory.num_bytes(), sum + BYTES_PER_TOMBSTONE * forgotten.len());
            prop_assert!(memory.num_bytes() <= memory.max_bytes());
        }
        memory.clear();
        let left = (memory.num_bytes(), memory.num_tokens(), memory.num_tenants());
        prop_assert_eq!(left, (BYTES_PER_TOMBSTONE, 0, 0));
    }
}

#[test]
fn inserts_stay_within_the_limit_and_exceed_it_by_a_fourth_at_most_meanwhile() {
    let memory = memory(1 << 20);
    let long = text(9, 200_000);
    let is_done = AtomicBool::new(false);
    let mut most = 0;
    thread::scope(|scope| {
        let meanwhile = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(memory.num_bytes());
            }
            most
        });
        for number in 0..100_000_u32 {
            let length = match number {
                _ if number % 30_000 == 29_999 => long.len(),
                _ if number % 3000 == 0 => 3000,
                _ => (number % 4) as usize,
            };
            let start = (number as usize).wrapping_mul(31) % (long.len() - length + 1);
            let tenant = format!("tenant {}", number % if number < 60_000 { 1000 } else { 2 });
            let text = &long[start..start + length];
            memory.insert(&tenant, text).unwrap();
            assert!(memory.num_bytes() <= memory.max_bytes());
            let keeps_newest = text.is_empty() || !memory.texts(&tenant).is_empty();
            assert!(keeps_newest);
            most = most.max(memory.num_bytes());
        }
        is_done.store(true, Ordering::Relaxed);
        let slack = memory.max_bytes() / 4;
        assert!(meanwhile.join().unwrap() <= memory.max_bytes() + slack);
    });
    let used = memory.max_bytes() / 10 * 9;
    assert!(most > used, "some room is never used");
}

#[test]
fn eviction_keeps_most_of_a_full_memory() {
    let memory = memory(350_000);
    let mut num_evictions = 0;
    for seed in 0..4000 {
        let (before, tenant) = (memory.num_tokens(), TENANTS[seed as usize % 3]);
        memory.insert(tenant, &text(seed, 50)).unwrap();
        if memory.num_tokens() < before {
            num_evictions += 1;
            assert!(memory.num_tokens() > before / 2);
        }
    }
    let is_some = (5..150).contains(&num_evictions);
    assert!(is_some, "{num_evictions} evictions");
}

#[test]
fn time_of_a_deletion_is_known_once_it_is_in_a_file() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_secs_f64()
    });
    let path = folder.path().join("memory");
    let (one, other) = (memory(1 << 20), memory(1 << 20));
    let deleted_at = |name| (one.deleted_at(name), other.deleted_at(name));
    let begin = clock();
    one.forget("ann");
    assert_eq!(deleted_at("ann"), (f64::INFINITY, 0.0));
    one.save(&path, None).unwrap();
    other.save(&path, None).unwrap();
    let (of_one, of_other) = deleted_at("ann");
    assert!((of_one - of_other).abs() < 1e-9);
    assert!((begin - 1e-3..=clock()).contains(&of_one));
    assert_eq!(deleted_at("bob"), (0.0, 0.0));
    one.clear();
    assert_eq!(deleted_at("bob"), (f64::INFINITY, 0.0));
    one.save(&path, None).unwrap();
    other.save(&path, None).unwrap();
    assert!(deleted_at("bob").1 > of_one && deleted_at("ann").1 > of_one);
    // Beyond their limit, what is pruned may be of any name.
    for number in 0..1100 {
        one.insert(&format!("{number}"), &[1]).unwrap();
        one.forget(&format!("{number}"));
        if number % 100 == 99 {
            one.save(&path, None).unwrap();
        }
    }
    assert!(one.deleted_at("nobody") > of_one && one.deleted_at("nobody") < f64::INFINITY);
}

#[test]
fn tombstones_are_counted_and_bounded() {
    let memory = memory(1 << 20);
    memory.insert("ann", &[1, 2, 3]).unwrap();
    let before = memory.num_bytes();
    let mut most = 0;
    for number in 0..3000 {
        memory.forget(&format!("nobody {number}"));
        let num_bytes = memory.num_bytes() - before;
        assert!(
            num_bytes.is_multiple_of(BYTES_PER_TOMBSTONE) && num_bytes <= memory.max_bytes() / 16
        );
        most = most.max(num_bytes);
    }
    assert_eq!(most, memory.max_bytes() / 16);
    assert_eq!(memory.texts("ann"), [[1, 2, 3]]);
}

#[test]
fn end_of_a_text_longer_than_the_memory_is_stored() {
    for name in ["", &"n".repeat(MAX_NAME)] {
        let memory = memory(MemoryOptions::MIN_BYTES);
        memory.insert("other", &[1, 2, 3]).unwrap();
        let long = text(1, 100_000);
        memory.insert(name, &long).unwrap();
        let [kept] = &memory.texts(name)[..] else { panic!("one text") };
        assert!(kept.len() > 200 && long.ends_with(kept));
        assert!(memory.num_bytes() <= memory.max_bytes());
    }
}

#[test]
fn debug_output_of_a_memory_shows_only_sizes() {
    let shown = |tenant: &str, token: u32| {
        let memory = memory(1 << 20);
        memory.insert(tenant, &[token]).unwrap();
        format!("{memory:?}")
    };
    assert!(shown("ann", 77).contains("num_tokens: 1"));
    assert_eq!(shown("ann", 77), shown("bob", 5));
}

/// Returns a text that encodes its number.
fn named(number: u32) -> Vec<u32> {
    vec![number % 100; 20 + (number / 100) as usize]
}

/// Checks that the texts are consecutive ones of those that were written.
fn check_whole<'a>(texts: impl Iterator<Item = &'a [u32]>) {
    let mut last = None;
    for text in texts {
        let number = 100 * (u32::try_from(text.len()).unwrap() - 20) + text[0];
        assert!(last.is_none_or(|last| number == last + 1));
        assert_eq!(text, named(number));
        last = Some(number);
    }
}

#[test]
fn readers_see_whole_texts_while_texts_are_added_evicted_and_saved() {
    let memory = memory(1 << 16);
    let folder = tempdir().unwrap();
    let is_done = AtomicBool::new(false);
    let most_seen = AtomicUsize::new(0);
    let read = || {
        let mut seen = BTreeSet::new();
        while !is_done.load(Ordering::Relaxed) {
            let Some(ann) = memory.find("ann") else {
                continue;
            };
            let kept = ann.read();
            let tokens = kept.texts().tokens();
            let mut texts: Vec<_> =
                tokens.split(|&token| token == IndexedTokens::BOUNDARY).collect();
            assert_eq!(texts.pop(), Some(&[][..]), "a boundary follows each text");
            check_whole(texts.into_iter());
            let token = tokens.first().copied().unwrap_or_default();
            let found: Vec<_> = kept.texts().of_pair(token, token).collect();
            assert_eq!(found, occurrences(tokens, &[token, token]));
            seen.insert(tokens.len());
            most_seen.fetch_max(seen.len(), Ordering::Relaxed);
            drop(kept);
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        let saver = scope.spawn(|| {
            for number in (0..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                // A new folder: one that was there may have texts between which others were evicted.
                let path = folder.path().join(format!("memory {number}"));
                memory.save(&path, None).unwrap();
                let opened = Memory::open(&path, options(1 << 16)).unwrap();
                check_whole(opened.texts("ann").iter().map(Vec::as_slice));
            }
        });
        // On a busy machine, readers may see the first texts late.
        let has_seen = |number| number >= 3000 && most_seen.load(Ordering::Relaxed) > 3;
        for number in (0..300_000).take_while(|&number| !has_seen(number)) {
            memory.insert("ann", &named(number)).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        saver.join().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(most_seen.load(Ordering::Relaxed) > 3);
    });
    assert!(memory.texts("ann").len() < 2000);
}

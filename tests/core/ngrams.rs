//! The table of frequent n-grams: against scans, and damaged.

use std::collections::BTreeMap;
use std::path::Path;

use specds::Error;
use specds::build::DatastoreOptions;
use specds::lookup::Datastore;
use tempfile::TempDir;

use crate::files::{read_all, write_in_place};
use crate::{build, options, tempdir};

/// What occurs as often is in the table.
const MIN_COUNT: usize = 256;

/// Three letters, of which 3 is the separator of some corpora.
fn documents() -> Vec<Vec<u32>> {
    let mut state = 1_u32;
    let mut random = |limit| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % limit
    };
    let mut text: Vec<u32> = (0..9000)
        .map(|_| random(20).min(3).min(random(4)))
        .collect();
    text[4000..5000].fill(1);
    text.chunks(700).map(<[u32]>::to_vec).collect()
}

fn built(options: DatastoreOptions) -> (TempDir, Datastore) {
    let folder = tempdir().unwrap();
    let datastore = build(&folder.path().join("d"), options, &documents()).unwrap();
    (folder, datastore)
}

/// The tokens of all documents, each followed by the separator.
fn text(separator: u32) -> Vec<u32> {
    let documents = documents().into_iter();
    documents
        .flat_map(|document| document.into_iter().chain([separator]))
        .collect()
}

/// How often each n-gram of 1 to `max_len` tokens comes that has a separator at its end at most.
fn counts(text: &[u32], separator: u32, max_len: usize) -> BTreeMap<Vec<u32>, usize> {
    let mut counts = BTreeMap::new();
    for start in 0..text.len() {
        let end = text[start..].iter().position(|&token| token == separator);
        for length in 1..=(end.unwrap() + 1).min(max_len) {
            *counts
                .entry(text[start..start + length].to_vec())
                .or_default() += 1;
        }
    }
    counts
}

/// The n-grams of `ngrams.bin` and their numbers of suffixes, read from the byte table alone.
fn stored(payload: &[u8]) -> BTreeMap<Vec<u32>, usize> {
    let (numbers, _) = payload.as_chunks();
    let numbers: Vec<_> = numbers
        .iter()
        .map(|&bytes| u32::from_le_bytes(bytes))
        .collect();
    let (records, _) = numbers.as_chunks::<4>();
    let mut paths = vec![Vec::new(); records.len()];
    let mut counts = BTreeMap::new();
    for index in 0..records.len() - 1 {
        for child in records[index][3]..records[index + 1][3] {
            let child = child as usize;
            let [token, _, count, _] = records[child];
            paths[child] = [&paths[index][..], &[token]].concat();
            counts.insert(paths[child].clone(), count as usize);
        }
    }
    counts
}

#[test]
fn all_frequent_ngrams_are_listed_with_their_counts() {
    for separator in [3, 4] {
        let (folder, datastore) = built(options(4, separator));
        datastore.verify().unwrap();
        let files = read_all(folder.path());
        let ngrams = files.iter().find(|(name, _)| name.ends_with("ngrams.bin"));
        let content = ngrams.unwrap().1;
        let mut expected = counts(&text(separator), separator, 4);
        expected.retain(|ngram, count| *count >= MIN_COUNT && ngram[..] != [separator]);
        assert!(expected.keys().any(|ngram| ngram.len() == 4) && expected.len() > 15);
        assert_eq!(stored(&content[4096..content.len() - 8]), expected);
    }
}

#[test]
fn the_most_frequent_continuations_are_those_of_a_scan() {
    for separator in [3, 4] {
        let (_folder, datastore) = built(options(4, separator));
        let counts = counts(&text(separator), separator, 5);
        let patterns = counts
            .keys()
            .filter(|ngram| ngram.len() < 5 && !ngram.contains(&separator));
        for pattern in patterns {
            let found = datastore.lookup(pattern, 4, pattern.len()).unwrap();
            assert_eq!(found.count(), counts[pattern] as u64);
            let next = |token| {
                let count = *counts.get(&[&pattern[..], &[token]].concat())?;
                Some((token, count as u64))
            };
            let mut expected: Vec<_> = (0..4).filter_map(next).collect();
            expected.sort_by_key(|&(token, count)| (u64::MAX - count, token));
            for top_k in 0..6 {
                let top = &expected[..top_k.min(expected.len())];
                assert_eq!(datastore.continuations(&found, top_k), top, "{pattern:?}");
            }
        }
    }
}

#[test]
fn a_damaged_table_is_harmless_and_found_by_verify() {
    let (folder, datastore) = built(options(4, 4));
    drop(datastore);
    let path = folder.path().join("d");
    let files = read_all(&path);
    let (name, content) = files
        .iter()
        .find(|(name, _)| name.ends_with("ngrams.bin"))
        .unwrap();
    for byte in (4096..content.len() - 8).step_by(5) {
        let mut flipped = content.clone();
        flipped[byte] ^= 0xff;
        write_in_place(&path.join(name), &flipped);
        let datastore = Datastore::open(&path).unwrap();
        for pattern in [
            &[0][..],
            &[1, 1],
            &[1, 0, 1],
            &[0, 0, 0, 0],
            &[2, 1, 0, 1, 1],
        ] {
            let found = datastore.lookup(pattern, 16, 1).unwrap();
            datastore.continuations(&found, 3);
            datastore.samples(&found, 10, 20);
        }
        let error = datastore.verify().unwrap_err();
        assert!(matches!(error, Error::Checksum { path } if path.ends_with(Path::new(name))));
    }
}

//! Tri-grams: counted, saved and opened, lied about, learned from.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{DraftLimits, Session, Source};
use specds::index::Stage;
use specds::lookup::Datastore;
use specds::papers::aded::{
    AdaptiveTrigrams, AdedConfig, AdedSession, SearchConfig, TrigramOptions, Trigrams,
};
use specds::{Error, Result};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use crate::oracle::{Oracle, corpora, shift};
use crate::{build, options, silent, tempdir};

fn count(datastore: &Datastore, options: TrigramOptions) -> Trigrams {
    Trigrams::build(datastore, options, &mut silent).unwrap()
}

/// The words after a prefix by definition.
fn naive(oracle: &Oracle, prefix: &[u32], options: TrigramOptions) -> Vec<(u32, f32)> {
    let mut counts: BTreeMap<u32, u16> = BTreeMap::new();
    for text in oracle.shards() {
        for gram in text.windows(options.order) {
            let (&word, before) = gram.split_last().unwrap();
            if before == prefix && !before.contains(&oracle.separator) && word < oracle.vocab_size {
                *counts.entry(word).or_default() += 1;
            }
        }
    }
    let total: u16 = counts.values().sum();
    let mut words: Vec<_> = counts
        .into_iter()
        .filter(|&(_, count)| u64::from(count) >= options.min_count)
        .map(|(word, count)| (word, f32::from(count) / f32::from(total)))
        .collect();
    words.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    words.truncate(options.max_words);
    words
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn words_are_counted_however_a_datastore_is_cut(
        oracle in corpora(),
        order in 2_usize..5,
        max_words in 1_usize..5,
        min_count in 1_u64..3,
        prefixes in vec(vec(0_u32..4, 3), 1..20),
    ) {
        let folder = tempdir().unwrap();
        let datastore = build(&folder.path().join("d"), oracle.options(), &oracle.documents).unwrap();
        let options = TrigramOptions { order, max_words, min_count };
        let trigrams = count(&datastore, options);
        trigrams.save(folder.path().join("t")).unwrap();
        prop_assert_eq!(&Trigrams::open(folder.path().join("t")).unwrap(), &trigrams);
        for prefix in prefixes {
            let prefix = shift(&prefix[..order - 1], oracle.vocab_size);
            prop_assert_eq!(trigrams.words(&prefix), naive(&oracle, &prefix, options));
        }
    }
}

#[test]
fn a_count_can_be_stopped_and_tells_how_far_it_is() {
    let folder = tempdir().unwrap();
    let datastore = build(&folder.path().join("d"), options(4, 4), &[vec![1, 2, 3]]).unwrap();
    let mut told = Vec::new();
    let mut stop = |stage: Stage, done, total| {
        told.push((stage.name(), done, total));
        ControlFlow::Break(())
    };
    let stopped = Trigrams::build(&datastore, TrigramOptions::default(), &mut stop);
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(told, [("read", 4, 4)]);
}

/// A saved matrix of two prefixes, one with two words.
struct Saved {
    folder: TempDir,
    content: Vec<u8>,
}

/// Two prefixes of two tokens, each with the number of its words; three words with their counts.
const PREFIXES: [u8; 16] = [1, 0, 2, 0, 2, 0, 0, 0, 2, 0, 3, 0, 1, 0, 0, 0];
const WORDS: [(u16, f32); 3] = [(3, 2.0 / 3.0), (0, 1.0 / 3.0), (0, 1.0)];

/// Words as they are stored.
fn stored(words: &[(u16, f32)]) -> Vec<u8> {
    let bytes = words
        .iter()
        .map(|(word, prob)| [&word.to_le_bytes()[..], &prob.to_le_bytes()].concat());
    bytes.collect::<Vec<_>>().concat()
}

impl Saved {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        let documents = [vec![1, 2, 3, 0], vec![1, 2, 3], vec![1, 2, 0]];
        let datastore = build(&folder.path().join("d"), options(4, 4), &documents).unwrap();
        let trigrams = count(&datastore, TrigramOptions::default());
        trigrams.save(folder.path().join("t")).unwrap();
        let content = fs::read(folder.path().join("t")).unwrap();
        Self { folder, content }
    }

    fn open(&self) -> Result<Trigrams> {
        Trigrams::open(self.folder.path().join("t"))
    }

    fn facts(&self) -> serde_json::Value {
        let length = usize::from(self.content[24]) + 256 * usize::from(self.content[25]);
        serde_json::from_slice(&self.content[48..48 + length]).unwrap()
    }

    /// Opens a file of these parts, with right numbers but for what is added to the number of words,
    /// and with a right checksum.
    fn forged(
        &self,
        facts: &serde_json::Value,
        prefixes: &[u8],
        words: &[u8],
        num_more: u64,
    ) -> Result<Trigrams> {
        let facts = serde_json::to_vec(facts).unwrap();
        let mut content = self.content[..24].to_vec();
        let num_words = (words.len() as u64 / 6).wrapping_add(num_more);
        for number in [facts.len() as u64, prefixes.len() as u64 / 8, num_words] {
            content.extend_from_slice(&number.to_le_bytes());
        }
        content.extend([&facts, prefixes, words].concat());
        content.extend(xxh3_64(&content).to_le_bytes());
        let path = self.folder.path().join("forged");
        fs::write(&path, content).unwrap();
        Trigrams::open(path)
    }
}

#[test]
fn a_matrix_is_saved_once_and_always_as_the_same_bytes() {
    let saved = Saved::new();
    let trigrams = saved.open().unwrap();
    let again = saved.folder.path().join("again");
    trigrams.save(&again).unwrap();
    assert_eq!(fs::read(&again).unwrap(), saved.content);
    assert!(matches!(trigrams.save(&again), Err(Error::Exists { path }) if path == again));
    assert_eq!(fs::read_dir(saved.folder.path()).unwrap().count(), 3);
    let parts = [&PREFIXES[..], &stored(&WORDS)].concat();
    let body = &saved.content[..saved.content.len() - 8];
    assert!(body.starts_with(b"specds trigrams\n") && body.ends_with(&parts));
}

#[test]
fn every_changed_and_every_missing_byte_is_found() {
    let saved = Saved::new();
    let path = saved.folder.path().join("t");
    for index in 0..saved.content.len() {
        let mut changed = saved.content.clone();
        changed[index] ^= 1 << (index % 8);
        fs::write(&path, &changed).unwrap();
        assert!(saved.open().is_err(), "byte {index}");
        fs::write(&path, &saved.content[..index]).unwrap();
        assert!(saved.open().is_err(), "{index} bytes");
    }
    fs::write(&path, [&saved.content, &b"\0"[..]].concat()).unwrap();
    assert!(saved.open().is_err(), "one byte more");
    fs::write(&path, &saved.content).unwrap();
    saved.open().unwrap();
}

#[test]
fn what_is_no_matrix_is_told_from_what_is_of_another_version() {
    let saved = Saved::new();
    let nothing = Trigrams::open(saved.folder.path().join("nothing"));
    assert!(matches!(nothing, Err(Error::Io { .. })));
    let datastore = Trigrams::open(saved.folder.path().join("d"));
    assert!(matches!(datastore, Err(Error::NotTrigrams { .. })));
    let path = saved.folder.path().join("t");
    fs::write(&path, b"{}").unwrap();
    assert!(matches!(saved.open(), Err(Error::NotTrigrams { .. })));
    let mut newer = saved.content.clone();
    newer[16] = 3;
    fs::write(&path, newer).unwrap();
    assert!(matches!(saved.open(), Err(Error::Version { found: 3, .. })));
}

#[test]
fn lies_with_a_right_checksum_are_refused() {
    let saved = Saved::new();
    let (facts, words) = (saved.facts(), stored(&WORDS));
    let honest = saved.forged(&facts, &PREFIXES, &words, 0).unwrap();
    assert_eq!(honest, saved.open().unwrap());

    let with = |payload: &[u8], index: usize, bytes: &[u8]| {
        let mut payload = payload.to_vec();
        payload[index..index + bytes.len()].copy_from_slice(bytes);
        payload
    };
    let prefixes = |index, byte| (with(&PREFIXES, index, &[byte]), words.clone());
    let words_with = |index, bytes: &[u8]| (PREFIXES.to_vec(), with(&words, index, bytes));
    let lies = [
        ("a prefix outside the vocabulary", prefixes(8, 4)),
        ("prefixes out of order", prefixes(0, 3)),
        ("a prefix twice", (PREFIXES[..8].repeat(2), words.clone())),
        ("too many words", prefixes(4, 3)),
        ("far too many words", prefixes(7, 255)),
        ("no words", prefixes(4, 0)),
        ("a word too few", (PREFIXES.to_vec(), words[6..].to_vec())),
        ("a word outside the vocabulary", words_with(0, &[4])),
        ("a word twice", words_with(6, &words[..6])),
        ("words out of order", words_with(2, &0.1_f32.to_le_bytes())),
        ("a word too likely", words_with(2, &1.5_f32.to_le_bytes())),
        (
            "a word of no number",
            words_with(2, &f32::NAN.to_le_bytes()),
        ),
        ("a word that cannot be", words_with(8, &[0; 4])),
        ("bytes of no word", (PREFIXES.to_vec(), words[1..].to_vec())),
    ];
    for (lie, (prefixes, words)) in lies {
        let opened = saved.forged(&facts, &prefixes, &words, 0);
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{lie}");
    }
    let options = |name: &str, value: u64| {
        let mut facts = facts.clone();
        facts["options"][name] = value.into();
        facts
    };
    let fact = |name: &str, value: serde_json::Value| {
        let mut facts = facts.clone();
        facts[name] = value;
        facts
    };
    let lies = [
        options("order", 1),
        options("order", 4),
        options("order", 5),
        options("max_words", 0),
        options("min_count", 0),
        fact("vocab_size", 0.into()),
        fact("vocab_size", u32::MAX.into()),
        fact("separator", 5.into()),
        fact("tokenizer_name", 3.into()),
    ];
    for facts in lies {
        let opened = saved.forged(&facts, &PREFIXES, &words, 0);
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{facts}");
    }
    for num_more in [1, u64::MAX, u64::MAX / 6] {
        let opened = saved.forged(&facts, &PREFIXES, &words, num_more);
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{num_more}");
    }
}

fn session(trigrams: &Arc<Trigrams>, config: AdedConfig) -> AdedSession {
    let trigrams = AdaptiveTrigrams::new(Arc::clone(trigrams));
    AdedSession::new(Arc::new(trigrams), config).unwrap()
}

#[test]
fn a_session_drafts_the_likeliest_words_and_learns_others() {
    let saved = Saved::new();
    let trigrams = Arc::new(saved.open().unwrap());
    let mut session = session(&trigrams, AdedConfig::default());
    assert!(session.draft(DraftLimits::nodes(64)).unwrap().is_empty());
    session.observe(&[1, 2], None).unwrap();
    let tree = session.draft(DraftLimits::nodes(64)).unwrap();
    assert_eq!(tree.token_ids(), [3, 0, 0]);
    assert_eq!(tree.parents(), [-1, 0, -1]);
    assert!(
        tree.sources()
            .iter()
            .all(|&source| source == Source::Trigram)
    );
    assert_eq!(session.match_length(), 2);
    assert_eq!(session.draft(DraftLimits::nodes(0)).unwrap().len(), 0);

    session.observe(&[1, 2, 1, 2, 1, 2], None).unwrap();
    assert_eq!(
        session.draft(DraftLimits::nodes(1)).unwrap().token_ids(),
        [1]
    );
    assert_eq!(trigrams.words(&[1, 2]), [(3, 2.0 / 3.0), (0, 1.0 / 3.0)]);
}

#[test]
fn the_smallest_and_the_largest_search_work() {
    let saved = Saved::new();
    let trigrams = Arc::new(saved.open().unwrap());
    for (searches, depth, num_nodes) in [(1, 1, 1), (65_536, 1024, 3)] {
        let search = SearchConfig {
            searches,
            depth,
            candidates: usize::MAX,
            ..SearchConfig::default()
        };
        let config = AdedConfig {
            search,
            adaptation: None,
            ..AdedConfig::default()
        };
        let mut session = session(&trigrams, config);
        session.observe(&[1, 2], None).unwrap();
        assert_eq!(
            session.draft(DraftLimits::nodes(usize::MAX)).unwrap().len(),
            num_nodes
        );
    }
}

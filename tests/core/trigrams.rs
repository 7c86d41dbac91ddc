//! Tri-grams: counted, saved and opened, lied about, learned from.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::Source;
use specds::draft::{DraftLimits, Session};
use specds::lookup::Datastore;
use specds::papers::aded::AdaptiveTrigrams;
use specds::papers::aded::{AdedConfig, AdedSession, SearchConfig};
use specds::papers::aded::{TrigramOptions, Trigrams};
use specds::storage::SectionManifest;
use specds::{Error, Result};
use tempfile::TempDir;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::files::{HEADER, PAYLOAD, read_all, write_in_place};
use crate::forgery::header;
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
    let stopped = Trigrams::build(
        &datastore,
        TrigramOptions::default(),
        &mut |stage, done, total| {
            told.push((stage.name(), done, total));
            if done == total {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(told, [("read", 4, 8), ("read", 8, 8)]);
}

/// A saved matrix of two prefixes, one with two words.
struct Saved {
    folder: TempDir,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

const PREFIXES: &str = "prefixes.bin";
const WORDS: &str = "words.bin";
const MANIFEST: &str = "trigrams.json";

impl Saved {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        let documents = [vec![1, 2, 3, 0], vec![1, 2, 3], vec![1, 2, 0]];
        let datastore = build(&folder.path().join("d"), options(4, 4), &documents).unwrap();
        let trigrams = count(&datastore, TrigramOptions::default());
        trigrams.save(folder.path().join("t")).unwrap();
        let files = read_all(&folder.path().join("t"));
        Self { folder, files }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("t")
    }

    fn open(&self) -> Result<Trigrams> {
        Trigrams::open(self.path())
    }

    fn write(&self, name: impl AsRef<Path>, content: &[u8]) {
        write_in_place(&self.path().join(name), content);
    }

    fn restore(&self) {
        for (name, content) in &self.files {
            self.write(name, content);
        }
    }

    fn payload(&self, name: &str) -> Vec<u8> {
        let content = &self.files[Path::new(name)];
        content[PAYLOAD..content.len() - 8].to_vec()
    }

    /// Writes these payloads and all checksums and ids that they take, and what `edit` makes of the
    /// manifest.
    fn forge(
        &self,
        prefixes: &[u8],
        words: &[u8],
        edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
    ) {
        let text = &self.files[Path::new(MANIFEST)];
        let mut manifest: serde_json::Value = serde_json::from_slice(text).unwrap();
        let sections = [("prefixes", prefixes, 64), ("words", words, 48)];
        let sections = sections.map(|(name, payload, element_bits)| {
            let section = SectionManifest {
                element_bits,
                count: payload.len() as u64 * 8 / u64::from(element_bits),
                num_bytes: payload.len() as u64,
                xxh3: xxh3_64(payload),
            };
            manifest[name] = serde_json::to_value(&section).unwrap();
            (name, payload, section)
        });
        edit(manifest.as_object_mut().unwrap());
        manifest["id"] = "".into();
        let id = xxh3_128(in_order(&manifest).as_bytes());
        manifest["id"] = format!("{id:032x}").into();
        self.write(MANIFEST, in_order(&manifest).as_bytes());
        for ((name, payload, section), kind) in sections.into_iter().zip(7..) {
            let mut content = header(id, kind, &section);
            content.resize(PAYLOAD, 0);
            content.extend_from_slice(payload);
            content.extend_from_slice(&[0; 8]);
            self.write(format!("{name}.bin"), &content);
        }
    }
}

/// JSON as the file has it: `Value` would sort the names.
fn in_order(manifest: &serde_json::Value) -> String {
    let object = |value: &serde_json::Value, names: &[&str], indent: &str| {
        let fields = names.iter().map(|name| {
            let text = serde_json::to_string_pretty(&value[name]).unwrap();
            format!(
                "{indent}  \"{name}\": {}",
                text.replace('\n', &format!("\n{indent}  "))
            )
        });
        format!("{{\n{}\n{indent}}}", fields.collect::<Vec<_>>().join(",\n"))
    };
    let facts = [
        "order",
        "max_words",
        "min_count",
        "vocab_size",
        "separator",
        "tokenizer_name",
        "tokenizer_fingerprint",
        "corpus",
    ];
    let section = ["element_bits", "count", "num_bytes", "xxh3"];
    format!(
        "{{\n  \"format\": {},\n  \"format_version\": {},\n  \"facts\": {},\n  \"prefixes\": {},\n  \"words\": {},\n  \"id\": {}\n}}\n",
        manifest["format"],
        manifest["format_version"],
        object(&manifest["facts"], &facts, "  "),
        object(&manifest["prefixes"], &section, "  "),
        object(&manifest["words"], &section, "  "),
        manifest["id"],
    )
}

#[test]
fn a_matrix_is_saved_once_and_always_as_the_same_bytes() {
    let saved = Saved::new();
    let trigrams = saved.open().unwrap();
    let again = saved.folder.path().join("again");
    trigrams.save(&again).unwrap();
    assert_eq!(read_all(&again), saved.files);
    assert!(matches!(trigrams.save(&again), Err(Error::Exists { path }) if path == again));
    let mut names: Vec<_> = fs::read_dir(saved.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["again", "d", "t"]);
    assert_eq!(
        saved.payload(PREFIXES),
        [1, 0, 2, 0, 2, 0, 0, 0, 2, 0, 3, 0, 1, 0, 0, 0]
    );
    let words = [(3_u16, 2.0_f32 / 3.0), (0, 1.0 / 3.0), (0, 1.0)];
    let words = words.map(|(word, prob)| [&word.to_le_bytes()[..], &prob.to_le_bytes()].concat());
    assert_eq!(saved.payload(WORDS), words.concat());
}

#[test]
fn every_changed_byte_is_found() {
    let saved = Saved::new();
    for (name, content) in &saved.files {
        let is_padding = |index: usize| (HEADER..PAYLOAD).contains(&index);
        for index in (0..content.len()).filter(|&n| !is_padding(n) || n % 61 == 0) {
            let mut changed = content.clone();
            changed[index] ^= 1 << (index % 8);
            saved.write(name, &changed);
            assert!(saved.open().is_err(), "{name:?}, byte {index}");
        }
        saved.write(name, content);
    }
    saved.open().unwrap();
}

#[test]
fn every_cut_and_every_missing_file_is_found() {
    let saved = Saved::new();
    for (name, content) in &saved.files {
        let near_ends = (0..content.len()).filter(|&n| n <= HEADER || n + 40 > content.len());
        for length in near_ends {
            saved.write(name, &content[..length]);
            assert!(saved.open().is_err(), "{name:?} of {length} bytes");
        }
        saved.write(name, &[content, &b"\0"[..]].concat());
        assert!(saved.open().is_err(), "{name:?} with one byte more");
        fs::remove_file(saved.path().join(name)).unwrap();
        assert!(saved.open().is_err(), "{name:?} missing");
        fs::write(saved.path().join(name), content).unwrap();
    }
    saved.open().unwrap();
}

#[test]
fn what_is_no_matrix_is_told_from_what_is_of_another_version() {
    let saved = Saved::new();
    let nothing = Trigrams::open(saved.folder.path().join("nothing"));
    assert!(matches!(nothing, Err(Error::Io { .. })));
    let datastore = Trigrams::open(saved.folder.path().join("d"));
    assert!(matches!(datastore, Err(Error::NotTrigrams { .. })));
    saved.write(MANIFEST, b"{}");
    assert!(matches!(saved.open(), Err(Error::NotTrigrams { .. })));
    let text = String::from_utf8(saved.files[Path::new(MANIFEST)].clone()).unwrap();
    let newer = text.replace("\"format_version\": 2", "\"format_version\": 3");
    saved.write(MANIFEST, newer.as_bytes());
    assert!(matches!(saved.open(), Err(Error::Version { found: 3, .. })));
}

#[test]
fn files_of_two_matrices_do_not_mix() {
    let (saved, other) = (Saved::new(), tempdir().unwrap());
    let datastore = build(
        &other.path().join("d"),
        options(4, 4),
        &[vec![1, 2, 3], vec![2, 3, 1, 0]],
    );
    let trigrams = count(&datastore.unwrap(), TrigramOptions::default());
    trigrams.save(other.path().join("t")).unwrap();
    for name in [PREFIXES, WORDS] {
        saved.write(name, &fs::read(other.path().join("t").join(name)).unwrap());
        assert!(
            matches!(saved.open(), Err(Error::Mismatch { .. })),
            "{name}"
        );
        saved.restore();
    }
}

#[test]
fn lies_with_all_checksums_right_are_refused() {
    let saved = Saved::new();
    let (prefixes, words) = (saved.payload(PREFIXES), saved.payload(WORDS));
    saved.forge(&prefixes, &words, |_| {});
    assert_eq!(saved.files, read_all(&saved.path()), "an honest forgery");

    let with = |payload: &[u8], index: usize, bytes: &[u8]| {
        let mut payload = payload.to_vec();
        payload[index..index + bytes.len()].copy_from_slice(bytes);
        payload
    };
    let word = |prob: f32| with(&words, 2, &prob.to_le_bytes());
    let lies = [
        (
            "a prefix outside the vocabulary",
            with(&prefixes, 8, &[4]),
            words.clone(),
        ),
        (
            "prefixes out of order",
            with(&prefixes, 0, &[3]),
            words.clone(),
        ),
        (
            "a prefix twice",
            with(&prefixes, 8, &[1, 0, 2, 0]),
            words.clone(),
        ),
        (
            "a prefix without words",
            with(&prefixes, 4, &[3, 0, 0, 0, 2, 0, 3, 0, 0]),
            words.clone(),
        ),
        (
            "too many words",
            with(&prefixes, 4, &[255; 4]),
            words.clone(),
        ),
        ("too few words", with(&prefixes, 4, &[1]), words.clone()),
        ("no prefixes", Vec::new(), words.clone()),
        ("no words", prefixes.clone(), Vec::new()),
        (
            "a word outside the vocabulary",
            prefixes.clone(),
            with(&words, 0, &[4]),
        ),
        (
            "a word twice",
            prefixes.clone(),
            with(&words, 6, &words[..6]),
        ),
        ("words out of order", prefixes.clone(), word(0.1)),
        ("a word that is too likely", prefixes.clone(), word(1.5)),
        ("a word that is no number", prefixes.clone(), word(f32::NAN)),
        (
            "a word that cannot be",
            prefixes.clone(),
            with(&words, 8, &[0; 4]),
        ),
    ];
    for (lie, prefixes, words) in lies {
        saved.forge(&prefixes, &words, |_| {});
        assert!(matches!(saved.open(), Err(Error::Corrupt { .. })), "{lie}");
    }
    let facts = [
        ("order", 1.into()),
        ("order", 4.into()),
        ("order", 5.into()),
        ("max_words", 0.into()),
        ("min_count", 0.into()),
        ("vocab_size", 0.into()),
        ("vocab_size", u32::MAX.into()),
        ("separator", 5.into()),
        ("tokenizer_name", serde_json::Value::from(3)),
    ];
    for (name, value) in facts {
        saved.forge(&prefixes, &words, |manifest| {
            manifest["facts"][name] = value;
        });
        assert!(matches!(saved.open(), Err(Error::Corrupt { .. })), "{name}");
    }
    saved.forge(&prefixes, &words, |manifest| {
        manifest["words"]["count"] = u64::MAX.into();
    });
    assert!(matches!(saved.open(), Err(Error::Corrupt { .. })));
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

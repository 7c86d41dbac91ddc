//! How are tri-grams kept on disk?
//!
//! In a folder, written once: `trigrams.json` and two sections as those of a datastore (see
//! [`format`](crate::storage::section)), whose id is that of the folder.
//!
//! | kind | file | elements |
//! | ---: | ---- | -------- |
//! |    7 | `prefixes.bin` | the tokens of each prefix in 16 or 24 bits each, ascending, and the number of its words in 32 bits |
//! |    8 | `words.bin` | token in 16 or 24 bits and probability as a 32-bit float: the words of the first prefix, the likeliest first, of equals the smaller token, then those of the second … |
//!
//! `trigrams.json` states the rest and ends in the id: the xxh3-128 of its own text without one.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::base::error::{Error, Result};
use crate::build::staging::Staging;
use crate::papers::aded::trigrams::{Prefix, TrigramFacts, Trigrams, Word};
use crate::storage::files::{sync_folder, write_whole};
use crate::storage::manifest::{read_preamble, to_json};
use crate::storage::section::{
    FORMAT_VERSION, Kind, Place, Section, SectionManifest, SectionWriter, stamp,
};
use crate::storage::token_array::TokenWidth;

const FORMAT: &str = "specds trigrams";
const FILE_NAME: &str = "trigrams.json";

/// What `trigrams.json` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Manifest {
    format: String,
    format_version: u16,
    facts: TrigramFacts,
    prefixes: SectionManifest,
    words: SectionManifest,
    id: String,
}

impl Manifest {
    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let other = |path| Error::NotTrigrams { path };
        let text = read_preamble(folder, FILE_NAME, FORMAT, other)?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| Error::corrupt(&path, error.to_string()))?;
        if text != manifest.clone().seal().as_bytes() {
            return Err(Error::Checksum { path });
        }
        let corrupt = |reason: String| Error::corrupt(&path, reason);
        manifest
            .facts
            .check()
            .map_err(|error| corrupt(error.to_string()))?;
        if manifest.sizes() == manifest.expected_sizes() {
            Ok(manifest)
        } else {
            Err(corrupt("its sections differ".to_owned()))
        }
    }

    /// Sets the id, and gives the text of the file.
    fn seal(&mut self) -> String {
        self.id.clear();
        self.id = format!("{:032x}", xxh3_128(to_json(self).as_bytes()));
        to_json(self)
    }

    fn place(&self, kind: Kind) -> Place {
        Place {
            shard_id: u128::from_str_radix(&self.id, 16).unwrap_or_default(),
            kind,
        }
    }

    /// The element bits and lengths of the sections.
    fn sizes(&self) -> [(u16, u64); 2] {
        [&self.prefixes, &self.words].map(|section| (section.element_bits, section.num_bytes))
    }

    fn expected_sizes(&self) -> [(u16, u64); 2] {
        let lengths = record_lengths(&self.facts);
        let counts = [self.prefixes.count, self.words.count];
        [0, 1].map(|index| {
            let num_bytes = counts[index].saturating_mul(lengths[index] as u64);
            (element_bits(lengths[index]), num_bytes)
        })
    }
}

fn width(facts: &TrigramFacts) -> TokenWidth {
    TokenWidth::of(facts.vocab_size, facts.separator)
}

/// The bytes of a prefix and of a word.
fn record_lengths(facts: &TrigramFacts) -> [usize; 2] {
    let token = width(facts).num_bytes();
    [token * (facts.order - 1) + NUMBER_LEN, token + NUMBER_LEN]
}

/// The bytes of a number of words, and of a probability.
const NUMBER_LEN: usize = 4;

fn element_bits(num_bytes: usize) -> u16 {
    u16::try_from(8 * num_bytes).expect("at most three tokens and a number")
}

impl Trigrams {
    /// Writes the matrix to a folder that is not there yet: complete or not at all. Equal ones are
    /// written as the same bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] where something is at `path`, [`Error::Locked`] where another process writes
    /// there, [`Error::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let target = std::path::absolute(path.as_ref()).map_err(Error::io(path.as_ref()))?;
        let staging = Staging::open(&target)?;
        let written = staging.begin(None).and_then(|_| self.write(&staging));
        staging.remove();
        written
    }

    fn write(&self, staging: &Staging) -> Result<()> {
        let (folder, target) = (staging.workplace(0), staging.target());
        if fs::symlink_metadata(target).is_ok() {
            return Err(Error::Exists {
                path: target.to_owned(),
            });
        }
        fs::create_dir(&folder).map_err(Error::io(&folder))?;
        let mut manifest = Manifest {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            facts: self.facts.clone(),
            prefixes: self.write_prefixes(&folder)?,
            words: self.write_words(&folder)?,
            id: String::new(),
        };
        let text = manifest.seal();
        stamp(&folder, manifest.place(Kind::Prefixes), &manifest.prefixes)?;
        stamp(&folder, manifest.place(Kind::Words), &manifest.words)?;
        write_whole(&folder.join(FILE_NAME), &text)?;
        fs::rename(&folder, target).map_err(Error::io(target))?;
        target.parent().map_or(Ok(()), sync_folder)
    }

    fn write_prefixes(&self, folder: &Path) -> Result<SectionManifest> {
        let mut writer = SectionWriter::create(folder, Kind::Prefixes)?;
        let mut record = Vec::new();
        for (prefix, range) in self.prefixes.iter().zip(self.starts.windows(2)) {
            record.clear();
            let tokens: Vec<_> = prefix.tokens(self.facts.order).collect();
            width(&self.facts).encode(&tokens, &mut record);
            let num_words = u32::try_from(range[1] - range[0]).expect("no more than tokens");
            record.extend_from_slice(&num_words.to_le_bytes());
            writer.write(&record)?;
        }
        let [length, _] = record_lengths(&self.facts);
        writer.finish(element_bits(length), self.prefixes.len() as u64)
    }

    fn write_words(&self, folder: &Path) -> Result<SectionManifest> {
        let mut writer = SectionWriter::create(folder, Kind::Words)?;
        let mut record = Vec::new();
        for word in &self.words {
            record.clear();
            width(&self.facts).encode(&[word.token], &mut record);
            record.extend_from_slice(&word.prob.to_le_bytes());
            writer.write(&record)?;
        }
        let [_, length] = record_lengths(&self.facts);
        writer.finish(element_bits(length), self.words.len() as u64)
    }

    /// Reads the matrix that was saved at `path`, and checks all of it. O(entries).
    ///
    /// # Errors
    ///
    /// [`Error::NotTrigrams`], [`Error::Version`], or one of the variants that say which file is
    /// missing, truncated, changed, corrupt or from elsewhere.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let folder = path.as_ref();
        let manifest = Manifest::read(folder)?;
        let open = |kind, section| {
            let section = Section::open(folder, manifest.place(kind), section)?;
            section.verify().map(|()| section)
        };
        let prefixes = open(Kind::Prefixes, &manifest.prefixes)?;
        let words = open(Kind::Words, &manifest.words)?;
        let facts = manifest.facts;
        let [prefix_len, word_len] = record_lengths(&facts);
        let token_len = width(&facts).num_bytes();

        let mut starts = vec![0_usize];
        let records = prefixes.payload().chunks_exact(prefix_len);
        let records = records.map(|record| {
            let (tokens, num_words) = record.split_at(prefix_len - NUMBER_LEN);
            starts.push(starts[starts.len() - 1].saturating_add(number(num_words) as usize));
            Prefix::of(tokens.chunks_exact(token_len).map(number))
        });
        let all_prefixes = records.collect();
        let records = words.payload().chunks_exact(word_len);
        let records = records.map(|record| {
            let (token, prob) = record.split_at(word_len - NUMBER_LEN);
            Word {
                token: number(token),
                prob: f32::from_bits(number(prob)),
            }
        });
        let all_words = records.collect();
        Self::assemble(facts, all_prefixes, starts, all_words)
            .map_err(|reason| words.corrupt(reason))
    }
}

/// The number that at most four bytes hold.
fn number(bytes: &[u8]) -> u32 {
    let mut number = [0; 4];
    number[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(number)
}

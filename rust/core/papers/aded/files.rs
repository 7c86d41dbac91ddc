//! How are tri-grams kept on disk?
//!
//! In one file, written once. Numbers are little-endian, of 8 bytes where no other length is said.
//!
//! | bytes | | |
//! | ---: | --- | --- |
//! | 16 | magic | `specds trigrams` and a line feed |
//! | 32 | numbers | the format version, the length of the facts, the number of prefixes, and of words |
//! | | facts | [`TrigramFacts`] as JSON |
//! | | prefixes | the tokens of each prefix in 2 or 3 bytes each, ascending, and the number of its words in 4 |
//! | | words | token in 2 or 3 bytes and probability as a 32-bit float: the words of the first prefix, the likeliest first, of equals the smaller token, then those of the second … |
//! | 8 | checksum | the xxh3-64 of all bytes before |

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::base::error::{Error, Result};
use crate::papers::aded::trigrams::{Prefix, TrigramFacts, Trigrams, Word};
use crate::storage::files::sync_folder;
use crate::storage::section::FORMAT_VERSION;
use crate::storage::token_array::TokenWidth;

const MAGIC: &[u8; 16] = b"specds trigrams\n";

/// The bytes of a number of words, and of a probability.
const NUMBER_LEN: usize = 4;

fn width(facts: &TrigramFacts) -> TokenWidth {
    TokenWidth::of(facts.vocab_size, facts.separator)
}

impl Trigrams {
    /// Writes the matrix to a file that is not there yet: complete or not at all. Equal ones are
    /// written as the same bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] where something is at `path`, [`Error::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = std::path::absolute(path.as_ref()).map_err(Error::io(path.as_ref()))?;
        if fs::symlink_metadata(&path).is_ok() {
            return Err(Error::Exists { path });
        }
        let name = path.file_name().unwrap_or_default().display();
        let partial = path.with_file_name(format!(".{name}.new"));
        let write = || {
            let mut file = File::create(&partial)?;
            file.write_all(&self.encode())?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&partial);
            Error::io(&path)(error)
        })?;
        path.parent().map_or(Ok(()), sync_folder)
    }

    fn encode(&self) -> Vec<u8> {
        let facts = serde_json::to_vec(&self.facts).expect("numbers and strings are JSON");
        let lengths = [facts.len(), self.prefixes.len(), self.words.len()].map(|len| len as u64);
        let mut bytes = MAGIC.to_vec();
        for number in [FORMAT_VERSION.into()].into_iter().chain(lengths) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&facts);
        let width = width(&self.facts);
        for (prefix, range) in self.prefixes.iter().zip(self.starts.windows(2)) {
            let tokens: Vec<_> = prefix.tokens(self.facts.options.order).collect();
            width.encode(&tokens, &mut bytes);
            // A prefix has no more words than the vocabulary has tokens.
            bytes.extend_from_slice(&(range[1] - range[0]).to_le_bytes()[..NUMBER_LEN]);
        }
        for word in &self.words {
            width.encode(&[word.token], &mut bytes);
            bytes.extend_from_slice(&word.prob.to_le_bytes());
        }
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the matrix that was saved at `path`, and checks all of it. O(entries).
    ///
    /// # Errors
    ///
    /// [`Error::NotTrigrams`], [`Error::Version`], [`Error::Checksum`] where bytes changed or are
    /// missing, [`Error::Corrupt`] where they contradict each other, [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let other = || Error::NotTrigrams {
            path: path.to_owned(),
        };
        let bytes = fs::read(path).map_err(|error| match error.kind() {
            ErrorKind::IsADirectory => other(),
            _ => Error::io(path)(error),
        })?;
        let numbers = bytes.strip_prefix(MAGIC).ok_or_else(other)?;
        let version = numbers
            .first_chunk()
            .map(|&bytes| u64::from_le_bytes(bytes));
        let found = version.and_then(|version| u32::try_from(version).ok());
        if let Some(found) = found.filter(|&found| found != u32::from(FORMAT_VERSION)) {
            return Err(Error::Version {
                path: path.to_owned(),
                expected: FORMAT_VERSION.into(),
                found,
            });
        }
        match numbers.split_last_chunk() {
            Some((_, &sum))
                if xxh3_64(&bytes[..bytes.len() - sum.len()]) == u64::from_le_bytes(sum) =>
            {
                let body = &numbers[..numbers.len() - sum.len()];
                decode(body).map_err(|reason| Error::corrupt(path, reason))
            }
            _ => Err(Error::Checksum {
                path: path.to_owned(),
            }),
        }
    }
}

/// Reads what stands between the magic and the checksum, or says what does not fit.
fn decode(body: &[u8]) -> std::result::Result<Trigrams, String> {
    let (numbers, body) = body.split_first_chunk::<32>().ok_or("it is too short")?;
    let (numbers, _) = numbers.as_chunks();
    let length = |index: usize| usize::try_from(u64::from_le_bytes(numbers[index])).ok();
    let facts_len = length(1).filter(|&len| len <= body.len());
    let (facts, body) = body.split_at(facts_len.ok_or("its facts are longer than it")?);
    let facts: TrigramFacts = serde_json::from_slice(facts).map_err(|error| error.to_string())?;
    facts.check().map_err(|error| error.to_string())?;

    let token_len = width(&facts).num_bytes();
    let prefix_len = token_len * (facts.options.order - 1) + NUMBER_LEN;
    let word_len = token_len + NUMBER_LEN;
    let size = |count: Option<usize>, len: usize| count.and_then(|count| count.checked_mul(len));
    let sizes = size(length(2), prefix_len).zip(size(length(3), word_len));
    let is_whole =
        |&(prefixes, words): &(usize, usize)| prefixes.checked_add(words) == Some(body.len());
    let (prefixes_size, _) = sizes.filter(is_whole).ok_or("its lengths differ")?;
    let (prefixes, words) = body.split_at(prefixes_size);

    let mut starts = vec![0_usize];
    let prefixes = prefixes.chunks_exact(prefix_len).map(|record| {
        let (tokens, num_words) = record.split_at(prefix_len - NUMBER_LEN);
        starts.push(starts[starts.len() - 1].saturating_add(number(num_words) as usize));
        Prefix::of(tokens.chunks_exact(token_len).map(number))
    });
    let prefixes = prefixes.collect();
    let words = words.chunks_exact(word_len).map(|record| {
        let (token, prob) = record.split_at(token_len);
        Word {
            token: number(token),
            prob: f32::from_bits(number(prob)),
        }
    });
    let words = words.collect();
    Trigrams::assemble(facts, prefixes, starts, words).map_err(str::to_owned)
}

/// The number that at most four bytes hold.
fn number(bytes: &[u8]) -> u32 {
    let mut number = [0; 4];
    number[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(number)
}

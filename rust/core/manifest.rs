//! Which files make up a datastore, and what was it built from?

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, Result};
use crate::format::{FORMAT_VERSION, Kind, SectionManifest};
use crate::suffix::{KEY_LEN, KEY_STRIDE, position_bits};
use crate::tokens::TokenWidth;

/// The largest vocabulary: with its separator it fits 24 bits.
pub const MAX_VOCAB_SIZE: u32 = (1 << 24) - 1;

/// The largest shard: positions are sorted as `i32`.
pub const MAX_SHARD_TOKENS: u64 = i32::MAX as u64;

/// The largest number of shards: a section states the index of its shard in 16 bits.
pub(crate) const MAX_SHARDS: usize = 1 << 16;

pub(crate) const FORMAT: &str = "specds datastore";
pub(crate) const FILE_NAME: &str = "manifest.json";

/// What `manifest.json` says: the datastore's contents, provenance and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// What the file is: always `specds datastore`.
    pub format: String,
    /// The version of the format, [`FORMAT_VERSION`].
    pub format_version: u16,
    /// Tokens are below this.
    pub vocab_size: u32,
    /// The token after each document: one of the vocabulary, or `vocab_size` itself.
    pub separator: u32,
    /// All tokens, separators included.
    pub num_tokens: u64,
    /// All documents.
    pub num_documents: u64,
    /// The name of the tokenizer, as the builder was told.
    pub tokenizer_name: String,
    /// The fingerprint of the tokenizer, as the builder was told.
    pub tokenizer_fingerprint: String,
    /// Where the corpus came from, as the builder was told.
    pub corpus: Vec<String>,
    /// The shards, in the order of their documents.
    pub shards: Vec<ShardManifest>,
    /// The xxh3-128 of all of the above, in hexadecimal: the same input gives the same build id.
    pub build_id: String,
}

/// What the manifest says of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardManifest {
    /// The tokens themselves.
    pub tokens: SectionManifest,
    /// The suffix array.
    pub suffixes: SectionManifest,
    /// The number of suffixes below each first token.
    pub firsts: SectionManifest,
    /// The first tokens of every 256th suffix.
    pub keys: SectionManifest,
    /// The ends of the documents.
    pub documents: SectionManifest,
}

impl ShardManifest {
    pub(crate) fn sections(&self) -> [(Kind, &SectionManifest); 5] {
        [
            (Kind::Tokens, &self.tokens),
            (Kind::Suffixes, &self.suffixes),
            (Kind::Firsts, &self.firsts),
            (Kind::Keys, &self.keys),
            (Kind::Documents, &self.documents),
        ]
    }
}

/// Only the part of a manifest that every version has.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    format_version: u32,
}

impl Manifest {
    /// Reads the manifest of the datastore at `folder`. O(shards).
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let text = read_preamble(folder)?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| Error::corrupt(&path, error.to_string()))?;
        if text != manifest.clone().seal().as_bytes() {
            return Err(Error::Checksum { path });
        }
        manifest
            .check()
            .map_err(|reason| Error::corrupt(&path, reason))?;
        Ok(manifest)
    }

    /// The length of the file.
    pub(crate) fn file_len(&self) -> u64 {
        self.to_json().len() as u64
    }

    /// Sets the build id and gives the text of the file.
    pub(crate) fn seal(&mut self) -> String {
        self.build_id.clear();
        self.build_id = format!("{:032x}", xxh3_128(self.to_json().as_bytes()));
        self.to_json()
    }

    pub(crate) fn build_id(&self) -> u128 {
        u128::from_str_radix(&self.build_id, 16).unwrap_or_default()
    }

    pub(crate) fn token_width(&self) -> TokenWidth {
        TokenWidth::of(self.vocab_size, self.separator)
    }

    fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("strings, numbers and lists of them can always be written as JSON") + "\n"
    }

    /// Whether the numbers fit each other, so that no reader has to ask again.
    fn check(&self) -> std::result::Result<(), &'static str> {
        let fits = |condition, reason| if condition { Ok(()) } else { Err(reason) };
        fits(
            (1..=MAX_VOCAB_SIZE).contains(&self.vocab_size),
            "its vocabulary size is not usable",
        )?;
        fits(
            self.separator <= self.vocab_size,
            "its separator is not usable",
        )?;
        fits(!self.shards.is_empty(), "it has no shards")?;
        fits(self.shards.len() <= MAX_SHARDS, "it has too many shards")?;
        for shard in &self.shards {
            let n = shard.tokens.count;
            fits(
                (1..=MAX_SHARD_TOKENS).contains(&n),
                "a shard has no usable number of tokens",
            )?;
            fits(
                (1..=n).contains(&shard.documents.count),
                "a shard has too many documents",
            )?;
            let sizes = shard
                .sections()
                .map(|(_, section)| (section.element_bits, section.count));
            fits(
                sizes == self.sizes(n, shard.documents.count),
                "the sections of a shard differ",
            )?;
            let lengths = shard.sections().map(|(_, section)| section.num_bytes);
            let expected = sizes.map(|(bits, count)| count.saturating_mul(bits.into()).div_ceil(8));
            fits(lengths == expected, "the length of a section is wrong")?;
        }
        let sum = |count: fn(&ShardManifest) -> u64| self.shards.iter().map(count).sum::<u64>();
        fits(
            self.num_tokens == sum(|shard| shard.tokens.count),
            "its tokens do not add up",
        )?;
        fits(
            self.num_documents == sum(|shard| shard.documents.count),
            "its documents do not add up",
        )
    }

    /// The element bits and counts of the sections of a shard.
    fn sizes(&self, num_tokens: u64, num_documents: u64) -> [(u16, u64); 5] {
        let token_bits = self.token_width().bits();
        [
            (token_bits, num_tokens),
            (position_bits(num_tokens), num_tokens),
            (32, u64::from(self.vocab_size) + 2),
            (
                token_bits,
                num_tokens.div_ceil(KEY_STRIDE as u64) * KEY_LEN as u64,
            ),
            (64, num_documents),
        ]
    }
}

/// Reads the text of a manifest of this version.
fn read_preamble(folder: &Path) -> Result<Vec<u8>> {
    let path = folder.join(FILE_NAME);
    let not_a_datastore = || Error::NotADatastore {
        path: folder.to_owned(),
    };
    fs::metadata(folder).map_err(Error::io(folder))?;
    let text = fs::read(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => not_a_datastore(),
        _ => Error::io(&path)(error),
    })?;
    let preamble: Preamble = serde_json::from_slice(&text).map_err(|_| not_a_datastore())?;
    let (expected, found) = (FORMAT_VERSION.into(), preamble.format_version);
    if preamble.format != FORMAT {
        Err(not_a_datastore())
    } else if found != expected {
        Err(Error::Version {
            path,
            expected,
            found,
        })
    } else {
        Ok(text)
    }
}

/// Whether `folder` is a datastore, damaged or of another version though it may be.
pub(crate) fn is_datastore(folder: &Path) -> bool {
    matches!(read_preamble(folder), Ok(_) | Err(Error::Version { .. }))
}

//! What is written beside the tokens of a shard, and from what?

use std::path::Path;

use crate::error::Result;
use crate::format::{FORMAT_VERSION, Kind, Section, SectionManifest, SectionWriter};
use crate::manifest::{SHARD_FORMAT, ShardManifest};
use crate::suffix::{self, KEY_STRIDE, position_bits};
use crate::tokens::{TokenWidth, Tokens};

/// What a shard's index is built from: its complete token and document sections.
pub(crate) struct ShardText {
    pub(crate) tokens: SectionManifest,
    pub(crate) documents: SectionManifest,
}

/// What a build is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Reading the documents of shards that are rebuilt: counted in tokens.
    Read,
    /// Sorting suffixes: counted in tokens, reported after each shard.
    Sort,
    /// Writing the sorted suffixes: counted in tokens.
    Write,
    /// Waiting until the files are on the disk: counted in shards.
    Sync,
}

impl Stage {
    /// Its name in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sort => "sort",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

/// How an index is built, and how much of it is kept.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "thinning and the sort in little memory come next")]
pub(crate) struct IndexOptions {
    pub(crate) vocab_size: u32,
    pub(crate) separator: u32,
    pub(crate) width: TokenWidth,
    /// Only suffixes that begin at a multiple of this are kept; 1 keeps all.
    pub(crate) position_stride: u32,
    /// How many suffixes that begin alike are kept; 0 keeps all.
    pub(crate) max_duplicates: u32,
    /// The bytes of private memory that sorting may take.
    pub(crate) max_memory: u64,
}

/// The private memory that sorting a shard takes, in bytes.
pub(crate) fn fast_memory(num_tokens: u64, width: TokenWidth) -> u64 {
    let per_token = if width.num_bytes() == 2 { 4 } else { 8 };
    num_tokens.saturating_mul(per_token)
}

/// The largest shard, in tokens, that can be sorted in this much private memory.
pub(crate) fn largest_shard(max_memory: u64, width: TokenWidth) -> u64 {
    max_memory / fast_memory(1, width)
}

/// Sorts the suffixes of a shard and writes its other sections. O(n). `progress` hears how many of
/// the shard's tokens are done, and stops the work with an error.
pub(crate) fn write_index(
    folder: &Path,
    text: ShardText,
    options: &IndexOptions,
    progress: &mut dyn FnMut(Stage, u64) -> Result<()>,
) -> Result<ShardManifest> {
    let ShardText {
        tokens: text,
        documents,
    } = text;
    let tokens = Tokens::new(Section::reopen(folder, Kind::Tokens, &text)?, options.width);
    let positions = suffix::sort(&tokens)?;
    progress(Stage::Sort, text.count)?;

    let bits = position_bits(text.count);
    let mut writer = SectionWriter::create(folder, Kind::Suffixes)?;
    suffix::pack(&positions, bits, &mut writer, &mut |done| {
        progress(Stage::Write, done)
    })?;
    let suffixes = writer.finish(bits, text.count)?;

    let firsts = suffix::firsts(&tokens, options.vocab_size).ok_or_else(|| {
        tokens
            .section()
            .corrupt("a token is outside the vocabulary")
    })?;
    let firsts = write(folder, Kind::Firsts, bytemuck::cast_slice(&firsts), 32)?;

    let sampled = positions.iter().step_by(KEY_STRIDE);
    let keys = suffix::keys(
        sampled.map(|position| position.cast_unsigned() as usize),
        &tokens,
    );
    let keys = write(folder, Kind::Keys, &keys, options.width.bits())?;

    Ok(ShardManifest {
        format: SHARD_FORMAT.to_owned(),
        format_version: FORMAT_VERSION,
        vocab_size: options.vocab_size,
        separator: options.separator,
        tokens: text,
        suffixes,
        firsts,
        keys,
        documents,
    })
}

fn write(folder: &Path, kind: Kind, payload: &[u8], bits: u16) -> Result<SectionManifest> {
    let mut writer = SectionWriter::create(folder, kind)?;
    writer.write(payload)?;
    writer.finish(bits, payload.len() as u64 * 8 / u64::from(bits))
}

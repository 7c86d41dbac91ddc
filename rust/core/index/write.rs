//! What is written beside the tokens of a shard, and from what?

use std::path::Path;

use crate::base::error::Result;
use crate::index::ngram_table::{self};
use crate::index::options::IndexOptions;
use crate::index::suffix_array::{self, Packer, Suffixes};
use crate::index::thin::Thinner;
use crate::storage::manifest::{SHARD_FORMAT, ShardManifest};
use crate::storage::section::{
    FORMAT_VERSION, Kind, RECORD_BITS, Section, SectionManifest, SectionWriter, position_bits,
};
use crate::storage::token_array::Tokens;

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
    /// Fitting the prior: counted in tokens.
    Prior,
}

impl Stage {
    /// Its name in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sort => "sort",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Prior => "prior",
        }
    }
}

/// Hands the positions of all suffixes in their order to `sink`, [`CHUNK`] at a time.
fn sort(tokens: &Tokens, sink: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
    let positions = suffix_array::sort(tokens)?;
    let positions: &[u32] = bytemuck::cast_slice(&positions);
    positions.chunks(CHUNK).try_for_each(sink)
}

/// The positions that are handed on at a time.
const CHUNK: usize = 1 << 16;

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
    let stride = options.position_stride;
    let bits = position_bits(text.count.div_ceil(stride.into()));
    let mut packer = Packer::new(SectionWriter::create(folder, Kind::Suffixes)?, bits);
    let mut pack = |kept: &[u32]| packer.add(kept.iter().map(|&position| position / stride));
    let mut thinner = Thinner::new(&tokens, options)?;
    let mut num_sorted = 0;
    sort(&tokens, &mut |positions| {
        if num_sorted == 0 {
            progress(Stage::Sort, text.count)?;
        }
        thinner.add(positions, &mut pack)?;
        num_sorted += positions.len() as u64;
        progress(Stage::Write, num_sorted)
    })?;
    let firsts = thinner.finish(&mut pack)?;
    let suffixes = packer.finish()?;

    let firsts = write(folder, Kind::Firsts, bytemuck::cast_slice(&firsts), 32)?;
    let section = Section::reopen(folder, Kind::Suffixes, &suffixes)?;
    let order = Suffixes::new(section, &suffixes, stride);
    let keys = suffix_array::keys(&order, &tokens);
    let keys = write(folder, Kind::Keys, &keys, options.width.bits())?;
    let key_tokens = Tokens::new(Section::reopen(folder, Kind::Keys, &keys)?, options.width);
    let ngrams = ngram_table::ngrams(&order, &tokens, &key_tokens, options.separator);
    let ngrams = write(folder, Kind::Ngrams, &ngrams, RECORD_BITS)?;

    Ok(ShardManifest {
        format: SHARD_FORMAT.to_owned(),
        format_version: FORMAT_VERSION,
        vocab_size: options.vocab_size,
        separator: options.separator,
        position_stride: options.position_stride,
        max_duplicates: options.max_duplicates,
        tokens: text,
        suffixes,
        firsts,
        keys,
        documents,
        ngrams,
    })
}

/// Whether `suffixes` are those that an index with these options keeps, in their order; gives the
/// numbers of them below each first token. O(n) time, and the memory to sort again unless all are
/// kept; 4 bytes a token then.
pub(crate) fn verify_order(
    suffixes: &Suffixes,
    tokens: &Tokens,
    options: &IndexOptions,
) -> Result<Vec<u32>> {
    let mut thinner = Thinner::new(tokens, options)?;
    if options.keeps_all() {
        suffix_array::verify(suffixes, tokens)?;
        return thinner.finish(&mut |_| Ok(()));
    }
    let mut found = (0..suffixes.len()).map(|rank| suffixes.get(rank));
    let mut compare = |kept: &[u32]| {
        let mut kept = kept.iter().map(|&position| Some(position as usize));
        if kept.all(|position| found.next() == Some(position)) {
            Ok(())
        } else {
            Err(suffixes.not_in_order())
        }
    };
    sort(tokens, &mut |positions| {
        thinner.add(positions, &mut compare)
    })?;
    let firsts = thinner.finish(&mut compare)?;
    match found.next() {
        None => Ok(firsts),
        Some(_) => Err(suffixes.not_in_order()),
    }
}

fn write(folder: &Path, kind: Kind, payload: &[u8], bits: u16) -> Result<SectionManifest> {
    let mut writer = SectionWriter::create(folder, kind)?;
    writer.write(payload)?;
    writer.finish(bits, payload.len() as u64 * 8 / u64::from(bits))
}

//! Index sections of a shard, computed from its tokens.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::error::{Error, Result};
use crate::storage::manifest::{SHARD_FORMAT, ShardManifest, SourcesEntry};
use crate::storage::section::{FORMAT_VERSION, Section, SectionKind, SectionWriter, position_bits};
use crate::storage::token_array::{TokenWidth, Tokens};
use crate::suffixes::suffix_array::{self, Packer, Suffixes};

/// The sections of a shard that are written before it is indexed: its tokens, and the ends and names of its documents.
#[derive(Debug)]
pub(crate) struct ShardText {
    pub(crate) vocab_size: u32,
    pub(crate) separator: u32,
    pub(crate) num_documents: u64,
    pub(crate) tokens: Section,
    pub(crate) documents: Section,
    pub(crate) sources: Option<Section>,
}

/// A stage of a build, in which progress is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Reading documents to rebuild their shards, in tokens.
    Read,
    /// Sorting suffixes, in tokens: reported after each shard.
    Sort,
    /// Writing the sorted suffixes, in tokens.
    Write,
    /// Waiting for the disk, in shards.
    Sync,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sort => "sort",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

/// A progress callback, which receives a stage, the work done and the total work. Its error, such as
/// [`Error::Stopped`], ends the build.
pub type Report<'a> = dyn FnMut(Stage, u64, u64) -> Result<()> + 'a;

/// The progress of a build's shards, in tokens.
#[derive(Debug, Default)]
pub(crate) struct WriteProgress {
    pub(crate) num_sorted: AtomicU64,
    pub(crate) num_written: AtomicU64,
    /// Number of complete shards.
    pub(crate) num_complete: AtomicU64,
    pub(crate) is_stopped: AtomicBool,
}

impl WriteProgress {
    /// Counts a shard that an earlier build completed.
    pub(crate) fn skip(&self, num_tokens: u64) {
        self.num_sorted.fetch_add(num_tokens, Ordering::Relaxed);
        self.num_written.fetch_add(num_tokens, Ordering::Relaxed);
        self.num_complete.fetch_add(1, Ordering::Relaxed);
    }

    fn add(&self, counter: &AtomicU64, num_tokens: usize) -> Result<()> {
        counter.fetch_add(num_tokens as u64, Ordering::Relaxed);
        self.check()
    }

    fn check(&self) -> Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(())
    }
}

/// Number of positions that are written between two checks for a stop.
const CHUNK: usize = 1 << 16;

/// Sorts the suffixes of a shard and writes its other sections. O(n).
pub(crate) fn write_index(
    folder: &Path,
    text: ShardText,
    progress: &WriteProgress,
) -> Result<ShardManifest> {
    let vocab_size = text.vocab_size;
    let width = TokenWidth::of(vocab_size, text.separator);
    progress.check()?;
    let tokens = Tokens::new(text.tokens, width);
    let num_tokens = tokens.len();
    let firsts = suffix_array::firsts(&tokens, vocab_size)?;
    let positions = suffix_array::sort(&tokens)?;
    progress.add(&progress.num_sorted, num_tokens)?;
    let bits = position_bits(num_tokens as u64);
    let mut packer = Packer::new(SectionWriter::create(folder, SectionKind::Suffixes)?, bits);
    for positions in bytemuck::cast_slice::<i32, u32>(&positions).chunks(CHUNK) {
        packer.add(positions)?;
        progress.add(&progress.num_written, positions.len())?;
    }
    drop(positions);
    let suffixes = Suffixes::new(packer.finish()?, num_tokens);
    let firsts = write(folder, SectionKind::Firsts, bytemuck::cast_slice(&firsts))?;
    let keys = write(folder, SectionKind::Keys, &suffix_array::keys(&suffixes, &tokens))?;
    Ok(ShardManifest {
        format: SHARD_FORMAT.to_owned(),
        format_version: FORMAT_VERSION,
        vocab_size,
        separator: text.separator,
        num_tokens: num_tokens as u64,
        num_documents: text.num_documents,
        checksums: [tokens.section, suffixes.section, firsts, keys, text.documents]
            .map(|section| section.xxh3),
        sources: text.sources.map(|section| SourcesEntry {
            num_bytes: section.payload().len() as u64,
            checksum: section.xxh3,
        }),
    })
}

fn write(folder: &Path, kind: SectionKind, payload: &[u8]) -> Result<Section> {
    let mut writer = SectionWriter::create(folder, kind)?;
    writer.write(payload)?;
    writer.finish()
}

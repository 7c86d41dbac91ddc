//! How do the documents of a shard come to the disk, and what of them outlives a kill?

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};
use crate::build::options::DatastoreOptions;
use crate::index::write::ShardText;
use crate::storage::files::{read_note, write_note};
use crate::storage::manifest::{MAX_SHARD_TOKENS, Manifest, ShardEntry, ShardManifest};
use crate::storage::section::{Kind, Section, SectionWriter, payload_reader};
use crate::storage::token_array::TokenWidth;

/// How many tokens are written between two checkpoints: a few seconds of tokenising.
const CHECKPOINT_TOKENS: u64 = 1 << 22;

/// What is safely on the disk of a shard's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) num_tokens: u64,
    pub(crate) num_documents: u64,
    /// The documents that the build was given up to here, those included that it left out.
    pub(crate) num_given: u64,
    /// Whether no more documents go into this shard.
    pub(crate) is_complete: bool,
}

impl Checkpoint {
    fn path(folder: &Path) -> PathBuf {
        folder.join("text.json")
    }

    /// The last checkpoint of the text in `folder`, if there is one.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        let read: Option<Self> = read_note(&Self::path(folder));
        read.filter(|read| {
            read.num_documents <= read.num_tokens && read.num_tokens <= MAX_SHARD_TOKENS
        })
    }

    fn write(self, folder: &Path) -> Result<()> {
        write_note(&Self::path(folder), &self)
    }
}

/// Streams the documents of a shard to disk.
pub(crate) struct DocumentLog {
    folder: PathBuf,
    vocab_size: u32,
    separator: u32,
    width: TokenWidth,
    /// Whether a build may go on from here after a kill: only then there are checkpoints.
    is_kept: bool,
    tokens: SectionWriter,
    documents: SectionWriter,
    written: Checkpoint,
    synced: Checkpoint,
    bytes: Vec<u8>,
}

impl DocumentLog {
    /// Goes on with the text of a shard in `folder` from a checkpoint, or starts it where there is
    /// none. O(tokens up to there), at the speed of the checksum.
    pub(crate) fn open(
        folder: &Path,
        options: &DatastoreOptions,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Self> {
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let width = options.width();
        let written = checkpoint.unwrap_or_default();
        let section = |kind, count: u64, element_bytes| match checkpoint {
            None => SectionWriter::create(folder, kind),
            Some(_) => SectionWriter::resume(folder, kind, count.saturating_mul(element_bytes)),
        };
        Ok(Self {
            folder: folder.to_owned(),
            vocab_size: options.vocab_size,
            separator: options.separator,
            width,
            is_kept: options.plan.is_some(),
            tokens: section(Kind::Tokens, written.num_tokens, width.num_bytes() as u64)?,
            documents: section(Kind::Documents, written.num_documents, 8)?,
            written,
            synced: written,
            bytes: Vec::new(),
        })
    }

    /// What was written, separators included.
    pub(crate) fn num_tokens(&self) -> u64 {
        self.written.num_tokens
    }

    /// Appends a document and its separator; the build was given `num_given` documents with it.
    pub(crate) fn add(&mut self, document: &[u32], num_given: u64) -> Result<()> {
        self.bytes.clear();
        self.width.encode(document, &mut self.bytes);
        self.width.encode(&[self.separator], &mut self.bytes);
        self.tokens.write(&self.bytes)?;
        self.written.num_tokens += document.len() as u64 + 1;
        self.written.num_documents += 1;
        self.written.num_given = num_given;
        self.documents
            .write(&self.written.num_tokens.to_le_bytes())?;
        if self.written.num_tokens - self.synced.num_tokens >= CHECKPOINT_TOKENS {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Has what is written so far outlive a kill, where a build may go on from it.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        self.tokens.sync()?;
        self.documents.sync()?;
        self.written.write(&self.folder)?;
        self.synced = self.written;
        Ok(())
    }

    /// Ends the text.
    pub(crate) fn finish(mut self) -> Result<(PathBuf, ShardText, Checkpoint)> {
        self.written.is_complete = true;
        self.checkpoint()?;
        let Checkpoint {
            num_tokens,
            num_documents,
            ..
        } = self.written;
        let text = ShardText {
            vocab_size: self.vocab_size,
            separator: self.separator,
            tokens: self.tokens.finish(self.width.bits(), num_tokens)?,
            documents: self.documents.finish(64, num_documents)?,
        };
        Ok((self.folder, text, self.written))
    }
}

/// The documents of a shard's text one after the other, without their separators, read once from
/// the beginning: also where the text is not complete.
pub(crate) struct Documents {
    folder: PathBuf,
    width: TokenWidth,
    tokens: BufReader<File>,
    ends: BufReader<File>,
    start: u64,
    num_left: u64,
    num_tokens: u64,
    bytes: Vec<u8>,
}

impl Documents {
    /// Opens the documents of a shard of the datastore at `path`, once every byte of them is known to be
    /// what was written: what is written from them has checksums of its own.
    pub(crate) fn of_shard(path: &Path, manifest: &Manifest, entry: &ShardEntry) -> Result<Self> {
        let folder = entry.folder(path);
        let shard = ShardManifest::read(&folder, manifest, entry)?;
        for (kind, section) in shard.sections() {
            if matches!(kind, Kind::Tokens | Kind::Documents) {
                Section::open(&folder, entry.place(kind), section)?.verify()?;
            }
        }
        Self::open(
            &folder,
            shard.token_width(),
            entry.num_documents,
            entry.num_tokens,
        )
    }

    /// Opens the first `num_documents` of the text in `folder`, which has `num_tokens`.
    pub(crate) fn open(
        folder: &Path,
        width: TokenWidth,
        num_documents: u64,
        num_tokens: u64,
    ) -> Result<Self> {
        let open = |kind| payload_reader(folder, kind);
        Ok(Self {
            folder: folder.to_owned(),
            width,
            tokens: open(Kind::Tokens)?,
            ends: open(Kind::Documents)?,
            start: 0,
            num_left: num_documents,
            num_tokens,
            bytes: Vec::new(),
        })
    }

    fn read(&mut self) -> Result<Vec<u32>> {
        let path = |kind: Kind| self.folder.join(kind.file_name());
        let mut end = [0; 8];
        self.ends
            .read_exact(&mut end)
            .map_err(Error::io(&path(Kind::Documents)))?;
        let end = u64::from_le_bytes(end);
        let length = end.checked_sub(self.start);
        let length = length.filter(|&length| length > 0 && end <= self.num_tokens);
        let out_of_order = || Error::corrupt(&path(Kind::Documents), "its ends do not rise");
        let length = length.ok_or_else(out_of_order)?;
        let length = usize::try_from(length).map_err(|_| out_of_order())?;
        self.start = end;
        self.bytes.resize(length * self.width.num_bytes(), 0);
        self.tokens
            .read_exact(&mut self.bytes)
            .map_err(Error::io(&path(Kind::Tokens)))?;
        let mut tokens = self.width.decode(&self.bytes);
        tokens.pop();
        Ok(tokens)
    }
}

impl Iterator for Documents {
    type Item = Result<Vec<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.num_left = self.num_left.checked_sub(1)?;
        let document = self.read();
        if document.is_err() {
            self.num_left = 0;
        }
        Some(document)
    }
}

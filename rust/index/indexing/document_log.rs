//! Documents of a shard on disk, and their checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};
use crate::indexing::options::DatastoreOptions;
use crate::storage::files::{read_note, write_whole};
use crate::storage::manifest::{MAX_SHARD_TOKENS, Manifest, ShardEntry, ShardManifest, to_json};
use crate::storage::section::{Section, SectionKind, SectionWriter};
use crate::storage::sources::{self, Sources};
use crate::storage::token_array::{TokenWidth, Tokens};
use crate::suffixes::write::ShardText;

/// Number of tokens between two checkpoints: a few seconds of tokenization.
const CHECKPOINT_TOKENS: u64 = 1 << 22;

/// The part of a shard's text that is synced to disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) num_tokens: u64,
    pub(crate) num_documents: u64,
    /// Size of the names of the documents.
    pub(crate) num_source_bytes: u64,
    /// Number of documents that were passed to the build up to this checkpoint.
    pub(crate) num_given: u64,
    /// True if the shard gets no more documents.
    pub(crate) is_complete: bool,
}

impl Checkpoint {
    const FILE_NAME: &str = "text.json";

    pub(crate) fn read(folder: &Path) -> Option<Self> {
        let read: Option<Self> = read_note(&folder.join(Self::FILE_NAME));
        read.filter(|read| {
            read.num_documents <= read.num_tokens && read.num_tokens <= MAX_SHARD_TOKENS
        })
    }
}

/// A writer of a shard's documents.
#[derive(Debug)]
pub(crate) struct DocumentLog {
    folder: PathBuf,
    vocab_size: u32,
    separator: u32,
    width: TokenWidth,
    /// True if the build has a plan: only then can it be resumed, so only then are checkpoints written.
    is_kept: bool,
    tokens: SectionWriter,
    documents: SectionWriter,
    sources: SectionWriter,
    /// The name of the last document.
    source: Vec<u8>,
    written: Checkpoint,
    synced: Checkpoint,
    bytes: Vec<u8>,
}

impl DocumentLog {
    /// Resumes the text in `folder` at a checkpoint, or starts one. O(tokens up to there), at the speed of the
    /// checksum.
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
        let mut sources = Sources::default();
        if let Some(Checkpoint { num_source_bytes, .. }) = checkpoint {
            let begun = Section::begun(folder, SectionKind::Sources, num_source_bytes)?;
            while sources.advance(begun.payload()) {}
        }
        Ok(Self {
            folder: folder.to_owned(),
            vocab_size: options.vocab_size,
            separator: options.separator,
            width,
            is_kept: options.plan.is_some(),
            tokens: section(SectionKind::Tokens, written.num_tokens, width.num_bytes() as u64)?,
            documents: section(SectionKind::Documents, written.num_documents, 8)?,
            sources: section(SectionKind::Sources, written.num_source_bytes, 1)?,
            source: sources.name,
            written,
            synced: written,
            bytes: Vec::new(),
        })
    }

    pub(crate) fn num_tokens(&self) -> u64 {
        self.written.num_tokens
    }

    pub(crate) fn add(&mut self, document: &[u32], source: &str, num_given: u64) -> Result<()> {
        self.bytes.clear();
        self.width.encode(document, &mut self.bytes);
        self.width.encode(&[self.separator], &mut self.bytes);
        self.tokens.write(&self.bytes)?;
        let source = sources::stored(source);
        self.bytes.clear();
        sources::encode(&self.source, &source, &mut self.bytes);
        self.sources.write(&self.bytes)?;
        self.written.num_source_bytes += self.bytes.len() as u64;
        self.source = source;
        self.written.num_tokens += document.len() as u64 + 1;
        self.written.num_documents += 1;
        self.written.num_given = num_given;
        self.documents.write(&self.written.num_tokens.to_le_bytes())?;
        if self.written.num_tokens - self.synced.num_tokens >= CHECKPOINT_TOKENS {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Syncs the text to disk and records it, so that a build can resume from here.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        if !self.is_kept {
            return Ok(());
        }
        self.tokens.sync()?;
        self.documents.sync()?;
        self.sources.sync()?;
        write_whole(&self.folder.join(Checkpoint::FILE_NAME), &to_json(&self.written))?;
        self.synced = self.written;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<(PathBuf, ShardText, Checkpoint)> {
        self.written.is_complete = true;
        self.checkpoint()?;
        let sources = self.sources.finish()?;
        let text = ShardText {
            vocab_size: self.vocab_size,
            separator: self.separator,
            num_documents: self.written.num_documents,
            tokens: self.tokens.finish()?,
            documents: self.documents.finish()?,
            sources: Some(sources).filter(|of| !sources::are_empty(of.payload())),
        };
        Ok((self.folder, text, self.written))
    }
}

/// An iterator over the documents of a shard or of an incomplete text, without their separators.
pub(crate) struct Documents {
    tokens: Tokens,
    ends: Section,
    names: Option<Section>,
    sources: Sources,
    start: usize,
    next: usize,
}

impl Documents {
    /// Opens the documents of a shard of the datastore at `path` and checks their checksums: copies of damaged
    /// documents would get valid checksums.
    pub(crate) fn of_shard(path: &Path, manifest: &Manifest, entry: &ShardEntry) -> Result<Self> {
        let folder = entry.folder(path);
        let shard = ShardManifest::read(&folder, manifest, entry)?;
        let (tokens, ends) = (
            shard.open(&folder, SectionKind::Tokens)?,
            shard.open(&folder, SectionKind::Documents)?,
        );
        tokens.verify()?;
        ends.verify()?;
        let names = shard.open_sources(&folder)?;
        names.as_ref().map_or(Ok(()), Section::verify)?;
        Ok(Self { names, ..Self::new(tokens, shard.token_width(), ends) })
    }

    /// Opens the documents of a text up to a checkpoint.
    pub(crate) fn of_text(folder: &Path, width: TokenWidth, text: &Checkpoint) -> Result<Self> {
        let open = |kind, count: u64, width| Section::begun(folder, kind, count * width);
        let tokens = open(SectionKind::Tokens, text.num_tokens, width.num_bytes() as u64)?;
        let ends = open(SectionKind::Documents, text.num_documents, 8)?;
        Ok(Self::new(tokens, width, ends))
    }

    fn new(tokens: Section, width: TokenWidth, ends: Section) -> Self {
        let (tokens, sources) = (Tokens::new(tokens, width), Sources::default());
        Self { tokens, ends, names: None, sources, start: 0, next: 0 }
    }

    /// Returns the name of the last document, empty if it has none.
    pub(crate) fn source(&self) -> String {
        String::from_utf8_lossy(&self.sources.name).into_owned()
    }
}

impl Iterator for Documents {
    type Item = Result<Vec<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = *self.ends.numbers::<u64>().get(self.next)?;
        let end = usize::try_from(end).ok();
        let is_later = |end: &usize| (self.start + 1..=self.tokens.len()).contains(end);
        let Some(end) = end.filter(is_later) else {
            self.next = usize::MAX;
            return Some(Err(self.ends.corrupt("its document ends are not ascending")));
        };
        let mut document = Vec::new();
        let length = end - 1 - self.start;
        self.tokens.extend(self.start, length, &mut document);
        (self.start, self.next) = (end, self.next + 1);
        if let Some(names) = &self.names {
            self.sources.advance(names.payload());
        }
        Some(Ok(document))
    }
}

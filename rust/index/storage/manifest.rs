//! Manifests of a datastore and its shards.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::base::error::{Error, Result};
use crate::storage::files::{MAX_NOTE_BYTES, read_note, read_up_to, write_whole};
use crate::storage::section::{
    self, KEY_LEN, KEY_STRIDE, Section, SectionKind, TAIL_LEN, position_bits,
};
use crate::storage::token_array::TokenWidth;

/// Maximum vocabulary size. A token, or the separator after the vocabulary, then fits in 24 bits.
pub const MAX_VOCAB_SIZE: u32 = (1 << 24) - 1;

/// Maximum number of tokens of a shard, because positions are sorted as `i32`.
pub const MAX_SHARD_TOKENS: u64 = i32::MAX as u64;

/// Maximum number of shards of a datastore, because each has six mapped files.
pub(crate) const MAX_SHARDS: usize = 1 << 16;

/// Maximum size of the names of a shard's documents.
const MAX_SOURCE_BYTES: u64 = 1 << 40;

pub(crate) const FORMAT: &str = "specds datastore";
pub(crate) const FILE_NAME: &str = "manifest.json";

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    pub format: String,
    pub format_version: u16,
    /// Token ids of documents are below this.
    pub vocab_size: u32,
    /// The token that ends each document: one of the vocabulary, or `vocab_size` itself.
    pub separator: u32,
    /// Number of tokens of all documents, separators included.
    pub num_tokens: u64,
    pub num_documents: u64,
    pub tokenizer_name: String,
    pub tokenizer_fingerprint: String,
    /// The origins of the documents, one line a source.
    pub corpus: Vec<String>,
    /// The commands that made the datastore, one a line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// The shards, in the order of their documents.
    pub shards: Vec<ShardEntry>,
    /// The xxh3-128 of all fields above, so that equal datastores have equal ids.
    pub build_id: String,
}

/// A shard in the manifest of its datastore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// The xxh3-128 of `shard.json` in hexadecimal, which is also the name of the folder.
    pub id: String,
    /// Number of tokens of the shard, separators included.
    pub num_tokens: u64,
    pub num_documents: u64,
    /// Total size of the shard's files.
    pub num_bytes: u64,
}

impl ShardEntry {
    pub(crate) fn folder(&self, datastore: &Path) -> PathBuf {
        datastore.join(folder_name(&self.id))
    }

    pub(crate) fn is_usable(&self) -> bool {
        is_id(&self.id)
            && (1..=MAX_SHARD_TOKENS).contains(&self.num_tokens)
            && (1..=self.num_tokens).contains(&self.num_documents)
            && self.num_bytes <= i64::MAX as u64 / MAX_SHARDS as u64
    }
}

pub(crate) fn id_of(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}

fn is_id(text: &str) -> bool {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 32 && text.bytes().all(is_digit)
}

/// Maximum size of a manifest, which may list 65,536 shards and the sources of a corpus.
const MAX_MANIFEST_BYTES: u64 = 1 << 28;

pub(crate) fn folder_name(id: &str) -> String {
    format!("{FOLDER_PREFIX}{id}")
}

pub(crate) const FOLDER_PREFIX: &str = "shard-";

impl Manifest {
    /// Reads the manifest of a datastore, and checks that it is consistent and that no id in it can be a path.
    /// O(shards).
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let text = read_text(folder)?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| Error::corrupt(&path, error.to_string()))?;
        if text != manifest.clone().seal().as_bytes() {
            return Err(Error::Checksum(path));
        }
        let checked = manifest.check();
        checked.map_err(|reason| Error::corrupt(&path, reason))?;
        Ok(manifest)
    }

    /// Returns the paths of all files of the datastore, the manifest first, and whether each must exist.
    pub fn files(&self) -> Vec<(String, bool)> {
        let mut files = vec![(FILE_NAME.to_owned(), true)];
        for shard in &self.shards {
            let folder = folder_name(&shard.id);
            let sections = SectionKind::ALL.map(|kind| (kind.file_name(), !kind.is_optional()));
            let names = [(SHARD_FILE_NAME, true)].into_iter().chain(sections);
            files
                .extend(names.map(|(name, is_required)| (format!("{folder}/{name}"), is_required)));
        }
        files
    }

    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// Returns the vocabulary size, separator and fingerprint, which are equal for datastores of one tokenizer.
    pub(crate) fn tokenizer(&self) -> (u32, u32, &str) {
        (self.vocab_size, self.separator, &self.tokenizer_fingerprint)
    }

    pub(crate) fn extend(&mut self, shards: impl IntoIterator<Item = ShardEntry>) {
        for shard in shards {
            self.num_tokens += shard.num_tokens;
            self.num_documents += shard.num_documents;
            self.shards.push(shard);
        }
    }

    pub(crate) fn num_bytes(&self) -> u64 {
        let shards = self.shards.iter().map(|shard| shard.num_bytes);
        shards.sum::<u64>() + self.to_json().len() as u64
    }

    /// Sets the build id and returns the content of the file.
    pub(crate) fn seal(&mut self) -> String {
        self.build_id.clear();
        self.build_id = id_of(self.to_json().as_bytes());
        self.to_json()
    }

    /// Checks that the numbers are consistent, so that readers need no checks.
    fn check(&self) -> Checked {
        check_tokens(self.vocab_size, self.separator)?;
        fits(!self.shards.is_empty(), "it has no shards")?;
        fits(self.shards.len() <= MAX_SHARDS, "it has too many shards")?;
        let is_usable = self.shards.iter().all(ShardEntry::is_usable);
        fits(is_usable, "an entry of a shard is not usable")?;
        let sum = |count: fn(&ShardEntry) -> u64| self.shards.iter().map(count).sum::<u64>();
        fits(self.num_tokens == sum(|shard| shard.num_tokens), "its tokens do not add up")?;
        fits(self.num_documents == sum(|shard| shard.num_documents), "its documents do not add up")
    }
}

pub(crate) const SHARD_FORMAT: &str = "specds shard";
pub(crate) const SHARD_FILE_NAME: &str = "shard.json";

/// The content of a shard's `shard.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardManifest {
    pub format: String,
    pub format_version: u16,
    pub vocab_size: u32,
    pub separator: u32,
    pub num_tokens: u64,
    pub num_documents: u64,
    /// The xxh3-64 of the sections, in the order of `docs/FORMAT.md`.
    pub checksums: [u64; 5],
    /// The section of the names of documents, unless no document has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<SourcesEntry>,
}

/// The section of names in the manifest of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcesEntry {
    pub num_bytes: u64,
    /// The xxh3-64 of the section.
    pub checksum: u64,
}

impl ShardManifest {
    pub(crate) fn read(folder: &Path, manifest: &Manifest, entry: &ShardEntry) -> Result<Self> {
        let path = folder.join(SHARD_FILE_NAME);
        let text = read_up_to(&path, MAX_NOTE_BYTES)?;
        if id_of(&text) != entry.id {
            return Err(Error::Checksum(path));
        }
        let shard: Self = serde_json::from_slice(&text)
            .map_err(|error| Error::corrupt(&path, error.to_string()))?;
        section::check_version(&path, shard.format_version.into())?;
        let checked = shard.check();
        checked.map_err(|reason| Error::corrupt(&path, reason))?;
        let expected = (manifest.vocab_size, manifest.separator, entry);
        if (shard.vocab_size, shard.separator, &shard.entry()) != expected {
            return Err(Error::corrupt(&path, "it is not what the manifest says"));
        }
        Ok(shard)
    }

    /// The manifest of the shard in a folder; `None` unless the shard is complete.
    pub(crate) fn read_sealed(folder: &Path) -> Option<Self> {
        let sealed: Option<Self> = read_note(&folder.join(SHARD_FILE_NAME));
        sealed.filter(|sealed| sealed.check().is_ok())
    }

    /// Writes `shard.json` once the sections are on the disk: a shard that has it is complete.
    pub(crate) fn seal(&self, folder: &Path) -> Result<()> {
        for kind in self.kinds() {
            let path = folder.join(kind.file_name());
            let file = File::options().write(true).open(&path);
            let synced = file.and_then(|file| file.sync_all());
            synced.map_err(Error::io(&path))?;
        }
        write_whole(&folder.join(SHARD_FILE_NAME), &to_json(self))
    }

    /// Puts the complete shard in `from` into `to` as well, unless it is there.
    pub(crate) fn link(&self, from: &Path, to: &Path) -> Result<()> {
        if to.join(SHARD_FILE_NAME).exists() {
            return Ok(());
        }
        if to.exists() {
            fs::remove_dir_all(to).map_err(Error::io(to))?; // a kill has left it
        }
        fs::create_dir(to).map_err(Error::io(to))?;
        for kind in self.kinds() {
            section::link(&self.open(from, kind)?, to, kind)?;
        }
        write_whole(&to.join(SHARD_FILE_NAME), &to_json(self))
    }

    pub(crate) fn entry(&self) -> ShardEntry {
        let text = to_json(self);
        let lengths = self.kinds().map(|kind| self.num_bytes(kind) + TAIL_LEN as u64);
        ShardEntry {
            id: id_of(text.as_bytes()),
            num_tokens: self.num_tokens,
            num_documents: self.num_documents,
            num_bytes: lengths.sum::<u64>() + text.len() as u64,
        }
    }

    pub(crate) fn open(&self, folder: &Path, kind: SectionKind) -> Result<Section> {
        let sources = self.sources.map_or(0, |sources| sources.checksum);
        let checksum = self.checksums.get(kind as usize).copied().unwrap_or(sources);
        Section::open(folder, kind, self.num_bytes(kind), checksum)
    }

    pub(crate) fn open_sources(&self, folder: &Path) -> Result<Option<Section>> {
        self.sources.map(|_| self.open(folder, SectionKind::Sources)).transpose()
    }

    fn kinds(&self) -> impl Iterator<Item = SectionKind> {
        let num = SectionKind::ALL.len() - usize::from(self.sources.is_none());
        SectionKind::ALL.into_iter().take(num)
    }

    fn num_bytes(&self, kind: SectionKind) -> u64 {
        let token = self.token_width().num_bytes() as u64;
        match kind {
            SectionKind::Tokens => self.num_tokens * token,
            SectionKind::Suffixes => {
                let bits = position_bits(self.num_tokens);
                (self.num_tokens * u64::from(bits)).div_ceil(8)
            }
            SectionKind::Firsts => 4 * (u64::from(self.vocab_size) + 2),
            SectionKind::Keys => {
                let num_keys = self.num_tokens.div_ceil(KEY_STRIDE as u64);
                num_keys * KEY_LEN as u64 * token
            }
            SectionKind::Documents => 8 * self.num_documents,
            SectionKind::Sources => self.sources.map_or(0, |sources| sources.num_bytes),
        }
    }

    pub(crate) fn token_width(&self) -> TokenWidth {
        TokenWidth::of(self.vocab_size, self.separator)
    }

    fn check(&self) -> Checked {
        fits(self.format == SHARD_FORMAT, "its format is not that of a shard")?;
        check_tokens(self.vocab_size, self.separator)?;
        fits(
            (1..=MAX_SHARD_TOKENS).contains(&self.num_tokens),
            "it has no usable number of tokens",
        )?;
        let num_bytes = self.sources.map_or(0, |sources| sources.num_bytes);
        fits(num_bytes <= MAX_SOURCE_BYTES, "it has no usable number of bytes")?;
        fits((1..=self.num_tokens).contains(&self.num_documents), "it has too many documents")
    }
}

type Checked = std::result::Result<(), &'static str>;

fn fits(condition: bool, reason: &'static str) -> Checked {
    if condition { Ok(()) } else { Err(reason) }
}

fn check_tokens(vocab_size: u32, separator: u32) -> Checked {
    fits((1..=MAX_VOCAB_SIZE).contains(&vocab_size), "its vocabulary size is not usable")?;
    fits(separator <= vocab_size, "its separator is not usable")
}

pub(crate) fn to_json(manifest: &impl Serialize) -> String {
    let json = serde_json::to_string_pretty(manifest);
    json.expect("strings, numbers and lists of them can always be written as JSON") + "\n"
}

/// The fields that manifests of every version have.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    format_version: u32,
}

fn read_text(folder: &Path) -> Result<Vec<u8>> {
    let path = folder.join(FILE_NAME);
    let none = || Error::NotADatastore(folder.to_owned());
    fs::metadata(folder).map_err(Error::io(folder))?;
    let is_none = |source: &io::Error| {
        [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&source.kind())
    };
    let text = read_up_to(&path, MAX_MANIFEST_BYTES).map_err(|error| match error {
        Error::Io { source, .. } if is_none(&source) => none(),
        error => error,
    })?;
    let preamble: Preamble = serde_json::from_slice(&text).map_err(|_| none())?;
    if preamble.format != FORMAT {
        return Err(none());
    }
    section::check_version(&path, preamble.format_version)?;
    Ok(text)
}

/// Returns whether a folder is a datastore, which may be damaged or of another version.
pub(crate) fn is_datastore(folder: &Path) -> bool {
    matches!(read_text(folder), Ok(_) | Err(Error::Version { .. }))
}

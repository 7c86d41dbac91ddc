//! How does a corpus become a datastore?

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::datastore::Datastore;
use crate::error::{Error, Result};
use crate::format::{self, FORMAT_VERSION, Kind, Place, SectionWriter};
use crate::manifest::{self, MAX_SHARD_TOKENS, MAX_SHARDS, MAX_VOCAB_SIZE, Manifest};
use crate::shard::{ShardText, Stage, folder_name, write_index};
use crate::tokens::TokenWidth;

/// What a datastore is built for, and from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatastoreOptions {
    /// Tokens of documents are below this; at most [`MAX_VOCAB_SIZE`].
    pub vocab_size: u32,
    /// Ends each document and every match: a token of the vocabulary, such as the end-of-sequence
    /// token, or `vocab_size` where the tokenizer has none. Documents may contain it.
    pub separator: u32,
    /// The name of the tokenizer, for people.
    pub tokenizer_name: String,
    /// The fingerprint of the tokenizer, for programs: a datastore of another tokenizer drafts
    /// nonsense.
    pub tokenizer_fingerprint: String,
    /// Where the corpus comes from: one line a source.
    pub corpus: Vec<String>,
    /// The most tokens of a shard, separators included; at most [`MAX_SHARD_TOKENS`].
    ///
    /// It bounds the memory of a build to 4 bytes a token of the largest shard (8 where tokens take
    /// 32 bits), however large the corpus. Few large shards are faster to look up in.
    pub max_shard_tokens: u64,
    /// Whether a datastore that is there already is replaced once the new one is complete.
    pub overwrite: bool,
}

impl DatastoreOptions {
    fn check(&self) -> Result<()> {
        let Self {
            vocab_size,
            separator,
            max_shard_tokens,
            ..
        } = *self;
        if !(1..=MAX_VOCAB_SIZE).contains(&vocab_size) {
            let reason = format!("must lie in 1..={MAX_VOCAB_SIZE}, not {vocab_size}");
            return Err(Error::invalid("vocab_size", reason));
        }
        if separator > vocab_size {
            let reason =
                format!("must be at most the vocabulary's size: {vocab_size}, not {separator}");
            return Err(Error::invalid("separator", reason));
        }
        if !(2..=MAX_SHARD_TOKENS).contains(&max_shard_tokens) {
            let reason = format!("must lie in 2..={MAX_SHARD_TOKENS}, not {max_shard_tokens}");
            return Err(Error::invalid("max_shard_tokens", reason));
        }
        Ok(())
    }
}

/// Builds a datastore: takes documents, streams their tokens to disk, and sorts them at the end.
///
/// Everything is written in a temporary folder beside the target, which is renamed when it is
/// complete: a build that fails, is dropped or killed leaves the old datastore, or none. (A killed
/// one also leaves its temporary folder, `.NAME.build-XXXXXX`.)
///
/// # Examples
///
/// ```
/// # fn main() -> specds::error::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("example");
/// use std::ops::ControlFlow;
/// use specds::datastore::{DatastoreBuilder, DatastoreOptions, MAX_SHARD_TOKENS};
///
/// let options = DatastoreOptions {
///     vocab_size: 100,
///     separator: 100,
///     tokenizer_name: "example".to_owned(),
///     tokenizer_fingerprint: String::new(),
///     corpus: vec![],
///     max_shard_tokens: MAX_SHARD_TOKENS,
///     overwrite: false,
/// };
/// let mut builder = DatastoreBuilder::create(&path, options)?;
/// builder.add_documents(&[1, 2, 3, 1, 2, 4], &[3, 3])?;
/// let datastore = builder.finish(&mut |_, _, _| ControlFlow::Continue(()))?;
///
/// let found = datastore.lookup(&[9, 1, 2], 16, 1)?;
/// assert_eq!((found.length, found.count()), (2, 2));
/// assert_eq!(datastore.continuations(&found, 10), [(3, 1), (4, 1)]);
/// # Ok(())
/// # }
/// ```
pub struct DatastoreBuilder {
    target: PathBuf,
    options: DatastoreOptions,
    width: TokenWidth,
    folder: TempDir,
    complete: Vec<ShardText>,
    current: Option<ShardWriter>,
    num_tokens: u64,
    num_documents: u64,
    has_failed: bool,
}

impl DatastoreBuilder {
    /// Starts a build of the datastore at `path`, whose parent folder must exist.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] where something is at `path` and `overwrite` is not set,
    /// [`Error::NotADatastore`] where it is set and that something is not a datastore,
    /// [`Error::InvalidArgument`] for options out of their bounds, [`Error::Io`].
    pub fn create(path: impl AsRef<Path>, options: DatastoreOptions) -> Result<Self> {
        options.check()?;
        let target = std::path::absolute(&path).map_err(Error::io(path.as_ref()))?;
        check_target(&target, options.overwrite)?;
        let width = TokenWidth::of(options.vocab_size, options.separator);
        let folder = temporary_folder(&target, "build")?;
        Ok(Self {
            target,
            options,
            width,
            folder,
            complete: Vec::new(),
            current: None,
            num_tokens: 0,
            num_documents: 0,
            has_failed: false,
        })
    }

    /// Adds documents: their tokens one after the other, and the number of tokens of each. The
    /// separator is added after each; a document without tokens is skipped. Writes to disk;
    /// O(tokens).
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`], [`Error::TooManyTokens`] where a document does not fit into a
    /// shard, [`Error::InvalidArgument`] where `lengths` do not add up: then nothing was added, and
    /// the build can go on. [`Error::Io`]: then it cannot.
    pub fn add_documents(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<()> {
        self.check_not_failed()?;
        self.check_documents(tokens, lengths)?;
        self.has_failed = true;
        let mut rest = tokens;
        for &length in lengths {
            let (document, after) = rest.split_at(length);
            if !document.is_empty() {
                self.add_document(document)?;
            }
            rest = after;
        }
        self.has_failed = false;
        Ok(())
    }

    /// The tokens added so far, separators included.
    pub fn num_tokens(&self) -> u64 {
        self.num_tokens
    }

    /// The documents added so far that have tokens.
    pub fn num_documents(&self) -> u64 {
        self.num_documents
    }

    /// Sorts and writes what was added, moves it to its path and opens it. O(tokens) time; 4 bytes
    /// of memory a token of the largest shard, 8 where tokens take 32 bits.
    ///
    /// `progress` is called with a stage, how much of it is done, and how much it is in all;
    /// breaking from it stops the build.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyCorpus`], [`Error::OutOfMemory`], [`Error::Exists`], [`Error::Stopped`],
    /// [`Error::BuildFailed`], [`Error::Io`]. Nothing is left of the build then.
    pub fn finish(
        mut self,
        progress: &mut dyn FnMut(Stage, u64, u64) -> ControlFlow<()>,
    ) -> Result<Datastore> {
        self.check_not_failed()?;
        self.complete_shard()?;
        if self.complete.is_empty() {
            return Err(Error::EmptyCorpus);
        }
        let mut report = |stage, done, total| match progress(stage, done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Stopped),
        };
        let manifest = self.write_indexes(&mut report)?;
        self.seal(manifest, &mut report)?;
        publish(self.folder, &self.target, self.options.overwrite)?;
        Datastore::open(&self.target)
    }

    fn check_not_failed(&self) -> Result<()> {
        if self.has_failed {
            Err(Error::BuildFailed)
        } else {
            Ok(())
        }
    }

    fn check_documents(&self, tokens: &[u32], lengths: &[usize]) -> Result<()> {
        let sum = lengths
            .iter()
            .try_fold(0_usize, |sum, &length| sum.checked_add(length));
        if sum != Some(tokens.len()) {
            let reason = format!("must add up to the number of tokens, {}", tokens.len());
            return Err(Error::invalid("lengths", reason));
        }
        let DatastoreOptions {
            vocab_size,
            max_shard_tokens: limit,
            ..
        } = self.options;
        if let Some(&token) = tokens.iter().find(|&&token| token >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        let found = lengths.iter().max().map_or(0, |&length| length as u64 + 1);
        if found > limit {
            Err(Error::TooManyTokens { found, limit })
        } else {
            Ok(())
        }
    }

    fn add_document(&mut self, document: &[u32]) -> Result<()> {
        let num_tokens = document.len() as u64 + 1;
        let limit = self.options.max_shard_tokens;
        if self
            .current
            .as_ref()
            .is_some_and(|shard| shard.num_tokens + num_tokens > limit)
        {
            self.complete_shard()?;
        }
        let shard = match &mut self.current {
            Some(shard) => shard,
            None => self.current.insert(ShardWriter::create(
                &self.shard_folder(self.complete.len()),
            )?),
        };
        shard.add_document(document, self.options.separator, self.width)?;
        self.num_tokens += num_tokens;
        self.num_documents += 1;
        Ok(())
    }

    fn complete_shard(&mut self) -> Result<()> {
        if let Some(shard) = self.current.take() {
            self.complete.push(shard.finish(self.width)?);
        }
        Ok(())
    }

    fn shard_folder(&self, index: usize) -> PathBuf {
        self.folder.path().join(folder_name(index))
    }

    fn write_indexes(&mut self, report: &mut Report) -> Result<Manifest> {
        let total = self.num_tokens;
        let mut num_before = 0;
        let mut shards = Vec::new();
        report(Stage::Sort, 0, total)?;
        for (index, text) in std::mem::take(&mut self.complete).into_iter().enumerate() {
            let folder = self.shard_folder(index);
            let mut progress = |stage, done| report(stage, num_before + done, total);
            let vocab_size = self.options.vocab_size;
            let shard = write_index(&folder, text, vocab_size, self.width, &mut progress)?;
            num_before += shard.tokens.count;
            shards.push(shard);
        }
        let options = self.options.clone();
        Ok(Manifest {
            format: manifest::FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            vocab_size: options.vocab_size,
            separator: options.separator,
            num_tokens: self.num_tokens,
            num_documents: self.num_documents,
            tokenizer_name: options.tokenizer_name,
            tokenizer_fingerprint: options.tokenizer_fingerprint,
            corpus: options.corpus,
            shards,
            build_id: String::new(),
        })
    }

    /// Writes the manifest and the headers that name its build id, all the way to the disk.
    fn seal(&self, mut manifest: Manifest, report: &mut Report) -> Result<()> {
        let text = manifest.seal();
        let total = manifest.shards.len() as u64;
        for (index, shard) in manifest.shards.iter().enumerate() {
            report(Stage::Sync, index as u64, total)?;
            let folder = self.shard_folder(index);
            let build_id = manifest.build_id();
            for (kind, section) in shard.sections() {
                let place = Place {
                    build_id,
                    shard: shard_number(index)?,
                    kind,
                };
                format::stamp(&folder, place, section)?;
            }
            format::sync_folder(&folder)?;
        }
        let path = self.folder.path().join(manifest::FILE_NAME);
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(Error::io(&path))?;
        format::sync_folder(self.folder.path())?;
        report(Stage::Sync, total, total)
    }
}

impl fmt::Debug for DatastoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut builder = f.debug_struct("DatastoreBuilder");
        builder
            .field("target", &self.target)
            .field("options", &self.options);
        builder
            .field("num_tokens", &self.num_tokens)
            .finish_non_exhaustive()
    }
}

type Report<'a> = dyn FnMut(Stage, u64, u64) -> Result<()> + 'a;

/// Streams the documents of a shard to disk.
struct ShardWriter {
    tokens: SectionWriter,
    documents: SectionWriter,
    num_tokens: u64,
    num_documents: u64,
    bytes: Vec<u8>,
}

impl ShardWriter {
    fn create(folder: &Path) -> Result<Self> {
        fs::create_dir(folder).map_err(Error::io(folder))?;
        Ok(Self {
            tokens: SectionWriter::create(folder, Kind::Tokens)?,
            documents: SectionWriter::create(folder, Kind::Documents)?,
            num_tokens: 0,
            num_documents: 0,
            bytes: Vec::new(),
        })
    }

    fn add_document(&mut self, document: &[u32], separator: u32, width: TokenWidth) -> Result<()> {
        self.bytes.clear();
        width.encode(document, &mut self.bytes);
        width.encode(&[separator], &mut self.bytes);
        self.tokens.write(&self.bytes)?;
        self.num_tokens += document.len() as u64 + 1;
        self.num_documents += 1;
        self.documents.write(&self.num_tokens.to_le_bytes())
    }

    fn finish(self, width: TokenWidth) -> Result<ShardText> {
        let tokens = self.tokens.finish(width.bits(), self.num_tokens)?;
        let documents = self.documents.finish(64, self.num_documents)?;
        Ok(ShardText { tokens, documents })
    }
}

/// Whether something may be built at `target`. Only a datastore is ever replaced: a mistyped path
/// must not cost its owner a folder.
fn check_target(target: &Path, overwrite: bool) -> Result<()> {
    if fs::symlink_metadata(target).is_err() {
        Ok(())
    } else if !overwrite {
        Err(Error::Exists {
            path: target.to_owned(),
        })
    } else if !manifest::is_datastore(target) {
        Err(Error::NotADatastore {
            path: target.to_owned(),
        })
    } else {
        Ok(())
    }
}

/// A folder beside `target`, so that it can be renamed to it, with the permissions of any new
/// folder.
fn temporary_folder(target: &Path, purpose: &str) -> Result<TempDir> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Error::invalid("path", "must name a folder below another"));
    };
    let prefix = format!(".{}.{purpose}-", name.to_string_lossy());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.tempdir_in(parent).map_err(Error::io(parent))
}

/// Renames a complete datastore to its target. One that is there already is moved aside before and
/// removed after, so there is a complete datastore at all times.
fn publish(folder: TempDir, target: &Path, overwrite: bool) -> Result<()> {
    check_target(target, overwrite)?;
    if fs::symlink_metadata(target).is_ok() {
        let old = temporary_folder(target, "old")?;
        let aside = old.path().join("datastore");
        fs::rename(target, &aside).map_err(Error::io(target))?;
        if let Err(error) = fs::rename(folder.path(), target) {
            if fs::rename(&aside, target).is_err() {
                let _ = old.keep();
            }
            return Err(Error::io(target)(error));
        }
    } else {
        fs::rename(folder.path(), target).map_err(Error::io(target))?;
    }
    let _ = folder.keep();
    target.parent().map_or(Ok(()), format::sync_folder)
}

fn shard_number(index: usize) -> Result<u16> {
    u16::try_from(index).map_err(|_| {
        Error::invalid(
            "max_shard_tokens",
            format!("is too small: it makes more than {MAX_SHARDS} shards"),
        )
    })
}

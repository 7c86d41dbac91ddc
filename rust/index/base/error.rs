//! Errors, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },

    #[error("{0} exists already: choose another path or ask to overwrite it")]
    Exists(PathBuf),

    /// The temporary path next to a writer's target is taken by something that the writer did not create.
    #[error("{0} exists and was not created by this user: move it away or choose another target")]
    Foreign(PathBuf),

    #[error("{0} is not a datastore: check the path or build one there")]
    NotADatastore(PathBuf),

    #[error(
        "{path} has format version {found}, this version reads {expected}: {}",
        if found > expected { "upgrade the reader or rebuild it" } else { "rebuild it" }
    )]
    Version { path: PathBuf, expected: u32, found: u32 },

    #[error("{path} has {found} bytes where {expected} were written: copy it again or rebuild it")]
    Truncated { path: PathBuf, expected: u64, found: u64 },

    /// The content of the file is inconsistent, in itself or with other files.
    #[error("{path} is corrupt: {reason}: rebuild it")]
    Corrupt { path: PathBuf, reason: String },

    #[error("{0} has changed since it was written: copy it again or rebuild it")]
    Checksum(PathBuf),

    #[error(
        "{path} cannot be opened as a memory: {reason}: copy it again or begin with an empty one"
    )]
    Snapshot { path: PathBuf, reason: String },

    #[error("the corpus is empty: add at least one document with tokens")]
    EmptyCorpus,

    #[error(
        "token {token} is outside the vocabulary of {vocab_size}: tokens and datastore must be of one tokenizer"
    )]
    TokenOutOfRange { token: u32, vocab_size: u32 },

    #[error(
        "a document takes {found} tokens, separator included, and a shard holds {limit}: split it or raise `max_shard_tokens`"
    )]
    TooManyTokens { found: u64, limit: u64 },

    #[error("`{name}` {reason}")]
    InvalidArgument { name: &'static str, reason: String },

    #[error(
        "{0} is being written, by another process or by a builder of this one: wait until it has ended"
    )]
    Locked(PathBuf),

    /// The token ids have different meanings.
    #[error("{path} is of another tokenizer: {reason}")]
    OtherTokenizer { path: PathBuf, reason: String },

    /// The field is the number of bytes.
    #[error(
        "no memory for {0} bytes to sort a shard: lower `max_shard_tokens` or raise `max_memory`"
    )]
    OutOfMemory(u64),

    /// The field is the number of bytes.
    #[error("no memory for {0} bytes of a text: nothing was added")]
    TextOutOfMemory(u64),

    /// The caller's progress function stopped the build.
    #[error("the build was stopped")]
    Stopped,

    #[error("an earlier write of this build failed: start it again")]
    BuildFailed,
}

impl Error {
    #[doc(hidden)]
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// Replaces the path of an I/O error, of a temporary file such as a lock, by the path that the caller passed.
    #[doc(hidden)]
    #[must_use]
    pub fn at(self, asked: &Path) -> Self {
        match self {
            Self::Io { source, .. } => Self::io(asked)(source),
            other => other,
        }
    }

    #[doc(hidden)]
    pub fn corrupt(path: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), reason: reason.into() }
    }

    #[doc(hidden)]
    pub fn invalid(name: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidArgument { name, reason: reason.into() }
    }
}

//! Errors, each with its remedy.

use std::io;
use std::path::PathBuf;

/// A result with an error of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a file or of an argument, with its name and the fault.
#[allow(missing_docs)] // of fields, which all variants share
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system cannot read or write a file.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },

    /// The file has another format.
    #[error("{0} is not a GGUF file of version 2 or 3: check the path")]
    NotGguf(PathBuf),

    /// The file ends early, or contradicts itself.
    #[error("{path} is not a whole GGUF file: {reason}: download it again")]
    Corrupt { path: PathBuf, reason: String },

    /// A part of a split file whose other parts are missing, or parts of different files.
    #[error("{path} is a part of a split file, {reason}")]
    Split { path: PathBuf, reason: String },

    /// Tensors are missing, or have other shapes than the metadata say; the file may be whole.
    #[error("{path} {reason}: run it with transformers or llama.cpp, or convert it again")]
    Layout { path: PathBuf, reason: String },

    /// The file has something that is not computed here.
    #[error("{path} {reason}: run it with transformers or llama.cpp")]
    Unsupported { path: PathBuf, reason: String },

    /// An argument has a wrong value.
    #[error("`{name}` {reason}")]
    Invalid { name: &'static str, reason: String },

    /// The system has no memory for what is named.
    #[error("not enough memory for {0}: ask for fewer or shorter sequences")]
    OutOfMemory(&'static str),

    /// Another thread stopped the pass or the load.
    #[error("the work was stopped: repeat it")]
    Stopped,
}

impl Error {
    /// The error of an argument, by its name.
    pub fn invalid(name: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { name, reason: reason.into() }
    }
}

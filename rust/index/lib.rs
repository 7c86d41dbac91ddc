//! Exact search in tokenized corpora: occurrences of a token sequence, their number and their continuations.
//!
//! A [`DatastoreBuilder`] writes the tokens of a corpus and their suffix array to a folder, about five bytes a
//! token. A [`Datastore`] maps that folder: it opens in milliseconds, threads and processes share it, and a search
//! takes microseconds among hundreds of millions of tokens.
//!
//! # Examples
//!
//! ```
//! # fn main() -> specds_index::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("example");
//! use specds_index::{DatastoreBuilder, DatastoreOptions};
//!
//! // Tokens are below 100; 100 itself ends each document.
//! let mut builder = DatastoreBuilder::create(&path, DatastoreOptions::new(100, 100))?;
//! builder.add_document(&[1, 2, 3, 4])?;
//! builder.add_document(&[1, 2, 3, 5])?;
//! let datastore = builder.finish()?;
//!
//! let found = datastore.find(&[1, 2])?;
//! assert_eq!(found.count(), 2);
//! let samples = datastore.sample(&found, 2, 10);
//! assert_eq!(samples.row(0), [3, 4]);
//! assert_eq!(samples.row(1), [3, 5]);
//!
//! // The longest suffix of a context that occurs, and its most frequent continuations.
//! let found = datastore.lookup(&[9, 2, 3], 16, 1)?;
//! assert_eq!(found.length, 2);
//! assert_eq!(datastore.continuations(&found, 10), [(4, 1), (5, 1)]);
//! # Ok(())
//! # }
//! ```
//!
//! `docs/FORMAT.md` of the repository specifies the bytes of a datastore. [`Datastore::verify`] finds damage; without
//! it, a damaged file gives wrong answers, never a crash.
//!
//! # Features
//!
//! `rayon`, on by default, divides batches among threads.

#[cfg(target_endian = "big")]
compile_error!("datastores are little-endian and are mapped as they are");

#[doc(hidden)]
pub mod base;
mod indexing;
mod lookup;
#[doc(hidden)]
pub mod storage;
mod suffixes;

pub use base::{Error, Result};
pub use indexing::builder::DatastoreBuilder;
pub use indexing::merge::{CompactOptions, compact, compact_with, merge};
pub use indexing::options::DatastoreOptions;
pub use indexing::staging::{remove_abandoned, was_killed_after_publishing};
pub use lookup::datastore::Datastore;
pub use lookup::matches::Match;
pub use lookup::next_tokens::NextTokens;
pub use lookup::samples::Samples;
pub use lookup::shards::StoredDocument;
pub use storage::manifest::{
    MAX_SHARD_TOKENS, MAX_VOCAB_SIZE, Manifest, ShardEntry, ShardManifest, SourcesEntry,
};
pub use storage::section::FORMAT_VERSION;
pub use suffixes::write::{Report, Stage};

#[cfg(doctest)]
#[doc = include_str!("README.md")]
struct Readme;

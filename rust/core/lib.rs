//! Drafts for speculative decoding, looked up in a datastore.
//!
//! A large language model checks a dozen drafted tokens in about the time it takes to write one.
//! This crate drafts them without a model: it looks up what followed the present context before.
//!
//! ```text
//! documents -> DatastoreBuilder -> Datastore -> lookup -> Match -> continuations -> TokenTree
//! ```
//!
//! Each folder answers one question, and imports only folders that stand before it in this list:
//!
//! * [`base`]: what every other one needs: errors, threads, portable arithmetic.
//! * [`storage`]: the files of a datastore.
//! * [`index`]: the order of all suffixes, and the frequent n-grams.
//! * [`lookup`]: a datastore, mapped read-only: where a context occurs in it, and what followed.
//! * [`build`]: how documents become a datastore.
//! * [`memory`]: a text that grows, and what earlier requests said, by tenant.
//! * [`draft`]: a draft is a tree of tokens that the target model verifies in one forward pass; a
//!   session observes one request's context and drafts from it.
//! * [`papers`]: sessions as papers describe them.
//! * [`fused`]: one session from all sources, by weights that learn.
//! * [`engine`]: the sessions of a serving engine's batches, found by their texts.
//!
//! # Examples
//!
//! ```
//! # fn main() -> specds::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("example");
//! use std::sync::Arc;
//!
//! use specds::build::{DatastoreBuilder, DatastoreOptions};
//! use specds::draft::{DraftLimits, Session};
//! use specds::papers::rest::{RestConfig, RestSession};
//!
//! let options = DatastoreOptions::new(100, 100);
//! let mut builder = DatastoreBuilder::create(&path, options)?;
//! builder.add_documents(&[1, 2, 3, 4, 1, 2, 3, 5], &[4, 4])?;
//! let datastore = builder.finish(&mut |_stage, _done, _total| Ok(()))?;
//!
//! let mut session = RestSession::new(Arc::new(datastore), RestConfig::default())?;
//! session.observe(&[9, 1, 2], None)?;
//! let tree = session.draft(DraftLimits::nodes(16))?;
//! assert_eq!(session.match_length(), 2);
//! assert_eq!(tree.token_ids(), [3, 4, 5]);
//! assert_eq!(tree.parents(), [-1, 0, 0]);
//! assert_eq!(tree.probs(), [1.0, 0.5, 0.5]);
//! # Ok(())
//! # }
//! ```

#[cfg(target_endian = "big")]
compile_error!("datastores are little-endian and are mapped as they are");

pub mod base;
pub mod build;
pub mod draft;
pub mod engine;
pub mod fused;
pub mod index;
pub mod lookup;
pub mod memory;
pub mod papers;
pub mod storage;

pub use base::{Error, Result};

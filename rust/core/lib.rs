//! Drafts for speculative decoding, looked up in a datastore.
//!
//! A large language model checks a dozen drafted tokens in about the time it takes to write one.
//! This crate drafts them without a model: it looks up what followed the present context before.
//!
//! ```text
//! documents -> DatastoreBuilder -> Datastore -> lookup -> Match -> continuations -> TokenTree
//! ```
//!
//! The first line of each module is the question that it answers. A module imports only those before it in
//! `docs/ARCHITECTURE.md`.
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
pub mod budget;
pub mod build;
pub mod draft;
pub mod engine;
pub mod fused;
pub mod index;
pub mod linear;
pub mod lookup;
pub mod memory;
pub mod papers;
pub mod storage;
pub mod weights;

pub use base::{Error, Result};

//! Drafts for speculative decoding without a second model.
//!
//! A large language model verifies a dozen drafted tokens in about the time that it takes to generate one. This
//! crate drafts these tokens from earlier continuations of the current context: in a corpus, in the request, in
//! earlier requests, and in the model's own predictions.
//!
//! A [`Session`](draft::Session) serves one request: it observes the tokens of the context and drafts a
//! [`TokenTree`](draft::TokenTree). [`FusedSession`](fused::FusedSession) mixes all sources, [`papers`] has
//! published drafters, and [`EngineDrafter`](engine::EngineDrafter) drafts for all sequences of a serving engine.
//! The corpus is a [`Datastore`] of the crate `specds-index`.
//!
//! # Examples
//!
//! ```
//! # fn main() -> specds_core::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("example");
//! use std::sync::Arc;
//!
//! use specds_core::draft::{DraftLimits, Session};
//! use specds_core::papers::rest::{RestConfig, RestSession};
//! use specds_index::{DatastoreBuilder, DatastoreOptions};
//!
//! let options = DatastoreOptions::new(100, 100);
//! let mut builder = DatastoreBuilder::create(&path, options)?;
//! builder.add_document(&[1, 2, 3, 4])?;
//! builder.add_document(&[1, 2, 3, 5])?;
//! let datastore = builder.finish()?;
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

pub mod budget;
pub mod draft;
pub mod engine;
pub mod fused;
pub mod memory;
pub mod papers;
mod portable_math;
pub mod verify;
pub mod weights;

pub use specds_index::{Datastore, Error, Result};

#[cfg(doctest)]
#[doc = include_str!("README.md")]
struct Readme;

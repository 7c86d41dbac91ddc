//! Drafts for speculative decoding, looked up in a datastore.
//!
//! A large language model checks a dozen drafted tokens in about the time it takes to write one.
//! This crate drafts them without a model: it looks up what followed the present context before.
//!
//! ```text
//! documents -> DatastoreBuilder -> Datastore -> lookup -> Match -> continuations -> TokenTree
//! ```
//!
//! * [`datastore`]: a tokenised corpus and the order of its suffixes in a folder, built once,
//!   mapped read-only, shared by threads and processes.
//! * [`draft`]: one request; it observes the context and drafts from it: [`rest`] from a datastore,
//!   [`fused`] from all sources, [`aded`] from [`trigram`]s that learn ([`adaptation`]),
//!   [`n_grammys`] and [`prompt_lookup`] without any data.
//! * [`likeliest`] and [`drawing`]: what the target model predicts, and what a sample of that is.
//! * [`history`]: a text that grows, and where its last tokens came before.
//! * [`memory`]: what earlier requests said, by tenant, within a number of bytes.
//! * [`model_tables`]: what the target model itself predicts after one token, or after none.
//! * [`weights`]: what each kind of evidence has proved to be worth to [`fused`].
//! * [`tree`]: the draft, a tree of tokens that the target model verifies in one forward pass.
//! * [`error`]: what can go wrong and the way out.
//!
//! # Examples
//!
//! ```
//! # fn main() -> specds::error::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("example");
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! use specds::datastore::{DatastoreBuilder, DatastoreOptions};
//! use specds::draft::Session;
//! use specds::rest::{RestConfig, RestSession};
//!
//! let options = DatastoreOptions::new(100, 100);
//! let mut builder = DatastoreBuilder::create(&path, options)?;
//! builder.add_documents(&[1, 2, 3, 4, 1, 2, 3, 5], &[4, 4])?;
//! let datastore = builder.finish(&mut |_stage, _done, _total| ControlFlow::Continue(()))?;
//!
//! let mut session = RestSession::new(Arc::new(datastore), RestConfig::default())?;
//! session.observe(&[9, 1, 2])?;
//! let tree = session.draft(16)?;
//! assert_eq!(session.match_length(), 2);
//! assert_eq!(tree.token_ids(), [3, 4, 5]);
//! assert_eq!(tree.parents(), [-1, 0, 0]);
//! assert_eq!(tree.probs(), [1.0, 0.5, 0.5]);
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

#[cfg(target_endian = "big")]
compile_error!("datastores are little-endian and are mapped as they are");

pub mod adaptation;
pub mod aded;
mod anchors;
mod builder;
mod calibration;
mod checks;
mod complete;
mod cover;
pub mod datastore;
pub mod draft;
pub mod drawing;
mod duplicates;
pub mod edit;
pub mod effort;
mod entries;
pub mod error;
mod evidence;
mod followers;
mod format;
pub mod fused;
mod growth;
mod hidden;
pub mod history;
mod index;
mod indexer;
mod latest;
mod lightweight;
pub mod likeliest;
mod manifest;
mod mcts;
pub mod memory;
mod mixer;
pub mod model_tables;
pub mod n_grammys;
mod ngrams;
mod numeric;
mod occurrences;
mod options;
mod passages;
mod placed;
mod positions;
mod prior;
pub mod prompt_lookup;
mod recycled;
pub mod rest;
mod samples;
mod shard;
mod skips;
mod snapshot;
#[cfg(test)]
mod sort_tests;
mod split;
mod staging;
mod stride;
mod suffix;
mod tables;
mod text;
mod texts;
mod thin;
mod threads;
mod tokens;
pub mod tree;
mod trie;
pub mod trigram;
mod trigram_count;
mod trigram_files;
mod warmth;
pub mod weights;
mod worker;

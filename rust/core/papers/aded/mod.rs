//! ADED (Liu et al., 2024): drafts from adaptive tri-grams.
//!
//! `count` builds the matrix of `trigrams`, `adaptive` updates it, and `mcts` searches it for sentences.

pub(crate) mod adaptive;
mod config;
mod count;
mod mcts;
pub(crate) mod session;
pub(crate) mod trigrams;

pub use adaptive::AdaptiveTrigrams;
pub use config::{AdedConfig, SearchMethod};
pub use session::AdedSession;
pub use trigrams::{MAX_VOCAB_SIZE, TrigramOptions, Trigrams};

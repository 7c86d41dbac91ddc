//! ADED (Liu et al., 2024): drafts from tri-grams that learn.
//!
//! `trigrams` is the matrix, `count` makes it, `adaptive` learns, `mcts` searches.

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

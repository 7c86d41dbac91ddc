//! ADED: adaptive draft-verification, which drafts from tri-grams that learn.

pub(crate) mod adaptive;
mod count;
mod files;
mod mcts;
pub(crate) mod session;
pub(crate) mod trigrams;

pub use adaptive::{Adaptation, AdaptiveTrigrams};
pub use mcts::SearchConfig;
pub use session::{AdedConfig, AdedSession, SearchMethod};
pub use trigrams::{MAX_VOCAB_SIZE, TrigramFacts, TrigramOptions, Trigrams};

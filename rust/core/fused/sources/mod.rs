//! What does each source of the fused drafter say may follow a node? One file a source.

pub(crate) mod bigrams;
pub(crate) mod corpus;
pub(crate) mod echo;
mod places;
pub(crate) mod recycled;
pub(crate) mod suggested;
pub(crate) mod text;

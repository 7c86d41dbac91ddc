//! What does each source of the fused drafter say may follow a node? One file a source.

pub(crate) mod associations;
pub(crate) mod bigrams;
pub(crate) mod datastore;
pub(crate) mod history;
mod occurrences;
pub(crate) mod recycled;
pub(crate) mod suggested;

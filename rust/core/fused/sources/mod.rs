//! Sources of the fused drafter, one per file.

pub(crate) mod associations;
pub(crate) mod bigrams;
pub(crate) mod datastore;
pub(crate) mod history;
mod occurrences;
pub(crate) mod recycled;
pub(crate) mod suggested;

//! Occurrences of a token sequence.

use std::ops::Range;

/// The occurrences of a token sequence in a datastore, such as the longest suffix of a context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// Length of the sequence; 0 if it does not occur.
    pub length: usize,
    /// The ranks, in each shard, of the suffixes that begin with the sequence.
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Match {
    /// Number of occurrences.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    pub(crate) fn is_in_one_shard(&self) -> bool {
        self.ranges.iter().filter(|range| !range.is_empty()).count() < 2
    }
}

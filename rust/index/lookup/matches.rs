//! A match: the occurrences of one sequence of tokens.

use std::ops::Range;

/// The occurrences of one sequence of tokens in a datastore, such as the longest suffix of a context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// How many tokens it has; 0 where none occurs.
    pub length: usize,
    /// In each shard, the ranks of the suffixes that begin with it.
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Match {
    /// How often it occurs.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    pub(crate) fn is_in_one_shard(&self) -> bool {
        self.ranges.iter().filter(|range| !range.is_empty()).count() < 2
    }
}

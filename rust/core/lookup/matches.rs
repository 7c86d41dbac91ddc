//! Where does a pattern occur?

use std::ops::Range;

/// Where the longest suffix of a context occurs in a datastore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// In tokens; 0 where there is none.
    pub length: usize,
    /// The ranks of its occurrences in each shard.
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Match {
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    pub(crate) fn is_in_one_shard(&self) -> bool {
        self.ranges.iter().filter(|range| !range.is_empty()).count() < 2
    }
}

//! Sampled continuations of a match.

use std::ops::Range;

/// Continuations of sampled occurrences of a match, one a row. Rows with a common prefix are adjacent.
///
/// [`Datastore::sample_into`](crate::Datastore::sample_into) reuses its memory.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    pub(crate) tokens: Vec<u32>,
    pub(crate) rows: Vec<SampleRow>,
    /// The positions of the rows of one shard, while that shard is read.
    pub(crate) positions: Vec<usize>,
}

/// The continuation of one occurrence.
#[derive(Debug, Clone)]
pub(crate) struct SampleRow {
    pub(crate) tokens: Range<usize>,
    /// Number of tokens before the occurrence that equal the caller's context.
    pub(crate) context_overlap: usize,
}

impl Samples {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of tokens of all rows.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the tokens after an occurrence: the requested number, or fewer if its document ends before.
    pub fn row(&self, index: usize) -> &[u32] {
        &self.tokens[self.rows[index].tokens.clone()]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.rows.iter().map(|row| &self.tokens[row.tokens.clone()])
    }

    /// Returns, for each row, how many tokens before the occurrence equal the last tokens of the `before` that was
    /// passed to [`Datastore::sample_into`](crate::Datastore::sample_into).
    pub fn overlaps(&self) -> impl ExactSizeIterator<Item = usize> {
        self.rows.iter().map(|row| row.context_overlap)
    }

    pub(crate) fn sort(&mut self) {
        let row = |row: &SampleRow| &self.tokens[row.tokens.clone()];
        self.rows.sort_by(|a, b| row(a).cmp(row(b)));
    }
}

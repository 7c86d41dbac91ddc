//! Samples of what followed a match.

use std::ops::Range;

/// What followed some occurrences of a match: rows of tokens, of which those that begin alike stand together.
///
/// [`Datastore::sample_into`](crate::Datastore::sample_into) fills one again without allocating.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    pub(crate) tokens: Vec<u32>,
    pub(crate) rows: Vec<SampleRow>,
    /// The positions of the rows of one shard, while that shard is read.
    pub(crate) positions: Vec<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct SampleRow {
    pub(crate) tokens: Range<usize>,
    /// How many tokens before the occurrence agree with the tokens that the caller expects there.
    pub(crate) context_overlap: usize,
}

impl Samples {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The tokens of all rows together.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens after the occurrence: as many as were asked for, fewer where its document ends before.
    pub fn row(&self, index: usize) -> &[u32] {
        &self.tokens[self.rows[index].tokens.clone()]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.rows.iter().map(|row| &self.tokens[row.tokens.clone()])
    }

    /// For each row, how many tokens before the occurrence are the last ones of `before`, as
    /// [`Datastore::sample_into`](crate::Datastore::sample_into) was given it.
    pub fn overlaps(&self) -> impl ExactSizeIterator<Item = usize> {
        self.rows.iter().map(|row| row.context_overlap)
    }

    pub(crate) fn sort(&mut self) {
        let row = |row: &SampleRow| &self.tokens[row.tokens.clone()];
        self.rows.sort_by(|a, b| row(a).cmp(row(b)));
    }
}

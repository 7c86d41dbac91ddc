//! What followed a match?

use std::ops::Range;

/// Rows of tokens in lexicographic order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    pub(crate) tokens: Vec<u32>,
    pub(crate) rows: Vec<Row>,
    /// Where the rows of a shard begin in it, while they are read.
    pub(crate) positions: Vec<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) tokens: Range<usize>,
    /// How many tokens before the match are those that were asked for.
    pub(crate) reach: usize,
}

impl Samples {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.rows.iter().map(|row| &self.tokens[row.tokens.clone()])
    }

    pub(crate) fn row(&self, index: usize) -> &[u32] {
        &self.tokens[self.rows[index].tokens.clone()]
    }

    pub(crate) fn sort(&mut self) {
        let row = |row: &Row| &self.tokens[row.tokens.clone()];
        self.rows.sort_by(|a, b| row(a).cmp(row(b)));
    }
}

/// Equal neighbours, each token with its count.
pub(crate) fn runs(tokens: impl Iterator<Item = u32>) -> impl Iterator<Item = (u32, f32)> {
    let mut tokens = tokens.peekable();
    std::iter::from_fn(move || {
        let token = tokens.next()?;
        let mut count = 1.0;
        while tokens.next_if_eq(&token).is_some() {
            count += 1.0;
        }
        Some((token, count))
    })
}

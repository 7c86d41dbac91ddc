//! The tokens of a pass that are computed at once, as layers see them.

use super::attention::Visible;
use super::cache::{Cache, CacheRow};
use super::operations::Operations;
use super::recurrent::PassPart;
use super::rotation::Rotation;

/// A token of a pass.
pub(crate) struct Token {
    /// The index of its sequence in the cache.
    pub(crate) row: usize,
    /// The id in the vocabulary.
    pub(crate) id: u32,
    /// The slot of its keys and values in the row.
    pub(crate) slot: usize,
    /// The tokens that it attends to.
    pub(crate) visible: Visible,
    /// True if its logits are computed.
    pub(crate) has_logits: bool,
}

impl Token {
    /// The position in its text, from 0.
    pub(crate) fn position(&self) -> usize {
        self.visible.length() - 1
    }
}

/// Tokens that are computed at once.
pub(crate) struct PassChunk<'a> {
    /// The tokens, in the order of their states.
    pub(crate) tokens: &'a [Token],
    /// The rotations of the model.
    pub(crate) rotations: &'a [Rotation],
    /// Cosine and sine of each pair of dimensions, `[rotation][token][pair]`.
    pub(crate) turns: Vec<Vec<Vec<[f32; 2]>>>,
    /// The operations of the layers.
    pub(crate) ops: Operations,
}

impl PassChunk<'_> {
    /// The tokens of each row, as a part of its pass, the row, and the states of these tokens.
    pub(crate) fn by_row<'a>(
        &self,
        cache: &Cache,
        states: &'a [f32],
    ) -> Vec<(PassPart, usize, &'a [f32])> {
        let size = states.len() / self.tokens.len();
        let mut remaining = states;
        let split_row = |tokens: &[Token]| {
            let (states, others) = remaining.split_at(tokens.len() * size);
            remaining = others;
            let row = tokens[0].row;
            let CacheRow { length, is_recorded, .. } = cache.rows[row];
            (PassPart { is_first: tokens[0].slot == length, is_recorded }, row, states)
        };
        self.tokens.chunk_by(|a, b| a.row == b.row).map(split_row).collect()
    }
}

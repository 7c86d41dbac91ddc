//! Weights of a linear layer, and blocks of their rows.

/// The weights of a linear layer, one row per output.
#[derive(Debug, Clone, Copy)]
pub enum LayerWeights<'a> {
    F32(&'a [f32]),
    /// The upper halves of 32-bit floats.
    BF16(&'a [u16]),
}

/// A block of rows with their outputs.
pub(crate) struct RowBlock<'a> {
    pub(crate) weights: LayerWeights<'a>,
    /// The outputs of the rows, one slice per token.
    pub(crate) outputs: Vec<&'a mut [f32]>,
}

impl LayerWeights<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(weights) => weights.len(),
            Self::BF16(weights) => weights.len(),
        }
    }

    pub(crate) fn split_at(self, place: usize) -> (Self, Self) {
        match self {
            Self::F32(weights) => {
                let (first, rest) = weights.split_at(place);
                (Self::F32(first), Self::F32(rest))
            }
            Self::BF16(weights) => {
                let (first, rest) = weights.split_at(place);
                (Self::BF16(first), Self::BF16(rest))
            }
        }
    }
}

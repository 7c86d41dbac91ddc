//! Initial weights of all tenants, and the layout of the weight tables.

use std::ops::Range;

use crate::portable_math::hash;
use crate::weights::kind::ExpertKind;

/// The number of match length buckets.
pub(crate) const MAX_ORDER: usize = 8;
/// The number of buckets of the number of matches.
pub(crate) const NUM_SIZES: usize = 8;
/// The number of support size buckets.
pub(crate) const NUM_SUPPORT_BUCKETS: usize = 3;
/// The number of ranks of experts in [`AGREEMENT`].
pub(crate) const NUM_RANKS: usize = 5;
/// The hash bits of a token in a table with a part for each kind of expert.
const KIND_BITS: u32 = 11;
/// The hash bits of a token.
pub(crate) const TOKEN_BITS: u32 = 14;
/// The hash bits of a pair of tokens.
pub(crate) const PAIR_BITS: u32 = 14;
/// The number of buckets of the uses of a token.
pub(crate) const NUM_USES: usize = 5;
/// The number of buckets of the corpus frequency of a token.
pub(crate) const NUM_FREQUENCIES: usize = 13;
/// The number of probability buckets.
pub(crate) const NUM_LEVELS: usize = 16;
/// The number of distances to the last use of a token, including none.
pub(crate) const NUM_RECENCIES: usize = 9;
/// The number of ranks of experts in [`RELIABILITY`].
pub(crate) const NUM_RELIABILITY_RANKS: usize = 3;
/// The number of buckets of the number of matches in [`RELIABILITY`].
pub(crate) const NUM_RELIABILITY_SIZES: usize = 4;
/// The number of knots of a calibration curve: log odds from -8 to 8.
pub(crate) const NUM_KNOTS: usize = 17;
/// The number of calibration curves: sums from 0.25 to 16 tokens, in powers of two.
pub(crate) const NUM_SUMS: usize = 7;

/// The range of one kind of weights within all weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightTable {
    start: usize,
    len: usize,
}

impl WeightTable {
    const fn after(before: Self, len: usize) -> Self {
        Self { start: before.start + before.len, len }
    }

    /// Returns a table with a part of this length for each kind of expert.
    const fn of_kinds(before: Self, len: usize) -> Self {
        Self::after(before, ExpertKind::COUNT * len)
    }

    pub(crate) const fn key(self, index: usize) -> usize {
        self.start + index
    }

    /// Returns the key of a token in a table with a part for each kind of expert.
    pub(crate) fn key_of(self, kind: ExpertKind, token: u32) -> usize {
        self.key((kind.index() << KIND_BITS) + hash::<KIND_BITS>(token))
    }

    pub(crate) const fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

const START: WeightTable = WeightTable { start: 0, len: 0 };
/// Weights of experts by kind, length of the match, number of matches, and how many tokens followed.
pub(crate) const ORDER: WeightTable =
    WeightTable::of_kinds(START, MAX_ORDER * NUM_SIZES * NUM_SUPPORT_BUCKETS);
/// Weights of experts by kind, rank, and the other experts with the same top-1 token.
pub(crate) const AGREEMENT: WeightTable = WeightTable::of_kinds(ORDER, NUM_RANKS * 3 * 3 * 2);
/// Weights of candidates by how often the request used them, how frequent they are, and how likely.
pub(crate) const USE: WeightTable =
    WeightTable::after(AGREEMENT, NUM_USES * NUM_FREQUENCIES * NUM_LEVELS / 2);
/// Weights of candidates by how long ago they came last, and how likely they are.
pub(crate) const RECENT: WeightTable = WeightTable::after(USE, NUM_RECENCIES * NUM_LEVELS);
/// Reliability of an expert's log-likelihood ratios by kind, rank, match length, and number of matches.
pub(crate) const RELIABILITY: WeightTable =
    WeightTable::of_kinds(RECENT, NUM_RELIABILITY_RANKS * (MAX_ORDER + 1) * NUM_RELIABILITY_SIZES);
/// The knots of the calibration curves, by the sum up to a node and the log odds of its path.
pub(crate) const CALIBRATION: WeightTable = WeightTable::after(RELIABILITY, NUM_SUMS * NUM_KNOTS);
/// The number of weights in the tables above, which no token selects. Tokens select those below, whose
/// initial weights are 0.
pub(crate) const NUM_SHAPES: usize = CALIBRATION.start + CALIBRATION.len;
/// Weights of experts by kind and the last token.
pub(crate) const LAST_TOKEN: WeightTable = WeightTable::of_kinds(CALIBRATION, 1 << KIND_BITS);
/// Weights of experts by kind, top-1 token, and support size.
pub(crate) const TOP_TOKEN: WeightTable = WeightTable::of_kinds(LAST_TOKEN, 1 << KIND_BITS);
/// Weights of candidates by token.
pub(crate) const TOKEN: WeightTable = WeightTable::after(TOP_TOKEN, 1 << TOKEN_BITS);
/// Weights of candidates by the last token and their own.
pub(crate) const PAIR: WeightTable = WeightTable::after(TOKEN, 1 << PAIR_BITS);
/// Reliability of a kind of expert for a token that it proposes.
pub(crate) const TOKEN_RELIABILITY: WeightTable = WeightTable::of_kinds(PAIR, 1 << KIND_BITS);

/// The version of the layout, which snapshots store.
pub(crate) const VERSION: u8 = 12;

// A change of the layout must raise the version, so that older snapshots are rejected.
const _: () = assert!(
    VERSION == 12
        && NUM_SHAPES == 7803
        && TOKEN_RELIABILITY.start + TOKEN_RELIABILITY.len == 151_163
);

/// The initial weights of all tenants, which no token selects.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights(Box<[f32; NUM_SHAPES]>);

/// Offsets that were fitted on drafts for code and chat: little-endian `f32`, in the order of the tables.
/// `scripts/fit_prior.py` fits them.
static PRIOR: &[u8] = include_bytes!("prior.bin");

// An empty file means zeros, so that the prior can be fitted after a change of the tables.
const _: () = assert!(PRIOR.is_empty() || PRIOR.len() == size_of::<[f32; NUM_SHAPES]>());

impl Default for Weights {
    fn default() -> Self {
        Self::with_offsets(PRIOR)
    }
}

impl Weights {
    /// The number of weights.
    pub const COUNT: usize = NUM_SHAPES;

    /// Returns the zero-shot weights plus these little-endian `f32` offsets.
    pub fn with_offsets(changes: &[u8]) -> Self {
        let Self(mut weights) = Self::zero_shot();
        for (weight, change) in weights.iter_mut().zip(changes.as_chunks().0) {
            *weight += f32::from_le_bytes(*change);
        }
        Self(weights)
    }

    /// Returns plausible weights without any training: longer matches count more, sequences of the
    /// request more than a corpus, and skip-grams least.
    fn zero_shot() -> Self {
        let weights = vec![0.0; NUM_SHAPES].try_into();
        let mut weights: Box<[f32; NUM_SHAPES]> = weights.expect("as many");
        let sizes = NUM_SIZES * NUM_SUPPORT_BUCKETS;
        for (index, weight) in weights[ORDER.range()].iter_mut().enumerate() {
            let (kind, order) = (index / sizes / MAX_ORDER, index / sizes % MAX_ORDER);
            *weight = ExpertKind::initial_weight(kind, order);
        }
        let weights_of_kind = RELIABILITY.len / ExpertKind::COUNT;
        for (index, weight) in weights[RELIABILITY.range()].iter_mut().enumerate() {
            *weight = ExpertKind::initial_reliability(index / weights_of_kind);
        }
        for (knot, weight) in weights[CALIBRATION.range()].iter_mut().enumerate() {
            *weight = (knot % NUM_KNOTS) as f32 - (NUM_KNOTS / 2) as f32;
        }
        Self(weights)
    }

    #[inline]
    pub(crate) fn get(&self, key: usize) -> f32 {
        self.0[key]
    }
}

#[cfg(test)]
mod tests {
    use super::{NUM_SHAPES, PRIOR};

    #[test]
    fn prior_has_a_finite_offset_for_each_weight() {
        let (changes, rest) = PRIOR.as_chunks();
        assert_eq!((changes.len(), rest.len()), (NUM_SHAPES, 0));
        let mut changes = changes.iter().map(|change| f32::from_le_bytes(*change));
        assert!(changes.all(f32::is_finite));
    }
}

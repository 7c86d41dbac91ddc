//! Attention of a token to those before it in its sequence and its tree.
//!
//! Scores are summed in the order of positions, wherever the tokens lie: a token of a tree computes what it
//! computes alone.

#![allow(clippy::needless_range_loop)] // as in the products

use std::ops::Range;

use super::cache::{LayerShape, PAGE, Page};
use crate::simd::vector::{Job, Simd, exp, tanh};

/// The tokens that a token sees, itself included.
#[derive(Debug, Clone, Default)]
pub(crate) struct Visible {
    /// Positions from 0 to this are in the slots of the same number.
    pub(crate) num_straight: usize,
    /// The slots of the positions after them.
    pub(crate) path: Vec<usize>,
}

impl Visible {
    pub(crate) fn length(&self) -> usize {
        self.num_straight + self.path.len()
    }

    /// The end of the slots.
    pub(crate) fn end(&self) -> usize {
        self.path.last().map_or(self.num_straight, |slot| slot + 1)
    }
}

/// A query of a token, and the place of its output.
pub(crate) struct Query<'a> {
    pub(crate) row: usize,
    /// The head of its keys.
    pub(crate) head: usize,
    pub(crate) visible: &'a Visible,
    pub(crate) states: &'a [f32],
    /// The score of no token; the least number if there is none.
    pub(crate) sink: f32,
    pub(crate) attended: &'a mut [f32],
}

/// Keys and values of a head of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) shape: LayerShape,
    pub(crate) pages: &'a [Page<'a>],
    pub(crate) window: Option<usize>,
    pub(crate) scale: f32,
    pub(crate) score_cap: Option<f32>,
    pub(crate) head: usize,
}

/// Queries of one sequence that share keys. Several of them are computed together, so that each key is loaded once.
pub(crate) struct Attend<'a, 'b, 'c> {
    pub(crate) keys: Keys<'a>,
    pub(crate) queries: &'b mut [Query<'c>],
    pub(crate) scores: &'b mut Vec<f32>,
}

impl Job for Attend<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        macro_rules! together {
            ($queries:ident: $($number:literal)*) => {
                match $queries.len() {
                    $($number => if let Some(queries) = $queries.first_chunk_mut::<$number>() {
                        attend(simd, self.keys, queries, self.scores);
                    },)*
                    _ => {}
                }
            };
        }
        // The sums of more queries do not fit in the registers.
        for queries in self.queries.chunks_mut(S::LANES / 4) {
            together!(queries: 1 2 3 4);
        }
    }
}

#[inline(always)]
fn attend<S: Simd, const N: usize>(
    simd: S,
    keys: Keys<'_>,
    queries: &mut [Query<'_>; N],
    scores: &mut Vec<f32>,
) {
    let size = keys.shape.value_size;
    let mut starts = [0; N];
    let mut last_slot = 0;
    for of in 0..N {
        let visible = queries[of].visible;
        let length = visible.length();
        starts[of] = length - keys.window.map_or(length, |window| window.min(length));
        last_slot = last_slot.max(visible.end());
    }
    let first_slot = starts.iter().min().map_or(0, |start| start / PAGE * PAGE);
    let number = last_slot.next_multiple_of(PAGE) - first_slot;
    scores.resize(scores.len().max(N * number), 0.0);
    for (place, page) in keys.pages[first_slot / PAGE..][..number / PAGE].iter().enumerate() {
        let page = &page.keys[keys.shape.keys(keys.head)];
        score_page(simd, keys, page, queries, &mut scores[place * PAGE..], number);
    }
    let mut inverses = [simd.splat(0.0); N];
    for of in 0..N {
        let visible = queries[of].visible;
        let weights = &mut scores[of * number..][..number];
        for (position, &slot) in (visible.num_straight..).zip(&visible.path) {
            // A window may begin pages after the straight part.
            if position >= first_slot {
                weights[position - first_slot] = weights[slot - first_slot];
            }
        }
        let range = starts[of] - first_slot..visible.length() - first_slot;
        inverses[of] = normalize(simd, weights, range, queries[of].sink);
    }
    // Positions that all queries see in the same slots.
    let from = starts.iter().copied().max().unwrap_or(0);
    let to = queries
        .iter()
        .map(|query| query.visible.num_straight)
        .min()
        .map_or(from, |to| to.max(from));
    for first in (0..size).step_by(4 * S::LANES) {
        let values = Values { keys, first, number: (size - first) / S::LANES, first_slot };
        let mut sums = [[simd.splat(0.0); 4]; N];
        let mut weights: [&[f32]; N] = [&[]; N];
        for of in 0..N {
            weights[of] = &scores[of * number..][..number];
            let range = starts[of]..from.min(queries[of].visible.num_straight);
            [sums[of]] = values.add(simd, range, [weights[of]], [sums[of]]);
        }
        sums = values.add(simd, from..to, weights, sums);
        for of in 0..N {
            let visible = queries[of].visible;
            [sums[of]] = values.add(simd, to..visible.num_straight, [weights[of]], [sums[of]]);
            for (position, &slot) in (visible.num_straight..).zip(&visible.path) {
                if position >= starts[of] {
                    let weight = weights[of][position - first_slot];
                    [sums[of]] = values.add_slot(simd, slot, [weight], [sums[of]]);
                }
            }
            for block in 0..4 {
                if block < values.number {
                    let to = &mut queries[of].attended[first + block * S::LANES..];
                    simd.store(simd.mul(sums[of][block], inverses[of]), to);
                }
            }
        }
    }
}

/// Writes the products of the queries and each key of a page; the scores of a query are `stride` after those before.
#[inline(always)]
fn score_page<S: Simd, const N: usize>(
    simd: S,
    of: Keys<'_>,
    keys: &[f32],
    queries: &[Query<'_>; N],
    scores: &mut [f32],
    stride: usize,
) {
    let size = keys.len() / PAGE;
    let mut states: [&[f32]; N] = [&[]; N];
    for of in 0..N {
        states[of] = &queries[of].states[..size];
    }
    // Four vectors of keys at a time.
    for (part, keys) in keys.chunks_exact(4 * S::LANES * size).enumerate() {
        let mut sums = [[simd.splat(0.0); 4]; N];
        for dimension in 0..size {
            let mut lanes = [simd.splat(0.0); 4];
            for block in 0..4 {
                lanes[block] = simd.load(&keys[(block * size + dimension) * S::LANES..]);
            }
            for of in 0..N {
                let state = simd.splat(states[of][dimension]);
                for block in 0..4 {
                    sums[of][block] = simd.fma(lanes[block], state, sums[of][block]);
                }
            }
        }
        let scale = simd.splat(of.scale);
        for query in 0..N {
            let scores = &mut scores[query * stride + part * 4 * S::LANES..][..4 * S::LANES];
            for block in 0..4 {
                let mut score = simd.mul(sums[query][block], scale);
                if let Some(cap) = of.score_cap {
                    score = simd
                        .mul(tanh(simd, simd.mul(score, simd.splat(1.0 / cap))), simd.splat(cap));
                }
                simd.store(score, &mut scores[block * S::LANES..]);
            }
        }
    }
}

/// Replaces the scores of a range by their powers of e, others by zero, and returns the inverse of the sum, which
/// includes that of the sink.
#[inline(always)]
fn normalize<S: Simd>(simd: S, scores: &mut [f32], range: Range<usize>, sink: f32) -> S::Floats {
    let padded = range.end.next_multiple_of(S::LANES);
    let scores = &mut scores[..padded];
    scores[..range.start].fill(f32::MIN);
    scores[range.end..].fill(f32::MIN);
    let mut most = simd.splat(sink);
    for lanes in scores.chunks_exact(S::LANES) {
        most = simd.max(simd.load(lanes), most);
    }
    let most = simd.splat(-simd.greatest(most));
    for lanes in scores.chunks_exact_mut(S::LANES) {
        simd.store(exp(simd, simd.add(simd.load(lanes), most)), lanes);
    }
    scores[..range.start].fill(0.0);
    scores[range.end..].fill(0.0);
    let mut total = simd.splat(0.0);
    for lanes in scores.chunks_exact(S::LANES) {
        total = simd.add(total, simd.load(lanes));
    }
    let total = simd.sum(total);
    let of_sink = exp(simd, simd.add(simd.splat(sink), most));
    simd.splat(1.0 / (total + simd.greatest(of_sink)))
}

/// Up to four vectors of the values of each slot.
#[derive(Clone, Copy)]
struct Values<'a> {
    keys: Keys<'a>,
    /// The place of the first number, and the number of vectors.
    first: usize,
    number: usize,
    /// The slot of the first weight.
    first_slot: usize,
}

impl Values<'_> {
    /// Adds the values of positions that are in the slots of the same number, by the weights of each query.
    #[inline(always)]
    fn add<S: Simd, const N: usize>(
        self,
        simd: S,
        range: Range<usize>,
        weights: [&[f32]; N],
        mut sums: [[S::Floats; 4]; N],
    ) -> [[S::Floats; 4]; N] {
        for slot in range {
            let mut of_slot = [0.0; N];
            for of in 0..N {
                of_slot[of] = weights[of][slot - self.first_slot];
            }
            sums = self.add_slot(simd, slot, of_slot, sums);
        }
        sums
    }

    #[inline(always)]
    fn add_slot<S: Simd, const N: usize>(
        self,
        simd: S,
        slot: usize,
        weights: [f32; N],
        mut sums: [[S::Floats; 4]; N],
    ) -> [[S::Floats; 4]; N] {
        let Keys { shape, pages, head, .. } = self.keys;
        let values = &pages[slot / PAGE].values[shape.values(head, slot)][self.first..];
        // Constant places, so that the sums stay in registers.
        for of in 0..N {
            let weight = simd.splat(weights[of]);
            for block in 0..4 {
                if block < self.number {
                    let values = simd.load(&values[block * S::LANES..]);
                    sums[of][block] = simd.fma(values, weight, sums[of][block]);
                }
            }
        }
        sums
    }
}

//! Attention of a token to those before it in its sequence and its tree.
//!
//! Scores are summed in the order of positions, wherever the tokens lie: a token of a tree computes what it
//! computes alone.

use super::cache::{PAGE, Page, Shape};
use crate::simd::{Job, Simd, exp};

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
}

/// Heads of a token that share keys.
pub(crate) struct Attend<'a> {
    pub(crate) shape: Shape,
    pub(crate) pages: &'a [Page],
    pub(crate) visible: &'a Visible,
    pub(crate) window: Option<usize>,
    pub(crate) scale: f32,
    pub(crate) head: usize,
    /// The queries of these heads, one after the other, and what they attend to.
    pub(crate) queries: &'a [f32],
    pub(crate) attended: &'a mut [f32],
    pub(crate) scores: &'a mut Vec<f32>,
}

impl Job for Attend<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shape, pages, visible, window, scale, head, queries, attended, scores } = self;
        let (size, page_size) = (shape.head_size, shape.page_size());
        let length = visible.length();
        let start = length - window.map_or(length, |window| window.min(length));
        let first_page = start / PAGE;
        let last_slot = visible.path.last().map_or(visible.num_straight, |slot| slot + 1);
        let num_scores = last_slot.next_multiple_of(PAGE) - first_page * PAGE;
        scores.resize(scores.len().max(num_scores), 0.0);
        let (masked, end) = (start - first_page * PAGE, length - first_page * PAGE);
        for (query, attended) in queries.chunks_exact(size).zip(attended.chunks_exact_mut(size)) {
            for (page, scores) in pages[first_page..].iter().zip(scores.chunks_exact_mut(PAGE)) {
                score_page(simd, &page.keys[head * page_size..][..page_size], query, scale, scores);
                if scores.len() < PAGE {
                    break;
                }
            }
            for (place, &slot) in visible.path.iter().enumerate() {
                scores[visible.num_straight - first_page * PAGE + place] =
                    scores[slot - first_page * PAGE];
            }
            let padded = end.next_multiple_of(S::LANES);
            let weights = &mut scores[..padded];
            weights[..masked].fill(f32::MIN);
            weights[end..].fill(f32::MIN);
            let mut most = simd.splat(f32::MIN);
            for lanes in weights.chunks_exact(S::LANES) {
                most = simd.max(simd.load(lanes), most);
            }
            let mut lanes = [f32::MIN; 16];
            simd.store(most, &mut lanes);
            let most = simd.splat(-lanes.iter().fold(f32::MIN, |most, &lane| most.max(lane)));
            for lanes in weights.chunks_exact_mut(S::LANES) {
                simd.store(exp(simd, simd.add(simd.load(lanes), most)), lanes);
            }
            weights[..masked].fill(0.0);
            weights[end..].fill(0.0);
            let mut total = simd.splat(0.0);
            for lanes in weights.chunks_exact(S::LANES) {
                total = simd.add(total, simd.load(lanes));
            }
            let inverse = simd.splat(1.0 / simd.sum(total));
            let straight = visible.num_straight.max(start);
            for (part, attended) in attended.chunks_mut(4 * S::LANES).enumerate() {
                let first = part * 4 * S::LANES;
                let number = attended.len() / S::LANES;
                let mut sums = [simd.splat(0.0); 4];
                let mut position = start;
                while position < straight {
                    let values =
                        &pages[position / PAGE].values[shape.values(head, position).start..];
                    let end = straight.min((position / PAGE + 1) * PAGE);
                    let weights = &weights[position - first_page * PAGE..end - first_page * PAGE];
                    for (weight, values) in weights.iter().zip(values.chunks_exact(size)) {
                        sums = add_values(simd, &values[first..], *weight, sums, number);
                    }
                    position = end;
                }
                for position in straight..length {
                    let slot = visible.path[position - visible.num_straight];
                    let values = &pages[slot / PAGE].values[shape.values(head, slot)];
                    let weight = weights[position - first_page * PAGE];
                    sums = add_values(simd, &values[first..], weight, sums, number);
                }
                for (sum, attended) in sums.iter().zip(attended.chunks_exact_mut(S::LANES)) {
                    simd.store(simd.mul(*sum, inverse), attended);
                }
            }
        }
    }
}

#[inline(always)]
fn add_values<S: Simd>(
    simd: S,
    values: &[f32],
    weight: f32,
    mut sums: [S::Floats; 4],
    number: usize,
) -> [S::Floats; 4] {
    let weight = simd.splat(weight);
    if number == 4 {
        let values = &values[..4 * S::LANES];
        for of in 0..4 {
            sums[of] = simd.fma(simd.load(&values[of * S::LANES..]), weight, sums[of]);
        }
    } else {
        for of in 0..number.min(4) {
            sums[of] = simd.fma(simd.load(&values[of * S::LANES..]), weight, sums[of]);
        }
    }
    sums
}

/// Writes the products of a query and each key of a page.
#[inline(always)]
fn score_page<S: Simd>(simd: S, keys: &[f32], query: &[f32], scale: f32, scores: &mut [f32]) {
    let num_blocks = PAGE / S::LANES;
    let block_size = query.len() * S::LANES;
    let mut sums = [simd.splat(0.0); PAGE / 8];
    for (dimension, &number) in query.iter().enumerate() {
        let number = simd.splat(number);
        for block in 0..num_blocks {
            let keys = simd.load(&keys[block * block_size + dimension * S::LANES..]);
            sums[block] = simd.fma(keys, number, sums[block]);
        }
    }
    let scale = simd.splat(scale);
    for (sum, scores) in sums.into_iter().zip(scores.chunks_exact_mut(S::LANES)) {
        simd.store(simd.mul(sum, scale), scores);
    }
}

//! Attention of a token to those before it in its sequence and its tree.
//!
//! Scores are summed in the order of positions, wherever the tokens lie: a token of a tree computes what it
//! computes alone.

#![allow(clippy::needless_range_loop)] // as in the products

use std::ops::Range;

use super::cache::{CacheType, LayerShape, PAGE, Page};
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

/// Queries that share keys while these are in a near cache.
const TOGETHER: usize = 64;

/// A query of a token, and the place of its output.
pub(crate) struct Query<'a> {
    pub(crate) row: usize,
    /// The head of its keys.
    pub(crate) head: usize,
    pub(crate) visible: &'a Visible,
    pub(crate) states: &'a [f32],
    /// The score of no token; the least number if there is none.
    pub(crate) sink: f32,
    /// The weighted sums of values of the blocks so far.
    pub(crate) attended: &'a mut [f32],
    pub(crate) so_far: SoFar,
}

/// The scores of the blocks so far.
pub(crate) struct SoFar {
    /// The greatest one, which weights are powers of e of the distance to.
    most: f32,
    /// The sums of the weights of each lane.
    totals: [f32; 16],
}

impl SoFar {
    /// No scores but that of the sink.
    pub(crate) fn new(sink: f32) -> Self {
        Self { most: sink, totals: [0.0; 16] }
    }
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

impl Keys<'_> {
    /// The first position that a token sees.
    #[inline(always)]
    fn start(&self, visible: &Visible) -> usize {
        let length = visible.length();
        length - self.window.map_or(length, |window| window.min(length))
    }
}

/// Queries of one sequence that share keys.
///
/// Positions are added up block by block, a page of them each: what all queries see of a page is read once.
pub(crate) struct Attend<'a, 'b, 'c> {
    pub(crate) keys: Keys<'a>,
    pub(crate) queries: &'b mut [Query<'c>],
    pub(crate) scores: &'b mut Vec<f32>,
}

impl Job for Attend<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { keys, queries, scores } = self;
        match keys.shape.kind {
            CacheType::Float32 => by_type::<S, false>(simd, keys, queries, scores),
            CacheType::Float16 => by_type::<S, true>(simd, keys, queries, scores),
        }
    }
}

#[inline(always)]
fn by_type<S: Simd, const IS_HALF: bool>(
    simd: S,
    keys: Keys<'_>,
    queries: &mut [Query<'_>],
    scores: &mut Vec<f32>,
) {
    for queries in queries.chunks_mut(TOGETHER) {
        let (mut first, mut shared, mut end) = (usize::MAX, usize::MAX, 0);
        for Query { visible, attended, .. } in queries.iter_mut() {
            attended.fill(0.0);
            first = first.min(keys.start(visible) / PAGE);
            shared = shared.min(visible.num_straight / PAGE);
            end = end.max(visible.end().div_ceil(PAGE));
        }
        // Pages whose slots are positions for all queries, one after the other, then the others at once.
        while first < end {
            let next = if first < shared { first + 1 } else { end };
            // The sums of more queries do not fit in the registers.
            for queries in queries.chunks_mut(S::LANES / 4) {
                macro_rules! together {
                    ($($number:literal)*) => {
                        match queries.len() {
                            $($number => if let Some(queries) = queries.first_chunk_mut() {
                                let pages = first..next;
                                attend::<S, IS_HALF, $number>(simd, keys, queries, scores, pages);
                            },)*
                            _ => {}
                        }
                    };
                }
                together!(1 2 3 4);
            }
            first = next;
        }
        for Query { attended, sink, so_far, .. } in queries {
            let of_sink = weight(simd, simd.splat(*sink - so_far.most));
            let total = simd.sum(simd.load(&so_far.totals)) + simd.greatest(of_sink);
            let inverse = simd.splat(1.0 / total);
            for lanes in attended.chunks_exact_mut(S::LANES) {
                simd.store(simd.mul(simd.load(lanes), inverse), lanes);
            }
        }
    }
}

/// Adds what the queries see in some pages.
#[inline(always)]
fn attend<S: Simd, const IS_HALF: bool, const N: usize>(
    simd: S,
    keys: Keys<'_>,
    queries: &mut [Query<'_>; N],
    scores: &mut Vec<f32>,
    pages: Range<usize>,
) {
    let (first_slot, number) = (pages.start * PAGE, pages.len() * PAGE);
    scores.resize(scores.len().max(N * number), 0.0);
    for (place, page) in keys.pages[pages].iter().enumerate() {
        let scores = &mut scores[place * PAGE..];
        score_page::<S, IS_HALF, N>(simd, keys, page.keys, queries, scores, number);
    }
    for of in 0..N {
        let visible = queries[of].visible;
        let scores = &mut scores[of * number..][..number];
        for (position, &slot) in (visible.num_straight..).zip(&visible.path) {
            // A window may begin pages after the straight part, and pages that are shared end before the path.
            if position >= first_slot && slot < first_slot + number {
                scores[position - first_slot] = scores[slot - first_slot];
            }
        }
    }
    for place in (0..number).step_by(PAGE) {
        let scores = &mut scores[place..];
        add_block::<S, IS_HALF, N>(simd, keys, queries, scores, number, first_slot + place);
    }
}

/// Adds the values of a block of positions, whose scores become weights.
#[inline(always)]
fn add_block<S: Simd, const IS_HALF: bool, const N: usize>(
    simd: S,
    keys: Keys<'_>,
    queries: &mut [Query<'_>; N],
    scores: &mut [f32],
    stride: usize,
    first_position: usize,
) {
    let size = keys.shape.value_size;
    let mut seen = [(first_position, first_position); N];
    let mut shrunk = [simd.splat(1.0); N];
    for of in 0..N {
        let visible = queries[of].visible;
        let start = keys.start(visible).max(first_position);
        let end = visible.length().min(first_position + PAGE);
        if start < end {
            seen[of] = (start, end);
            let range = start - first_position..end - first_position;
            let scores = &mut scores[of * stride..][..PAGE];
            shrunk[of] = weigh(simd, &mut queries[of].so_far, scores, range);
        }
    }
    let mut are_alike = true;
    for of in 0..N {
        are_alike &= seen[of] == seen[0] && seen[of].1 <= queries[of].visible.num_straight;
    }
    let mut first = 0;
    while first + S::LANES <= size {
        let values = Values::<IS_HALF> { keys, first };
        macro_rules! add {
            ($number:literal) => {{
                let mut sums = [[simd.splat(0.0); $number]; N];
                for of in 0..N {
                    sums[of] = load(simd, &queries[of].attended[first..], shrunk[of]);
                }
                if are_alike {
                    let (start, end) = seen[0];
                    let mut weights: [&[f32]; N] = [&[]; N];
                    for of in 0..N {
                        weights[of] =
                            &scores[of * stride + start - first_position..][..end - start];
                    }
                    sums = values.add(simd, start, weights, sums);
                } else {
                    for of in 0..N {
                        let Visible { num_straight, ref path } = *queries[of].visible;
                        let (mut position, end) = seen[of];
                        while position < end {
                            // A run of slots.
                            let (slot, number) = if position < num_straight {
                                (position, num_straight.min(end) - position)
                            } else {
                                (path[position - num_straight], 1)
                            };
                            let weights = &scores[of * stride + position - first_position..];
                            [sums[of]] = values.add(simd, slot, [&weights[..number]], [sums[of]]);
                            position += number;
                        }
                    }
                }
                for of in 0..N {
                    store(simd, sums[of], &mut queries[of].attended[first..]);
                }
                first += $number * S::LANES;
            }};
        }
        if size - first >= 4 * S::LANES {
            add!(4);
        } else {
            add!(1);
        }
    }
}

/// Loads sums of values, times a factor.
#[inline(always)]
fn load<S: Simd, const B: usize>(simd: S, sums: &[f32], by: S::Floats) -> [S::Floats; B] {
    let mut loaded = [by; B];
    for block in 0..B {
        loaded[block] = simd.mul(simd.load(&sums[block * S::LANES..]), by);
    }
    loaded
}

#[inline(always)]
fn store<S: Simd, const B: usize>(simd: S, sums: [S::Floats; B], to: &mut [f32]) {
    for block in 0..B {
        simd.store(sums[block], &mut to[block * S::LANES..]);
    }
}

/// Numbers of the cache.
#[inline(always)]
fn numbers<S: Simd, const IS_HALF: bool>(simd: S, bytes: &[u8], place: usize) -> S::Floats {
    if IS_HALF {
        simd.halves(&bytes[2 * place..])
    } else {
        simd.bits(simd.words(&bytes[4 * place..]))
    }
}

/// Writes the products of the queries and each key of a page; the scores of a query are `stride` after those before.
#[inline(always)]
fn score_page<S: Simd, const IS_HALF: bool, const N: usize>(
    simd: S,
    of: Keys<'_>,
    keys: &[u8],
    queries: &[Query<'_>; N],
    scores: &mut [f32],
    stride: usize,
) {
    let places = of.shape.keys(of.head);
    let size = places.len() / PAGE;
    let mut states: [&[f32]; N] = [&[]; N];
    for of in 0..N {
        states[of] = &queries[of].states[..size];
    }
    // Four vectors of keys at a time.
    for (part, start) in places.step_by(4 * S::LANES * size).enumerate() {
        let mut sums = [[simd.splat(0.0); 4]; N];
        for dimension in 0..size {
            let mut lanes = [simd.splat(0.0); 4];
            for block in 0..4 {
                let place = start + (block * size + dimension) * S::LANES;
                lanes[block] = numbers::<S, IS_HALF>(simd, keys, place);
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

/// The power of e of each lane, zero below -80: such a weight changes no sum.
#[inline(always)]
fn weight<S: Simd>(simd: S, value: S::Floats) -> S::Floats {
    simd.where_at_least(exp(simd, value), value, -80.0)
}

/// Replaces the scores of a range of a block by their weights, others by zero, and returns what the sums so far are
/// to be multiplied by.
#[inline(always)]
fn weigh<S: Simd>(
    simd: S,
    so_far: &mut SoFar,
    scores: &mut [f32],
    range: Range<usize>,
) -> S::Floats {
    scores[..range.start].fill(f32::MIN);
    scores[range.end..].fill(f32::MIN);
    let mut most = simd.splat(so_far.most);
    for lanes in scores.chunks_exact(S::LANES) {
        most = simd.max(simd.load(lanes), most);
    }
    let before = std::mem::replace(&mut so_far.most, simd.greatest(most));
    let most = simd.splat(-so_far.most);
    let shrunk = weight(simd, simd.add(simd.splat(before), most));
    let mut totals = simd.mul(simd.load(&so_far.totals), shrunk);
    for lanes in scores.chunks_exact_mut(S::LANES) {
        let weights = weight(simd, simd.add(simd.load(lanes), most));
        simd.store(weights, lanes);
        totals = simd.add(totals, weights);
    }
    simd.store(totals, &mut so_far.totals);
    shrunk
}

/// Some vectors of the values of each slot.
#[derive(Clone, Copy)]
struct Values<'a, const IS_HALF: bool> {
    keys: Keys<'a>,
    /// The place of the first number.
    first: usize,
}

impl<const IS_HALF: bool> Values<'_, IS_HALF> {
    /// Adds the values of as many slots of a page as there are weights of each query.
    #[inline(always)]
    fn add<S: Simd, const N: usize, const B: usize>(
        self,
        simd: S,
        slot: usize,
        mut weights: [&[f32]; N],
        mut sums: [[S::Floats; B]; N],
    ) -> [[S::Floats; B]; N] {
        let Keys { shape, pages, head, .. } = self.keys;
        let number = weights[0].len();
        for of in 0..N {
            weights[of] = &weights[of][..number];
        }
        let start = shape.values(head, slot).start + self.first;
        for row in 0..number {
            let place = start + row * shape.value_size;
            let mut values = [simd.splat(0.0); B];
            for block in 0..B {
                let place = place + block * S::LANES;
                values[block] = numbers::<S, IS_HALF>(simd, pages[slot / PAGE].values, place);
            }
            for of in 0..N {
                let weight = simd.splat(weights[of][row]);
                for block in 0..B {
                    sums[of][block] = simd.fma(values[block], weight, sums[of][block]);
                }
            }
        }
        sums
    }
}

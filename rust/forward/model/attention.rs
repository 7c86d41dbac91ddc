//! Attention of a token to those before it in its sequence and its tree.
//!
//! A softmax is computed page by page: what was summed of earlier pages is corrected where a later one has a greater
//! score (online softmax). Loops, from outside to inside:
//!
//! 1. Blocks of [`MAX_QUERIES`] queries of one head of keys: their states and sums stay in the near caches.
//! 2. Pages of [`PAGE_SLOTS`] slots, in the order of positions: a page is read once for all queries of a block.
//! 3. Tiles of up to 4 queries and four vectors of keys, which take 16 registers for sums and 4 for keys of 32 (AVX-512).
//!    Where vectors have 8 lanes, up to 6 queries and two vectors take 12 and 2 of 16: a key is converted from float16
//!    in as much time as two products take.
//! 4. Dimensions of keys, and then slots of values.
//!
//! Scores are summed in the order of positions, wherever the tokens lie: a token of a tree computes what it
//! computes alone.

#![warn(clippy::missing_docs_in_private_items)]
#![allow(clippy::needless_range_loop)] // as in the products

use std::ops::Range;

use super::cache::{CacheType, LayerShape, PAGE_SLOTS, Page};
use crate::simd::vector::{Job, Simd, exp, tanh};

/// The tokens that a token sees, itself included.
#[derive(Debug, Clone, Default)]
pub(crate) struct Visible {
    /// The number of first positions, each in the slot of the same number.
    pub(crate) num_contiguous: usize,
    /// The slots of the positions after them.
    pub(crate) path: Vec<usize>,
}

impl Visible {
    /// The number of tokens.
    pub(crate) fn length(&self) -> usize {
        self.num_contiguous + self.path.len()
    }

    /// The end of the slots.
    pub(crate) fn end(&self) -> usize {
        self.path.last().map_or(self.num_contiguous, |slot| slot + 1)
    }
}

/// The queries that share a page of keys while it is in a near cache.
const MAX_QUERIES: usize = 64;

/// A query of a token, and the place of its output.
pub(crate) struct Query<'a> {
    /// The index of its sequence in the cache.
    pub(crate) row: usize,
    /// The index of the head of its keys.
    pub(crate) head: usize,
    /// The tokens that it attends to.
    pub(crate) visible: &'a Visible,
    /// The query, `(head_size,)`.
    pub(crate) states: &'a [f32],
    /// The score of no token; the least number if there is none.
    pub(crate) sink: f32,
    /// The weighted sums of values of the pages so far, `(value_size,)`.
    pub(crate) attended: &'a mut [f32],
    /// The scores of the pages so far.
    pub(crate) softmax: SoftmaxState,
}

/// The scores of the pages so far.
pub(crate) struct SoftmaxState {
    /// The greatest score: a weight is the power of e of a score minus this.
    max: f32,
    /// The sums of the weights of each lane; the first `S::LANES` count.
    sums_of_weights: [f32; 16],
}

impl SoftmaxState {
    /// No scores but that of the sink.
    pub(crate) fn new(sink: f32) -> Self {
        Self { max: sink, sums_of_weights: [0.0; 16] }
    }
}

/// Keys and values of a head of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// The layout of a page.
    pub(crate) shape: LayerShape,
    /// The pages of the sequence, in the order of slots.
    pub(crate) pages: &'a [Page<'a>],
    /// The number of tokens that a token sees, itself included; `None` for all.
    pub(crate) window: Option<usize>,
    /// The factor of the products of queries and keys.
    pub(crate) scale: f32,
    /// The bound that scores approach; `None` for none.
    pub(crate) score_cap: Option<f32>,
    /// The index of the head of keys.
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
/// Positions are added up page by page: what all queries see of a page is read once.
pub(crate) struct Attend<'a, 'b, 'c> {
    /// The keys and values of the sequence.
    pub(crate) keys: Keys<'a>,
    /// The queries of its tokens.
    pub(crate) queries: &'b mut [Query<'c>],
    /// A buffer for the scores of some queries and pages.
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

/// Attends by the type of keys and values.
#[inline(always)]
fn by_type<S: Simd, const IS_HALF: bool>(
    simd: S,
    keys: Keys<'_>,
    queries: &mut [Query<'_>],
    scores: &mut Vec<f32>,
) {
    for queries in queries.chunks_mut(MAX_QUERIES) {
        let (mut first, mut shared, mut end) = (usize::MAX, usize::MAX, 0);
        for Query { visible, attended, .. } in queries.iter_mut() {
            attended.fill(0.0);
            first = first.min(keys.start(visible) / PAGE_SLOTS);
            shared = shared.min(visible.num_contiguous / PAGE_SLOTS);
            end = end.max(visible.end().div_ceil(PAGE_SLOTS));
        }
        // Pages whose slots are positions for all queries, one after the other, then the others at once.
        while first < end {
            let next = if first < shared { first + 1 } else { end };
            let mut rest = &mut *queries;
            while !rest.is_empty() {
                // As many as the registers have sums for.
                let is_wide = S::LANES == 16;
                let number = match rest.len() {
                    6.. if !is_wide => 6,
                    4.. => 4,
                    3 if is_wide => 3,
                    2.. => 2,
                    _ => 1,
                };
                let (tile, others) = std::mem::take(&mut rest).split_at_mut(number);
                rest = others;
                macro_rules! attend {
                    ($number:literal, $vectors:literal) => {
                        if let Some(queries) = tile.first_chunk_mut() {
                            let pages = first..next;
                            attend::<S, IS_HALF, $number, $vectors>(
                                simd, keys, queries, scores, pages,
                            );
                        }
                    };
                }
                match number {
                    6 => attend!(6, 2),
                    4 if is_wide => attend!(4, 4),
                    4 => attend!(4, 2),
                    3 => attend!(3, 4),
                    2 => attend!(2, 4),
                    _ => attend!(1, 4),
                }
            }
            first = next;
        }
        for Query { attended, sink, softmax, .. } in queries {
            let of_sink = exp_weight(simd, simd.splat(*sink - softmax.max));
            let total = simd.sum(simd.load(&softmax.sums_of_weights)) + simd.greatest(of_sink);
            let inverse = simd.splat(1.0 / total);
            for lanes in attended.chunks_exact_mut(S::LANES) {
                simd.store(simd.mul(simd.load(lanes), inverse), lanes);
            }
        }
    }
}

/// Adds what the queries see in some pages, by `B` vectors of keys and of values at a time.
#[inline(always)]
fn attend<S: Simd, const IS_HALF: bool, const N: usize, const B: usize>(
    simd: S,
    keys: Keys<'_>,
    queries: &mut [Query<'_>; N],
    scores: &mut Vec<f32>,
    pages: Range<usize>,
) {
    let (first_slot, number) = (pages.start * PAGE_SLOTS, pages.len() * PAGE_SLOTS);
    // `(N, number)` scores, of slots and then of positions.
    scores.resize(scores.len().max(N * number), 0.0);
    for (place, page) in keys.pages[pages].iter().enumerate() {
        let scores = &mut scores[place * PAGE_SLOTS..];
        score_page::<S, IS_HALF, N, B>(simd, keys, page.keys, queries, scores, number);
    }
    for query in 0..N {
        let visible = queries[query].visible;
        let scores = &mut scores[query * number..][..number];
        for (position, &slot) in (visible.num_contiguous..).zip(&visible.path) {
            // A window may begin pages after the straight part, and pages that are shared end before the path.
            if position >= first_slot && slot < first_slot + number {
                scores[position - first_slot] = scores[slot - first_slot];
            }
        }
    }
    for place in (0..number).step_by(PAGE_SLOTS) {
        let scores = &mut scores[place..];
        add_block::<S, IS_HALF, N, B>(simd, keys, queries, scores, number, first_slot + place);
    }
}

/// Adds the values of a page of positions, whose scores become weights.
#[inline(always)]
fn add_block<S: Simd, const IS_HALF: bool, const N: usize, const B: usize>(
    simd: S,
    keys: Keys<'_>,
    queries: &mut [Query<'_>; N],
    scores: &mut [f32],
    stride: usize,
    first_position: usize,
) {
    let size = keys.shape.value_size;
    let mut ranges = [(first_position, first_position); N];
    // The factors of the sums of earlier pages.
    let mut corrections = [simd.splat(1.0); N];
    for query in 0..N {
        let visible = queries[query].visible;
        let start = keys.start(visible).max(first_position);
        let end = visible.length().min(first_position + PAGE_SLOTS);
        if start < end {
            ranges[query] = (start, end);
            let range = start - first_position..end - first_position;
            let scores = &mut scores[query * stride..][..PAGE_SLOTS];
            corrections[query] = update_softmax(simd, &mut queries[query].softmax, scores, range);
        }
    }
    // The positions that all of them see, each in the slot of the same number.
    let (mut from, mut to) = (0, usize::MAX);
    for query in 0..N {
        from = from.max(ranges[query].0);
        to = to.min(ranges[query].1).min(queries[query].visible.num_contiguous);
    }
    if from >= to {
        (from, to) = (usize::MAX, usize::MAX);
    }
    let mut first = 0;
    while first + S::LANES <= size {
        let values = Values::<IS_HALF> { keys, first };
        macro_rules! add {
            ($number:expr) => {{
                let mut sums = [[simd.splat(0.0); $number]; N];
                for query in 0..N {
                    sums[query] = load(simd, &queries[query].attended[first..], corrections[query]);
                }
                // Each query adds what it sees before and after them by itself, in the order of positions.
                for is_before in [true, false] {
                    for query in 0..N {
                        let Visible { num_contiguous, ref path } = *queries[query].visible;
                        let (start, end) = ranges[query];
                        let (mut position, end) =
                            if is_before { (start, end.min(from)) } else { (start.max(to), end) };
                        while position < end {
                            // A run of slots.
                            let (slot, number) = if position < num_contiguous {
                                (position, num_contiguous.min(end) - position)
                            } else {
                                (path[position - num_contiguous], 1)
                            };
                            let weights = &scores[query * stride + position - first_position..];
                            [sums[query]] =
                                values.add(simd, slot, [&weights[..number]], [sums[query]]);
                            position += number;
                        }
                    }
                    if is_before && from < to {
                        let mut weights: [&[f32]; N] = [&[]; N];
                        for query in 0..N {
                            weights[query] =
                                &scores[query * stride + from - first_position..][..to - from];
                        }
                        sums = values.add(simd, from, weights, sums);
                    }
                }
                for query in 0..N {
                    store(simd, sums[query], &mut queries[query].attended[first..]);
                }
                first += $number * S::LANES;
            }};
        }
        if size - first >= B * S::LANES {
            add!(B);
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

/// Stores sums of values.
#[inline(always)]
fn store<S: Simd, const B: usize>(simd: S, sums: [S::Floats; B], to: &mut [f32]) {
    for block in 0..B {
        simd.store(sums[block], &mut to[block * S::LANES..]);
    }
}

/// Reads a vector of elements of the cache, from the index of the first one.
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
fn score_page<S: Simd, const IS_HALF: bool, const N: usize, const B: usize>(
    simd: S,
    keys: Keys<'_>,
    page: &[u8],
    queries: &[Query<'_>; N],
    scores: &mut [f32],
    stride: usize,
) {
    let places = keys.shape.keys(keys.head);
    let size = places.len() / PAGE_SLOTS;
    let mut states: [&[f32]; N] = [&[]; N];
    for query in 0..N {
        states[query] = &queries[query].states[..size];
    }
    // `B` vectors of keys at a time.
    for (part, start) in places.step_by(B * S::LANES * size).enumerate() {
        let mut sums = [[simd.splat(0.0); B]; N];
        for dimension in 0..size {
            let mut lanes = [simd.splat(0.0); B];
            for block in 0..B {
                let place = start + (block * size + dimension) * S::LANES;
                lanes[block] = numbers::<S, IS_HALF>(simd, page, place);
            }
            for query in 0..N {
                let state = simd.splat(states[query][dimension]);
                for block in 0..B {
                    sums[query][block] = simd.fma(lanes[block], state, sums[query][block]);
                }
            }
        }
        let scale = simd.splat(keys.scale);
        for query in 0..N {
            let scores = &mut scores[query * stride + part * B * S::LANES..][..B * S::LANES];
            for block in 0..B {
                let mut score = simd.mul(sums[query][block], scale);
                if let Some(cap) = keys.score_cap {
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
fn exp_weight<S: Simd>(simd: S, value: S::Floats) -> S::Floats {
    simd.where_at_least(exp(simd, value), value, -80.0)
}

/// Replaces the scores of a range of a page by their weights, others by zero, and returns the factor of the sums so
/// far.
#[inline(always)]
fn update_softmax<S: Simd>(
    simd: S,
    softmax: &mut SoftmaxState,
    scores: &mut [f32],
    range: Range<usize>,
) -> S::Floats {
    scores[..range.start].fill(f32::MIN);
    scores[range.end..].fill(f32::MIN);
    let mut max = simd.splat(softmax.max);
    for lanes in scores.chunks_exact(S::LANES) {
        max = simd.max(simd.load(lanes), max);
    }
    let before = std::mem::replace(&mut softmax.max, simd.greatest(max));
    let max = simd.splat(-softmax.max);
    let corrections = exp_weight(simd, simd.add(simd.splat(before), max));
    let mut sums_of_weights = simd.mul(simd.load(&softmax.sums_of_weights), corrections);
    for lanes in scores.chunks_exact_mut(S::LANES) {
        let weights = exp_weight(simd, simd.add(simd.load(lanes), max));
        simd.store(weights, lanes);
        sums_of_weights = simd.add(sums_of_weights, weights);
    }
    simd.store(sums_of_weights, &mut softmax.sums_of_weights);
    corrections
}

/// Some vectors of the values of each slot.
#[derive(Clone, Copy)]
struct Values<'a, const IS_HALF: bool> {
    /// The keys and values of the sequence.
    keys: Keys<'a>,
    /// The index of the first element of a value.
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
        for query in 0..N {
            weights[query] = &weights[query][..number];
        }
        let start = shape.values(head, slot).start + self.first;
        for row in 0..number {
            let place = start + row * shape.value_size;
            let mut values = [simd.splat(0.0); B];
            for block in 0..B {
                let place = place + block * S::LANES;
                values[block] = numbers::<S, IS_HALF>(simd, pages[slot / PAGE_SLOTS].values, place);
            }
            for query in 0..N {
                let weight = simd.splat(weights[query][row]);
                for block in 0..B {
                    sums[query][block] = simd.fma(values[block], weight, sums[query][block]);
                }
            }
        }
        sums
    }
}

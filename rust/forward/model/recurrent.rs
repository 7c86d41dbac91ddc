//! States of recurrent layers: the last inputs of a convolution, and the memory of a gated delta net.
//!
//! A pass writes to states of its own, so that the committed ones stay as they are. Where all of its tokens are
//! committed, the two are exchanged; where only the first ones are, their steps are computed again from what the
//! pass recorded, without weights and to the same bit.

#![allow(clippy::needless_range_loop)] // as in the products

use std::mem::swap;

use crate::parallel;
use crate::simd::instructions::Instructions;
use crate::simd::vector::{Job, Simd};

/// The most tokens of a row whose steps a pass records: one over more is committed as a whole.
pub(crate) const MAX_RECORDED_TOKENS: usize = 128;
/// The least numbers of a memory, times tokens, of a thread: fewer take less time than a thread needs to begin.
const MIN_THREAD_WORK: usize = 1 << 15;

/// The states of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecurrentShape {
    /// Channels of the convolution; with a memory, those of queries, keys and values.
    pub(crate) num_channels: usize,
    /// Inputs that an output depends on, the token's own one included.
    pub(crate) kernel_size: usize,
    /// The memory of a gated delta net; `None` for a convolution alone.
    pub(crate) memory: Option<MemoryShape>,
}

/// The heads of a gated delta net, each with a matrix of `head_size` keys by `head_size` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryShape {
    /// The number of heads of values.
    pub(crate) num_heads: usize,
    /// The number of heads of queries and keys, each of which several heads of values share.
    pub(crate) num_key_heads: usize,
    /// The size of queries, keys and values.
    pub(crate) head_size: usize,
    /// Heads take the key heads in turn; otherwise, neighbors share one.
    pub(crate) is_tiled: bool,
}

/// The states of a layer after some tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecurrentSnapshot {
    /// The last inputs of the convolution, `(kernel_size - 1, num_channels)`, the last one at the end.
    inputs: Vec<f32>,
    /// The memory, `(num_heads, head_size, head_size)`: for each head, a row for each dimension of keys.
    memory: Vec<f32>,
}

/// The states of a layer of a row.
#[derive(Debug, Clone)]
pub(crate) struct RecurrentLayer {
    /// The sizes of the states.
    shape: RecurrentShape,
    /// After the last committed token.
    committed: RecurrentSnapshot,
    /// After the last token of the last pass.
    pending: RecurrentSnapshot,
    /// The inputs of the convolution of the last pass, `(num_tokens, num_channels)`.
    inputs: Vec<f32>,
    /// The [step](RecurrentLayer::remember) of each token of the last pass, `(num_tokens, step_size)`.
    steps: Vec<f32>,
}

/// The place of a part of a pass in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassPart {
    /// True if it continues from the committed states, and not from the part before.
    pub(crate) is_first: bool,
    /// True if its steps are recorded, so that a part of its tokens can be committed.
    pub(crate) is_recorded: bool,
}

impl MemoryShape {
    /// The numbers of queries, keys and values of a token.
    pub(crate) fn num_channels(self) -> usize {
        (2 * self.num_key_heads + self.num_heads) * self.head_size
    }

    /// The numbers of a step: queries, keys and values, then the decay and the rate of each head.
    pub(crate) fn step_size(self) -> usize {
        self.num_channels() + 2 * self.num_heads
    }

    /// The index of the head of queries and keys of a head of values.
    fn key_head(self, head: usize) -> usize {
        if self.is_tiled {
            head % self.num_key_heads
        } else {
            head / (self.num_heads / self.num_key_heads)
        }
    }
}

impl RecurrentShape {
    /// The numbers of inputs and of the memory of a snapshot.
    fn sizes(self) -> [usize; 2] {
        let memory =
            self.memory.map_or(0, |memory| memory.num_heads * memory.head_size * memory.head_size);
        [(self.kernel_size - 1) * self.num_channels, memory]
    }

    /// The states before the first token.
    fn zeros(self) -> RecurrentSnapshot {
        let [inputs, memory] = self.sizes().map(|size| vec![0.0; size]);
        RecurrentSnapshot { inputs, memory }
    }

    /// The bytes of a layer of a row: the states before and after a pass, those at a mark, and what a pass records.
    pub(crate) fn most_bytes(self) -> usize {
        let states: usize = self.sizes().iter().sum();
        let of_token = self.num_channels + self.memory.map_or(0, MemoryShape::step_size);
        (3 * states + MAX_RECORDED_TOKENS * of_token) * size_of::<f32>()
    }
}

impl RecurrentLayer {
    /// Begins without tokens.
    pub(crate) fn new(shape: RecurrentShape) -> Self {
        let (committed, pending) = (shape.zeros(), shape.zeros());
        Self { shape, committed, pending, inputs: Vec::new(), steps: Vec::new() }
    }

    /// Writes the sums of the last inputs of each channel, weighed by `taps`, `(kernel_size, num_channels)`.
    pub(crate) fn convolve(
        &mut self,
        isa: Instructions,
        part: PassPart,
        taps: &[f32],
        inputs: &[f32],
        outputs: &mut Vec<f32>,
    ) {
        let before = if part.is_first { &self.committed } else { &self.pending };
        let window = [before.inputs.as_slice(), inputs].concat();
        outputs.resize(inputs.len(), 0.0);
        isa.run(Convolve { size: self.shape.num_channels, taps, window: &window, outputs });
        let kept = self.pending.inputs.len();
        self.pending.inputs.copy_from_slice(&window[window.len() - kept..]);
        record(&mut self.inputs, part, inputs);
    }

    /// Reads and changes the memory token by token; `outputs` are `(num_heads, num_tokens, head_size)`.
    ///
    /// For each head, a step multiplies the memory by a decay, corrects what it has for the key by a part of the
    /// difference to the value, the rate, and reads the query.
    pub(crate) fn remember(
        &mut self,
        isa: Instructions,
        part: PassPart,
        steps: &[f32],
        num_threads: usize,
        outputs: &mut Vec<f32>,
    ) {
        let Some(shape) = self.shape.memory else {
            return;
        };
        if part.is_first {
            self.pending.memory.copy_from_slice(&self.committed.memory);
        }
        let num_tokens = steps.len() / shape.step_size();
        outputs.resize(num_tokens * shape.num_heads * shape.head_size, 0.0);
        let work = self.pending.memory.len() * num_tokens;
        let number = num_threads.min(work / MIN_THREAD_WORK).max(1);
        let heads = shape.num_heads.div_ceil(number);
        let memory = self.pending.memory.chunks_mut(heads * shape.head_size * shape.head_size);
        let outputs = outputs.chunks_mut((heads * num_tokens * shape.head_size).max(1));
        let shares = (0..shape.num_heads).step_by(heads).zip(memory.zip(outputs)).collect();
        parallel::each(shares, |(first, (memory, outputs))| {
            isa.run(Remember { shape, first, steps, memory, outputs });
        });
        record(&mut self.steps, part, steps);
    }

    /// Keeps the states after the first tokens of the last pass, of which there were `num_pending`.
    pub(crate) fn commit(&mut self, isa: Instructions, number: usize, num_pending: usize) {
        if number == 0 {
            return;
        }
        if number < num_pending {
            let part = PassPart { is_first: true, is_recorded: false };
            let kept = self.pending.inputs.len();
            let inputs = &self.inputs[..number * self.shape.num_channels];
            let window = [self.committed.inputs.as_slice(), inputs].concat();
            self.pending.inputs.copy_from_slice(&window[window.len() - kept..]);
            let steps = std::mem::take(&mut self.steps);
            let size = self.shape.memory.map_or(0, MemoryShape::step_size);
            self.remember(isa, part, &steps[..number * size], 1, &mut Vec::new());
        }
        swap(&mut self.committed, &mut self.pending);
    }

    /// Returns a copy of the committed states.
    pub(crate) fn committed(&self) -> RecurrentSnapshot {
        self.committed.clone()
    }

    /// Continues from other states, those before the first token where there are none.
    pub(crate) fn restore(&mut self, states: Option<&RecurrentSnapshot>) {
        self.committed = states.cloned().unwrap_or_else(|| self.shape.zeros());
    }
}

/// Adds inputs or steps of a part to those of the pass.
fn record(all: &mut Vec<f32>, part: PassPart, more: &[f32]) {
    if part.is_first {
        all.clear();
    }
    if part.is_recorded {
        all.extend_from_slice(more);
    }
}

/// The sums of the last inputs of each channel. Loops run over tokens, vectors of channels, and inputs.
struct Convolve<'a> {
    /// The number of channels.
    size: usize,
    /// The weights of inputs, `(kernel_size, num_channels)`.
    taps: &'a [f32],
    /// The inputs before the first token, and those of all tokens, `(kernel_size - 1 + num_tokens, num_channels)`.
    window: &'a [f32],
    /// The sums, `(num_tokens, num_channels)`.
    outputs: &'a mut [f32],
}

impl Job for Convolve<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { size, taps, window, outputs } = self;
        for (token, outputs) in outputs.chunks_exact_mut(size).enumerate() {
            let window = &window[token * size..];
            for first in (0..size).step_by(S::LANES) {
                let mut sum = simd.splat(0.0);
                for (place, taps) in taps.chunks_exact(size).enumerate() {
                    let inputs = simd.load(&window[place * size + first..]);
                    sum = simd.fma(inputs, simd.load(&taps[first..]), sum);
                }
                simd.store(sum, &mut outputs[first..]);
            }
        }
    }
}

/// The steps of some heads. Loops run over heads, tokens, vectors of dimensions of values, and twice over those of
/// keys: a matrix of a head stays in the near caches for all tokens.
struct Remember<'a> {
    /// The sizes of the memory.
    shape: MemoryShape,
    /// The index of the first head.
    first: usize,
    /// The steps of all tokens, `(num_tokens, step_size)`.
    steps: &'a [f32],
    /// The memory of these heads, `(num_heads, head_size, head_size)`.
    memory: &'a mut [f32],
    /// The inputs of the heads, `(num_heads, num_tokens, head_size)`.
    outputs: &'a mut [f32],
}

impl Job for Remember<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shape, first, steps, memory, outputs } = self;
        let MemoryShape { num_heads, num_key_heads, head_size: size, .. } = shape;
        let num_tokens = steps.len() / shape.step_size();
        let of_heads = memory.chunks_exact_mut(size * size);
        for (place, memory) in of_heads.enumerate() {
            let head = first + place;
            for token in 0..num_tokens {
                let step = &steps[token * shape.step_size()..][..shape.step_size()];
                let (mixed, gates) = step.split_at(shape.num_channels());
                let of_key = shape.key_head(head) * size;
                let queries = &mixed[of_key..][..size];
                let keys = &mixed[num_key_heads * size + of_key..][..size];
                let values = &mixed[(2 * num_key_heads + head) * size..][..size];
                let (decay, rate) = (simd.splat(gates[head]), simd.splat(gates[num_heads + head]));
                let outputs = &mut outputs[(place * num_tokens + token) * size..][..size];
                for first in (0..size).step_by(S::LANES) {
                    let mut known = simd.splat(0.0);
                    for key in 0..size {
                        let of_key = simd.load(&memory[key * size + first..]);
                        known = simd.fma(of_key, simd.splat(keys[key]), known);
                    }
                    let known = simd.mul(simd.mul(known, decay), simd.splat(-1.0));
                    let change = simd.mul(simd.add(simd.load(&values[first..]), known), rate);
                    let mut output = simd.splat(0.0);
                    for key in 0..size {
                        let of_key = &mut memory[key * size + first..];
                        let kept = simd.mul(simd.load(of_key), decay);
                        let now = simd.fma(change, simd.splat(keys[key]), kept);
                        simd.store(now, of_key);
                        output = simd.fma(now, simd.splat(queries[key]), output);
                    }
                    simd.store(output, &mut outputs[first..]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Random numbers between -1 and 1, the same in each run.
    fn numbers(seed: u32, number: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..number).map(|_| next()).collect()
    }

    /// Steps of random tokens, with decays and rates between 0 and 1, and keys whose square is at most 1.
    fn steps(shape: MemoryShape, seed: u32, number: usize) -> Vec<f32> {
        let mut steps = numbers(seed, number * shape.step_size());
        for step in steps.chunks_exact_mut(shape.step_size()) {
            let (mixed, gates) = step.split_at_mut(shape.num_channels());
            for number in mixed {
                *number /= (shape.head_size as f32).sqrt();
            }
            for gate in gates {
                *gate = gate.abs();
            }
        }
        steps
    }

    /// The definition, head by head in float64: outputs `(num_heads, num_tokens, head_size)`.
    fn expected(shape: MemoryShape, steps: &[f32]) -> Vec<f64> {
        let MemoryShape { num_heads, num_key_heads, head_size: size, is_tiled } = shape;
        let mut outputs = Vec::new();
        for head in 0..num_heads {
            let of_key =
                if is_tiled { head % num_key_heads } else { head * num_key_heads / num_heads };
            let mut memory = vec![vec![0.0; size]; size];
            for step in steps.chunks_exact(shape.step_size()) {
                let at = |start: usize, place: usize| f64::from(step[start + place]);
                let query = |place| at(of_key * size, place);
                let key = |place| at((num_key_heads + of_key) * size, place);
                let value = |place| at((2 * num_key_heads + head) * size, place);
                let decay = at(shape.num_channels(), head);
                let rate = at(shape.num_channels() + num_heads, head);
                for column in 0..size {
                    (0..size).for_each(|row| memory[row][column] *= decay);
                    let known: f64 = (0..size).map(|row| memory[row][column] * key(row)).sum();
                    let change = (value(column) - known) * rate;
                    (0..size).for_each(|row| memory[row][column] += key(row) * change);
                    outputs.push((0..size).map(|row| memory[row][column] * query(row)).sum());
                }
            }
        }
        outputs
    }

    const SHAPE: MemoryShape =
        MemoryShape { num_heads: 6, num_key_heads: 3, head_size: 32, is_tiled: false };

    fn layer(memory: MemoryShape) -> RecurrentLayer {
        let num_channels = memory.num_channels();
        RecurrentLayer::new(RecurrentShape { num_channels, kernel_size: 4, memory: Some(memory) })
    }

    const WHOLE: PassPart = PassPart { is_first: true, is_recorded: true };

    #[test]
    fn a_memory_is_that_of_the_definition() {
        for is_tiled in [false, true] {
            let shape = MemoryShape { is_tiled, ..SHAPE };
            let steps = steps(shape, 3, 9);
            let expected = expected(shape, &steps);
            for isa in Instructions::available() {
                for num_threads in [1, 3] {
                    let mut outputs = Vec::new();
                    layer(shape).remember(isa, WHOLE, &steps, num_threads, &mut outputs);
                    for (output, expected) in outputs.iter().zip(&expected) {
                        assert!((f64::from(*output) - expected).abs() < 1e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn a_convolution_is_the_sum_of_the_last_inputs() {
        let shape = RecurrentShape { num_channels: 32, kernel_size: 3, memory: None };
        let (taps, inputs) = (numbers(1, 3 * 32), numbers(2, 7 * 32));
        for isa in Instructions::available() {
            let mut outputs = Vec::new();
            RecurrentLayer::new(shape).convolve(isa, WHOLE, &taps, &inputs, &mut outputs);
            for (place, output) in outputs.iter().enumerate() {
                let (token, channel) = (place / 32, place % 32);
                let of = |back: usize| {
                    inputs[(token - back) * 32 + channel] * taps[(2 - back) * 32 + channel]
                };
                let expected: f32 = (0..=token.min(2)).map(of).sum();
                assert!((output - expected).abs() < 1e-6);
            }
        }
    }

    proptest! {
        /// Passes over drafts that are rejected in part, or computed in parts, against one token at a time.
        #[test]
        fn states_are_those_of_single_tokens(drafts in prop::collection::vec((0..6_usize, 0..6_usize, 0..6_usize), 1..6)) {
            let isa = Instructions::available()[0];
            let taps = numbers(5, 4 * SHAPE.num_channels());
            let size = SHAPE.num_channels();
            let compute = |layer: &mut RecurrentLayer, part, seed, from: usize, to: usize| {
                let (inputs, steps) = (numbers(seed, to * size), steps(SHAPE, seed, to));
                let (mut convolved, mut read) = (Vec::new(), Vec::new());
                layer.convolve(isa, part, &taps, &inputs[from * size..], &mut convolved);
                layer.remember(isa, part, &steps[from * SHAPE.step_size()..], 2, &mut read);
                (convolved, read)
            };
            let (mut of_drafts, mut alone) = (layer(SHAPE), layer(SHAPE));
            for (seed, &(first, second, accepted)) in (10..).zip(&drafts) {
                let (number, accepted) = (first + second, accepted.min(first + second));
                compute(&mut of_drafts, WHOLE, seed, 0, first);
                compute(&mut of_drafts, PassPart { is_first: false, ..WHOLE }, seed, first, number);
                of_drafts.commit(isa, accepted, number);
                for token in 0..accepted {
                    compute(&mut alone, WHOLE, seed, token, token + 1);
                    alone.commit(isa, 1, 1);
                }
                prop_assert_eq!(&of_drafts.committed.memory, &alone.committed.memory);
                prop_assert_eq!(&of_drafts.committed.inputs, &alone.committed.inputs);
            }
            let kept = alone.committed();
            of_drafts.restore(None);
            prop_assert!(of_drafts.committed.memory.iter().all(|&number| number == 0.0));
            of_drafts.restore(Some(&kept));
            prop_assert_eq!(&of_drafts.committed.memory, &alone.committed.memory);
        }
    }
}

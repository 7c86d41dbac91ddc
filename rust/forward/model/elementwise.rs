//! Norms and gates: the steps between the layers.

use super::config::Activation;
use crate::simd::vector::{Job, Simd, exp};

/// Divides each row by its root mean square. Loops run over rows, and in a row twice over its states.
pub(crate) struct Normalize<'a> {
    /// The rows, `(num_rows, size)`.
    pub(crate) states: &'a [f32],
    /// The factors of each row, `(size,)`.
    pub(crate) weights: &'a [f32],
    /// The number that is added to mean squares.
    pub(crate) epsilon: f32,
    /// The normalized rows, `(num_rows, size)`.
    pub(crate) outputs: &'a mut [f32],
}

impl Job for Normalize<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let size = self.weights.len();
        let rows = self.states.chunks_exact(size).zip(self.outputs.chunks_exact_mut(size));
        for (states, outputs) in rows {
            let mut squares = simd.splat(0.0);
            for lanes in states.chunks_exact(S::LANES) {
                let lanes = simd.load(lanes);
                squares = simd.fma(lanes, lanes, squares);
            }
            let mean = simd.sum(squares) / size as f32;
            let factor = 1.0 / (mean + self.epsilon).sqrt();
            for ((output, state), weight) in outputs.iter_mut().zip(states).zip(self.weights) {
                *output = state * factor * weight;
            }
        }
    }
}

/// Multiplies up projections by activated gates. Loops run over tokens and vectors.
pub(crate) struct Gated<'a> {
    /// The function of a gate.
    pub(crate) activation: Activation,
    /// For each token the gates and then the up projections, `(num_tokens, 2 * size)`.
    pub(crate) inputs: &'a [f32],
    /// The number of gates of a token.
    pub(crate) size: usize,
    /// The products, `(num_tokens, size)`.
    pub(crate) outputs: &'a mut [f32],
}

impl Job for Gated<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows =
            self.inputs.chunks_exact(2 * self.size).zip(self.outputs.chunks_exact_mut(self.size));
        for (inputs, outputs) in rows {
            let (gates, ups) = inputs.split_at(self.size);
            let lanes = gates.chunks_exact(S::LANES).zip(ups.chunks_exact(S::LANES));
            for ((gate, up), output) in lanes.zip(outputs.chunks_exact_mut(S::LANES)) {
                let (mut gate, mut up) = (simd.load(gate), simd.load(up));
                // All are the gate times a logistic function.
                let mut logit = gate;
                match self.activation {
                    Activation::Silu => {}
                    Activation::Gelu => {
                        // 2 sqrt(2 / pi) (x + 0.044715 x^3)
                        let square = simd.mul(gate, gate);
                        let (third, first) = (simd.splat(0.071_354_82), simd.splat(1.595_769));
                        logit = simd.mul(gate, simd.fma(square, third, first));
                    }
                    Activation::Clipped => {
                        gate = at_most(simd, gate, LIMIT);
                        up = simd.max(at_most(simd, up, LIMIT), simd.splat(-LIMIT));
                        up = simd.add(up, simd.splat(1.0));
                        logit = simd.mul(gate, simd.splat(1.702));
                    }
                }
                let power =
                    exp(simd, simd.mul(simd.max(logit, simd.splat(-87.0)), simd.splat(-1.0)));
                let product = simd.mul(gate, up);
                simd.store(simd.div(product, simd.add(power, simd.splat(1.0))), output);
            }
        }
    }
}

/// Multiplies states by the logistic functions of as many gates.
pub(crate) struct Gate<'a> {
    /// The gates, as many as states.
    pub(crate) gates: &'a [f32],
    /// The states, which become products.
    pub(crate) states: &'a mut [f32],
}

impl Job for Gate<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let lanes = self.gates.chunks_exact(S::LANES);
        for (gates, states) in lanes.zip(self.states.chunks_exact_mut(S::LANES)) {
            let gates = simd.max(simd.load(gates), simd.splat(-87.0));
            let power = exp(simd, simd.mul(gates, simd.splat(-1.0)));
            simd.store(simd.div(simd.load(states), simd.add(power, simd.splat(1.0))), states);
        }
    }
}

/// Subtracts the mean plus this number of standard deviations from gates; those below are zero.
pub(crate) fn cut_off(gates: &mut [f32], deviations: f32) {
    let number = gates.len() as f32;
    let mean = gates.iter().sum::<f32>() / number;
    let squares = gates.iter().map(|gate| (gate - mean) * (gate - mean)).sum::<f32>();
    let cutoff = mean + (squares / number).sqrt() * deviations;
    for gate in gates {
        *gate = (*gate - cutoff).max(0.0);
    }
}

/// The bound of the gates and up projections of [`Activation::Clipped`].
const LIMIT: f32 = 7.0;

/// The lesser of each lane and a limit.
#[inline(always)]
fn at_most<S: Simd>(simd: S, value: S::Floats, limit: f32) -> S::Floats {
    let minus = simd.splat(-1.0);
    simd.mul(simd.max(simd.mul(value, minus), simd.splat(-limit)), minus)
}

/// Adds `added` to `states`.
pub(crate) fn add(states: &mut [f32], added: &[f32]) {
    for (state, added) in states.iter_mut().zip(added) {
        *state += added;
    }
}

/// Multiplies the states by a number.
pub(crate) fn scale(states: &mut [f32], by: f32) {
    for state in states {
        *state *= by;
    }
}

//! The operations of a pass: products, norms and gates, by one instruction set.

use super::config::Activation;
use super::elementwise::{Gated, Normalize};
use super::linear::LinearLayer;
use crate::kernel::states::{Activations, TokenTiles};
use crate::simd::instructions::Instructions;

/// The operations that the layers of a pass share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operations {
    /// The instructions of all kernels.
    pub(crate) isa: Instructions,
    /// The precision of the states in products.
    pub(crate) activations: Activations,
    /// The threads of a product; 0 means one.
    pub(crate) num_threads: usize,
    /// The number that norms add to mean squares.
    pub(crate) epsilon: f32,
}

/// Buffers between the layers, kept from chunk to chunk.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The inputs of a product, in the layout of its kernel.
    pub(crate) prepared: TokenTiles,
    /// The inputs of a part of a layer, `(num_tokens, hidden_size)`.
    pub(crate) normed: Vec<f32>,
    /// The first projection of a mixer, `(num_tokens, num_outputs)`.
    pub(crate) projected: Vec<f32>,
    /// The inputs of the last projection of a mixer, `(num_tokens, num_inputs)`.
    pub(crate) mixed: Vec<f32>,
    /// The outputs of a part of a layer, `(num_tokens, hidden_size)`.
    pub(crate) added: Vec<f32>,
    /// Gates and up projections side by side, `(num_tokens, 2 * size)`.
    pub(crate) gate_up: Vec<f32>,
    /// Products of gates and up projections, `(num_tokens, size)`.
    pub(crate) gated: Vec<f32>,
    /// Logits of a router, `(num_tokens, num_experts)`, and then of the gate of a shared expert, `(num_tokens,)`.
    pub(crate) logits: Vec<f32>,
    /// The inputs of the tokens of an expert, `(num_tokens, hidden_size)`.
    pub(crate) gathered: Vec<f32>,
    /// The outputs of the last product, `(num_tokens, num_outputs)`.
    pub(crate) down: Vec<f32>,
}

impl Operations {
    /// Writes the outputs of a linear layer, `(num_tokens, num_outputs)`.
    pub(crate) fn linear(
        self,
        layer: &LinearLayer,
        states: &[f32],
        prepared: &mut TokenTiles,
        outputs: &mut Vec<f32>,
    ) {
        outputs.resize(states.len() / layer.num_inputs * layer.num_outputs, 0.0);
        layer.multiply(states, self.activations, self.num_threads, prepared, outputs);
    }

    /// Divides rows of the size of the weights by their root mean squares.
    pub(crate) fn normalize(self, states: &[f32], weights: &[f32], outputs: &mut Vec<f32>) {
        outputs.resize(states.len(), 0.0);
        self.isa.run(Normalize { states, weights, epsilon: self.epsilon, outputs });
    }

    /// Divides rows of the size of the weights by their root mean squares, in place; `buffer` is overwritten.
    pub(crate) fn normalize_in_place(
        self,
        states: &mut [f32],
        weights: &[f32],
        buffer: &mut Vec<f32>,
    ) {
        self.normalize(states, weights, buffer);
        states.copy_from_slice(buffer);
    }

    /// Multiplies up projections by activated gates; `inputs` are `(num_tokens, 2 * size)`, gates first.
    pub(crate) fn gate(
        self,
        activation: Activation,
        inputs: &[f32],
        size: usize,
        outputs: &mut Vec<f32>,
    ) {
        outputs.resize(inputs.len() / 2, 0.0);
        self.isa.run(Gated { activation, inputs, size, outputs });
    }
}

//! Inputs of each layer that depend on the token alone: its embeddings for layers, and a projection of its embedding.

use std::f32::consts::FRAC_1_SQRT_2;

use super::chunk::Token;
use super::config::{Activation, Config};
use super::elementwise::{add, scale};
use super::linear::LinearLayer;
use super::loader::Loader;
use super::operations::{Operations, Scratch};
use crate::error::Result;
use crate::gguf::file::Tensor;

/// The weights of the inputs of all layers.
#[derive(Debug)]
pub(crate) struct LayerInputs {
    /// The numbers of the input of a layer.
    size: usize,
    /// The layers of the model.
    num_layers: usize,
    /// Embeddings for layers, `(num_tokens, num_layers * size)`, which stay in the file.
    table: Tensor,
    /// From an embedding to `num_layers * size` numbers.
    projection: LinearLayer,
    /// The weights of the norm of each projected input, `(size,)`.
    norm: Vec<f32>,
}

/// The weights by which the input of a layer is added to the states.
#[derive(Debug)]
pub(crate) struct LayerInput {
    /// From states to the gates of the input.
    gate: LinearLayer,
    /// From the gated input to states.
    projection: LinearLayer,
    /// The weights of the norm of the projected input, `(hidden_size,)`.
    norm: Vec<f32>,
}

impl LayerInputs {
    pub(crate) fn load(loader: &mut Loader<'_>, config: &Config, size: usize) -> Result<Self> {
        let num_layers = config.layers.len();
        let name = "per_layer_token_embd.weight";
        // Tokens after the last row have the embeddings of the first one.
        let rows = loader.num_rows(name)?.clamp(1, config.vocab_size.max(1));
        let projection = [("per_layer_model_proj", num_layers * size)];
        Ok(Self {
            size,
            num_layers,
            table: loader.table(name, rows, num_layers * size)?,
            projection: loader.linear(&projection, config.hidden_size)?,
            norm: loader.vector("per_layer_proj_norm.weight", size)?,
        })
    }

    /// Returns the inputs of each layer, `(num_tokens, size)`, from the embeddings of the tokens.
    pub(crate) fn forward(
        &self,
        ops: Operations,
        tokens: &[Token],
        embeddings: &[f32],
        scratch: &mut Scratch,
    ) -> Vec<Vec<f32>> {
        let Scratch { prepared, normed, gated, .. } = scratch;
        ops.linear(&self.projection, embeddings, prepared, gated);
        scale(gated, 1.0 / (self.projection.num_inputs as f32).sqrt());
        ops.normalize(gated, &self.norm, normed);
        let width = self.num_layers * self.size;
        let mut row = vec![0.0; width];
        let mut inputs = vec![Vec::with_capacity(tokens.len() * self.size); self.num_layers];
        for (token, projected) in tokens.iter().zip(normed.chunks_exact_mut(width)) {
            let id = token.id as usize;
            self.table.embed(if id < self.table.rows { id } else { 0 }, &mut row);
            scale(&mut row, (self.size as f32).sqrt());
            add(projected, &row);
            scale(projected, FRAC_1_SQRT_2);
            for (inputs, layer) in inputs.iter_mut().zip(projected.chunks_exact(self.size)) {
                inputs.extend_from_slice(layer);
            }
        }
        inputs
    }
}

impl LayerInput {
    pub(crate) fn load(loader: &mut Loader<'_>, hidden: usize, size: usize) -> Result<Self> {
        Ok(Self {
            gate: loader.linear(&[("inp_gate", size)], hidden)?,
            projection: loader.linear(&[("proj", hidden)], size)?,
            norm: loader.vector("post_norm.weight", hidden)?,
        })
    }

    /// Writes what is added to the states, of `scratch.normed` into `scratch.added`.
    pub(crate) fn forward(&self, ops: Operations, inputs: &[f32], scratch: &mut Scratch) {
        let Scratch { prepared, normed, added, gate_up, gated, down, .. } = scratch;
        let size = self.gate.num_outputs;
        ops.linear(&self.gate, normed, prepared, down);
        gate_up.clear();
        for (gates, inputs) in down.chunks_exact(size).zip(inputs.chunks_exact(size)) {
            gate_up.extend_from_slice(gates);
            gate_up.extend_from_slice(inputs);
        }
        ops.gate(Activation::Gelu, gate_up, size, gated);
        ops.linear(&self.projection, gated, prepared, down);
        ops.normalize(down, &self.norm, added);
    }
}

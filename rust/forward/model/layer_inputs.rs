//! Inputs of each layer that depend on the token alone: its embeddings for layers, and a projection of its embedding.

use std::f32::consts::FRAC_1_SQRT_2;

use super::config::{Activation, Config};
use super::elementwise::{Gated, add, scale};
use super::layer::LinearLayer;
use super::load::{Loader, Model};
use super::pass::{PassOptions, Scratch, Token, apply};
use crate::error::Result;
use crate::gguf::file::Tensor;

/// The weights of the inputs of all layers.
#[derive(Debug)]
pub(crate) struct LayerInputs {
    size: usize,
    num_layers: usize,
    /// `(num_tokens, num_layers * size)`, which stay in the file.
    table: Tensor,
    projection: LinearLayer,
    norm: Vec<f32>,
}

/// The weights by which the input of a layer is added to the states.
#[derive(Debug)]
pub(crate) struct LayerInput {
    gate: LinearLayer,
    projection: LinearLayer,
    norm: Vec<f32>,
}

impl LayerInputs {
    pub(crate) fn load(loader: &mut Loader<'_>, config: &Config, size: usize) -> Result<Self> {
        let num_layers = config.layers.len();
        let name = "per_layer_token_embd.weight";
        // Tokens after the last row have the embeddings of the first one.
        let rows = loader.num_rows(name)?.clamp(1, config.vocab_size.max(1));
        Ok(Self {
            size,
            num_layers,
            table: loader.table(name, rows, num_layers * size)?,
            projection: loader.linear(
                &[("per_layer_model_proj".to_owned(), num_layers * size)],
                config.hidden_size,
            )?,
            norm: loader.vector("per_layer_proj_norm.weight", size)?,
        })
    }

    /// Returns the inputs of each layer, `(num_tokens, size)`, from the embeddings of the tokens.
    pub(crate) fn forward(
        &self,
        model: &Model,
        options: PassOptions<'_>,
        tokens: &[Token],
        embeddings: &[f32],
        scratch: &mut Scratch,
    ) -> Vec<Vec<f32>> {
        let Scratch { prepared, normed, gated, .. } = scratch;
        apply(&self.projection, embeddings, options, prepared, gated);
        scale(gated, 1.0 / (model.config.hidden_size as f32).sqrt());
        model.normalize(gated, &self.norm, normed);
        let width = self.num_layers * self.size;
        let mut row = vec![0.0; width];
        let mut inputs = vec![Vec::with_capacity(tokens.len() * self.size); self.num_layers];
        for (token, projected) in tokens.iter().zip(normed.chunks_exact_mut(width)) {
            let id = token.id as usize;
            self.table.embed(if id < self.table.rows { id } else { 0 }, &mut row);
            scale(&mut row, (self.size as f32).sqrt());
            add(projected, &row);
            scale(projected, FRAC_1_SQRT_2);
            for (inputs, of_layer) in inputs.iter_mut().zip(projected.chunks_exact(self.size)) {
                inputs.extend_from_slice(of_layer);
            }
        }
        inputs
    }
}

impl LayerInput {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        hidden: usize,
        size: usize,
        number: usize,
    ) -> Result<Self> {
        let of = |part: &str| format!("blk.{number}.{part}");
        Ok(Self {
            gate: loader.linear(&[(of("inp_gate"), size)], hidden)?,
            projection: loader.linear(&[(of("proj"), hidden)], size)?,
            norm: loader.vector(&of("post_norm.weight"), hidden)?,
        })
    }

    /// Writes what is added to the states, of `scratch.normed` into `scratch.added`.
    pub(crate) fn forward(
        &self,
        model: &Model,
        options: PassOptions<'_>,
        inputs: &[f32],
        scratch: &mut Scratch,
    ) {
        let Scratch { prepared, normed, added, gate_up, gated, down, .. } = scratch;
        let size = self.gate.num_outputs;
        apply(&self.gate, normed, options, prepared, down);
        gate_up.clear();
        for (gates, inputs) in down.chunks_exact(size).zip(inputs.chunks_exact(size)) {
            gate_up.extend_from_slice(gates);
            gate_up.extend_from_slice(inputs);
        }
        gated.resize(down.len(), 0.0);
        let activation = Activation::Gelu;
        model.with.run(Gated { activation, inputs: gate_up, size, outputs: gated });
        apply(&self.projection, gated, options, prepared, down);
        model.normalize(down, &self.norm, added);
    }
}

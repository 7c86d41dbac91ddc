//! Feed-forward parts: their weights and their pass.

use super::config::{Config, DenseConfig, FeedForward};
use super::elementwise::Gated;
use super::layer::LinearLayer;
use super::load::Loader;
use super::pass::{PassOptions, Scratch, apply};
use crate::error::Result;
use crate::simd::instructions::Instructions;

#[derive(Debug)]
pub(crate) enum FeedForwardWeights {
    Dense(Dense),
}

#[derive(Debug)]
pub(crate) struct Dense {
    config: DenseConfig,
    /// Gates and what they let through.
    gate_up: LinearLayer,
    down: LinearLayer,
}

impl FeedForwardWeights {
    pub(crate) fn load(loader: &mut Loader<'_>, config: &Config, number: usize) -> Result<Self> {
        let FeedForward::Dense(dense) = &config.layers[number].feed_forward;
        let (hidden, size) = (config.hidden_size, dense.size);
        let of = |part: &str| format!("blk.{number}.{part}.weight");
        let gate_up = if loader.has(&of("ffn_gate")) {
            loader.layer(&[(&of("ffn_gate"), size), (&of("ffn_up"), size)], hidden)?
        } else {
            loader.layer(&[(&of("ffn_up"), 2 * size)], hidden)?
        };
        let down = loader.layer(&[(&of("ffn_down"), hidden)], size)?;
        Ok(Self::Dense(Dense { config: *dense, gate_up, down }))
    }

    /// Writes what is added to the states, of `scratch.normed` into `scratch.added`.
    pub(crate) fn forward(
        &self,
        with: Instructions,
        options: PassOptions<'_>,
        scratch: &mut Scratch,
    ) {
        let Self::Dense(Dense { config, gate_up, down }) = self;
        let Scratch { prepared, normed, added, gate_up: of_gates, gated, .. } = scratch;
        apply(gate_up, normed, options, prepared, of_gates);
        let (size, activation) = (config.size, config.activation);
        gated.resize(of_gates.len() / 2, 0.0);
        with.run(Gated { activation, inputs: of_gates, size, outputs: gated });
        apply(down, gated, options, prepared, added);
    }
}

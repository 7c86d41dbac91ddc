//! Feed-forward parts: their weights and their pass.

use super::config::{Config, DenseConfig, FeedForward};
use super::elementwise::{Gated, cut_off};
use super::experts::Experts;
use super::layer::LinearLayer;
use super::load::Loader;
use super::pass::{PassOptions, Scratch, apply};
use crate::error::Result;
use crate::simd::instructions::Instructions;

#[derive(Debug)]
pub(crate) enum FeedForwardWeights {
    Dense(Dense),
    Experts(Box<Experts>),
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
        let hidden = config.hidden_size;
        let dense = match &config.layers[number].feed_forward {
            FeedForward::Dense(dense) => dense,
            FeedForward::Experts(experts) => {
                let experts = Experts::load(loader, hidden, experts, number)?;
                return Ok(Self::Experts(Box::new(experts)));
            }
        };
        let size = dense.size;
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
        let Dense { config, gate_up, down } = match self {
            Self::Dense(dense) => dense,
            Self::Experts(experts) => return experts.forward(with, options, scratch),
        };
        let Scratch { prepared, normed, added, gate_up: of_gates, gated, .. } = scratch;
        apply(gate_up, normed, options, prepared, of_gates);
        let &DenseConfig { size, activation, cutoff } = config;
        if let Some(deviations) = cutoff {
            of_gates
                .chunks_exact_mut(2 * size)
                .for_each(|row| cut_off(&mut row[..size], deviations));
        }
        gated.resize(of_gates.len() / 2, 0.0);
        with.run(Gated { activation, inputs: of_gates, size, outputs: gated });
        apply(down, gated, options, prepared, added);
    }
}

//! Feed-forward parts: their weights and their pass.

use super::config::{Config, DenseConfig, ExpertsConfig, FeedForward, LayerConfig};
use super::elementwise::{add, cut_off, scale};
use super::experts::Experts;
use super::linear::LinearLayer;
use super::loader::Loader;
use super::operations::{Operations, Scratch};
use crate::error::Result;

/// The weights of the feed-forward part of a layer.
#[derive(Debug)]
pub(crate) enum FeedForwardWeights {
    Dense(Dense),
    Experts(Box<Experts>),
    DenseAndExperts(Box<DenseAndExperts>),
}

/// The weights of a dense part and of experts, whose outputs are added.
#[derive(Debug)]
pub(crate) struct DenseAndExperts {
    /// The dense part.
    dense: Dense,
    /// The weights of the norm after the dense part, `(hidden_size,)`.
    after_dense: Vec<f32>,
    /// The experts.
    experts: Experts,
    /// The weights of the norm before the router, `(hidden_size,)`.
    before_router: Vec<f32>,
    /// The weights of the norm before the experts, `(hidden_size,)`.
    before_experts: Vec<f32>,
    /// The weights of the norm after the experts, `(hidden_size,)`.
    after_experts: Vec<f32>,
}

/// The weights of a dense feed-forward part.
#[derive(Debug)]
pub(crate) struct Dense {
    /// The size and the activation.
    config: DenseConfig,
    /// From states to gates, and then to up projections.
    gate_up: LinearLayer,
    /// From gated up projections to states.
    down: LinearLayer,
}

impl FeedForwardWeights {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        config: &Config,
        layer: &LayerConfig,
    ) -> Result<Self> {
        let hidden = config.hidden_size;
        Ok(match &layer.feed_forward {
            FeedForward::Dense(dense) => Self::Dense(Dense::load(loader, hidden, *dense)?),
            FeedForward::Experts(experts) => {
                Self::Experts(Box::new(Experts::load(loader, hidden, experts)?))
            }
            FeedForward::DenseAndExperts(dense, experts) => Self::DenseAndExperts(Box::new(
                DenseAndExperts::load(loader, hidden, *dense, experts)?,
            )),
        })
    }

    /// Writes what is added to the states, of `scratch.normed` into `scratch.added`; `states` are those before the norm.
    pub(crate) fn forward(&self, ops: Operations, states: &[f32], scratch: &mut Scratch) {
        match self {
            Self::Dense(dense) => dense.forward(ops, scratch),
            Self::Experts(experts) => experts.forward(ops, scratch),
            Self::DenseAndExperts(both) => both.forward(ops, states, scratch),
        }
    }
}

impl DenseAndExperts {
    fn load(
        loader: &mut Loader<'_>,
        hidden: usize,
        dense: DenseConfig,
        experts: &ExpertsConfig,
    ) -> Result<Self> {
        // The norm has no weights; those of the file are scales of what it writes.
        let mut before_router = loader.vector("ffn_gate_inp.scale", hidden)?;
        scale(&mut before_router, 1.0 / (hidden as f32).sqrt());
        Ok(Self {
            dense: Dense::load(loader, hidden, dense)?,
            after_dense: loader.vector("post_ffw_norm_1.weight", hidden)?,
            experts: Experts::load(loader, hidden, experts)?,
            before_router,
            before_experts: loader.vector("pre_ffw_norm_2.weight", hidden)?,
            after_experts: loader.vector("post_ffw_norm_2.weight", hidden)?,
        })
    }

    fn forward(&self, ops: Operations, states: &[f32], scratch: &mut Scratch) {
        self.dense.forward(ops, scratch);
        let mut of_dense = Vec::new();
        ops.normalize(&scratch.added, &self.after_dense, &mut of_dense);
        ops.normalize(states, &self.before_router, &mut scratch.normed);
        self.experts.route(ops, scratch);
        ops.normalize(states, &self.before_experts, &mut scratch.normed);
        self.experts.forward_routed(ops, scratch);
        let Scratch { added, gathered, .. } = scratch;
        ops.normalize_in_place(added, &self.after_experts, gathered);
        add(added, &of_dense);
    }
}

impl Dense {
    fn load(loader: &mut Loader<'_>, hidden: usize, config: DenseConfig) -> Result<Self> {
        let size = config.size;
        let gate_up = if loader.has("ffn_gate.weight") {
            loader.linear(&[("ffn_gate", size), ("ffn_up", size)], hidden)?
        } else {
            loader.linear(&[("ffn_up", 2 * size)], hidden)?
        };
        let down = loader.linear(&[("ffn_down", hidden)], size)?;
        Ok(Self { config, gate_up, down })
    }

    fn forward(&self, ops: Operations, scratch: &mut Scratch) {
        let Scratch { prepared, normed, added, gate_up, gated, .. } = scratch;
        ops.linear(&self.gate_up, normed, prepared, gate_up);
        let DenseConfig { size, activation, cutoff } = self.config;
        if let Some(deviations) = cutoff {
            gate_up
                .chunks_exact_mut(2 * size)
                .for_each(|row| cut_off(&mut row[..size], deviations));
        }
        ops.gate(activation, gate_up, size, gated);
        ops.linear(&self.down, gated, prepared, added);
    }
}

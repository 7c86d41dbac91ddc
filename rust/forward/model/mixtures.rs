//! Families of models with mixtures of experts.

use super::config::{
    Activation, Config, DenseConfig, ExpertsConfig, FeedForward, HeadNorms, Norms, Routing,
    SharedExpert,
};
use super::families::{qwen2, qwen3};
use super::fields::{Family, Fields};
use super::rotation::Pairs;
use crate::error::Result;

/// By `general.architecture`, apart from those that also have models without experts.
pub(super) const MIXTURES: [(&str, Family); 5] = [
    ("gpt-oss", gpt_oss),
    ("granitemoe", granitemoe),
    ("olmoe", olmoe),
    ("qwen2moe", qwen2moe),
    ("qwen3moe", qwen3moe),
];

impl Fields<'_> {
    /// The experts of a layer, all alike, whose weights are those of a softmax.
    pub(super) fn experts(&self, sum_is_1: bool) -> Result<ExpertsConfig> {
        let number = self.count("expert_count")?;
        let num_used = self.count("expert_used_count")?;
        let size = match self.maybe("expert_feed_forward_length")? {
            Some(size) => size,
            None => self.count("feed_forward_length")?,
        };
        if num_used > number {
            return Err(self.file.corrupt("its tokens take more experts than there are"));
        }
        Ok(ExpertsConfig {
            number,
            expert: DenseConfig { size, activation: Activation::Silu, cutoff: None },
            routing: Routing {
                num_used,
                is_sigmoid: false,
                normalizes: sum_is_1.then_some(0.0),
                scale: self.positive("expert_weights_scale").unwrap_or(1.0),
            },
            shared: None,
        })
    }

    pub(super) fn shared_expert(&self, has_gate: bool) -> Result<Option<SharedExpert>> {
        let size = self.maybe("expert_shared_feed_forward_length")?;
        Ok(size.map(|size| SharedExpert { size, has_gate }))
    }
}

impl Config {
    /// Replaces the feed-forward parts after the first ones.
    pub(super) fn set_experts(&mut self, num_dense: usize, experts: ExpertsConfig) {
        for layer in self.layers.iter_mut().skip(num_dense) {
            layer.feed_forward = FeedForward::Experts(experts);
        }
    }

    /// Adds experts to all dense feed-forward parts, with their activation.
    pub(super) fn add_experts(&mut self, mut experts: ExpertsConfig) {
        for layer in &mut self.layers {
            if let FeedForward::Dense(dense) = layer.feed_forward {
                experts.expert.activation = dense.activation;
                layer.feed_forward = FeedForward::DenseAndExperts(dense, experts);
            }
        }
    }
}

fn qwen2moe(fields: &Fields<'_>) -> Result<Config> {
    let mut config = qwen2(fields)?;
    config.set_experts(
        0,
        ExpertsConfig { shared: fields.shared_expert(true)?, ..fields.experts(false)? },
    );
    Ok(config)
}

fn qwen3moe(fields: &Fields<'_>) -> Result<Config> {
    let mut config = qwen3(fields)?;
    config.set_experts(0, fields.experts(true)?);
    Ok(config)
}

/// Scales of embeddings, of what layers add, and of logits.
fn granitemoe(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Neighbors)?;
    config.embedding_scale = fields.positive("embedding_scale").unwrap_or(1.0);
    config.logit_scale = 1.0 / fields.positive("logit_scale").unwrap_or(1.0);
    for layer in &mut config.layers {
        layer.residual_scale = fields.positive("residual_scale").unwrap_or(1.0);
    }
    let shared = fields.shared_expert(false)?;
    config.set_experts(0, ExpertsConfig { shared, ..fields.experts(true)? });
    Ok(config)
}

fn olmoe(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.set_head_norms(HeadNorms::OfAll);
    config.set_experts(0, fields.experts(false)?);
    Ok(config)
}

/// Windows in every second layer, a score of no token for each head, and bounded gates.
fn gpt_oss(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.set_windows(fields.windows(2, config.layers.len())?);
    let mut experts = fields.experts(true)?;
    experts.expert.activation = Activation::Clipped;
    config.set_experts(0, experts);
    for layer in &mut config.layers {
        layer.norms = Norms { before_feed_forward: Some("post_attention_norm"), ..Norms::BEFORE };
        layer.set_attention(|attention| attention.has_sinks = true);
    }
    Ok(config)
}

//! Families of models whose layers are recurrent, apart from some.

use super::config::{
    Config, ConvolutionConfig, DeltaConfig, ExpertsConfig, HeadNorms, Mixer, Norms,
};
use super::fields::{Family, Fields};
use super::recurrent::MemoryShape;
use super::rotation::Pairs;
use crate::error::Result;

/// By `general.architecture`.
pub(super) const HYBRIDS: [(&str, Family); 5] = [
    ("lfm2", lfm2),
    ("lfm2moe", lfm2moe),
    ("qwen35", qwen35),
    ("qwen35moe", qwen35moe),
    ("qwen3next", qwen3next),
];

/// Short convolutions in layers without keys.
fn lfm2(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.set_head_norms(HeadNorms::OfEach);
    config.norm = "token_embd_norm";
    let kernel_size = fields.count("shortconv.l_cache")?;
    for layer in &mut config.layers {
        if matches!(&layer.mixer, Mixer::Attention(attention) if attention.num_kv_heads == 0) {
            layer.mixer = Mixer::ShortConvolution(ConvolutionConfig { kernel_size });
        }
    }
    Ok(config)
}

fn lfm2moe(fields: &Fields<'_>) -> Result<Config> {
    let mut config = lfm2(fields)?;
    let mut experts = fields.experts(true)?;
    experts.routing.is_sigmoid = true;
    experts.routing.normalizes = Some(1e-6);
    config.set_experts(fields.maybe("leading_dense_block_count")?.unwrap_or(0), experts);
    Ok(config)
}

/// Gated delta nets in all layers but each fourth, whose attention is gated.
fn delta(fields: &Fields<'_>, is_tiled: bool) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.set_head_norms(HeadNorms::OfEach);
    let memory = MemoryShape {
        num_heads: fields.count("ssm.time_step_rank")?,
        num_key_heads: fields.count("ssm.group_count")?,
        head_size: fields.count("ssm.state_size")?,
        is_tiled,
    };
    if fields.count("ssm.inner_size")? != memory.num_heads * memory.head_size {
        return Err(fields.file.unsupported("has values of another size than keys"));
    }
    // Layers that predict later tokens follow those of the model.
    config.num_unused_layers = fields.maybe("nextn_predict_layers")?.unwrap_or(0);
    let num_layers = config.layers.len().saturating_sub(config.num_unused_layers);
    config.layers.truncate(num_layers);
    let delta = DeltaConfig { kernel_size: fields.count("ssm.conv_kernel")?, memory };
    let period = fields.maybe("full_attention_interval")?.unwrap_or(4);
    for (layer, number) in config.layers.iter_mut().zip(1_usize..) {
        layer.norms = Norms { before_feed_forward: Some("post_attention_norm"), ..Norms::BEFORE };
        layer.set_attention(|attention| attention.has_gates = true);
        if !number.is_multiple_of(period) {
            layer.mixer = Mixer::GatedDelta(delta);
        }
    }
    Ok(config)
}

fn qwen35(fields: &Fields<'_>) -> Result<Config> {
    delta(fields, true)
}

fn qwen35moe(fields: &Fields<'_>) -> Result<Config> {
    with_experts(fields, delta(fields, true)?)
}

fn qwen3next(fields: &Fields<'_>) -> Result<Config> {
    with_experts(fields, delta(fields, false)?)
}

fn with_experts(fields: &Fields<'_>, mut config: Config) -> Result<Config> {
    let shared = fields.shared_expert(true)?;
    config.set_experts(0, ExpertsConfig { shared, ..fields.experts(true)? });
    Ok(config)
}

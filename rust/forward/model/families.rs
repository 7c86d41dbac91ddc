//! Families of models: how each differs from a plain decoder.

use super::config::{
    Activation, AttentionConfig, Config, FeedForward, HeadNorms, LayerConfig, Mixer, Norms,
    Temperature,
};
use super::fields::{ANGLES, Family, Fields};
use super::rotation::{Pairs, Rotation};
use crate::error::Result;

/// By `general.architecture`, apart from mixtures of experts and recurrent layers.
pub(super) const DECODERS: [(&str, Family); 16] = [
    ("exaone4", exaone4),
    ("gemma", gemma),
    ("gemma2", gemma2),
    ("gemma3", gemma3),
    ("gemma3n", gemma3n),
    ("gemma4", gemma4),
    ("glm4", glm4),
    ("granite", granite),
    ("llama", llama),
    ("mistral3", mistral3),
    ("olmo2", olmo2),
    ("phi3", qwen2),
    ("qwen2", qwen2),
    ("qwen3", qwen3),
    ("seed_oss", seed_oss),
    ("smollm3", smollm3),
];

impl Config {
    pub(super) fn set_windows(&mut self, windows: Vec<Option<usize>>) {
        for (layer, window) in self.layers.iter_mut().zip(windows) {
            layer.set_attention(|attention| attention.window = window);
        }
    }

    /// Rotates layers with windows by a base, without scaling.
    fn set_local_rotation(&mut self, fields: &Fields<'_>, base: f32) -> Result<()> {
        let Rotation { pairs, ref angles, .. } = self.rotations[0];
        let size = fields.count_or("rope.dimension_count_swa", 2 * angles.len())?;
        let local = fields.unscaled(pairs, size, base, ANGLES[1])?;
        self.rotations.push(local);
        for layer in &mut self.layers {
            layer.set_attention(|attention| {
                attention.rotation = Some(usize::from(attention.window.is_some()));
            });
        }
        Ok(())
    }

    /// Models of Gemma of 27 billion weights alone divide by another size than that of a head.
    fn set_scale_of_27b(&mut self, fields: &Fields<'_>, is_27b: bool) {
        if is_27b && fields.number("attention.scale").is_none() {
            let hidden = self.hidden_size;
            for layer in &mut self.layers {
                layer.set_attention(|attention| {
                    attention.scale = 1.0 / ((hidden / attention.num_heads) as f32).sqrt();
                });
            }
        }
    }

    pub(super) fn set_head_norms(&mut self, norms: HeadNorms) {
        for layer in &mut self.layers {
            layer.set_attention(|attention| attention.head_norms = norms);
        }
    }
}

/// A window of all layers.
const ALL: usize = usize::MAX;

/// Llama, and Mistral with windows in all layers.
pub(super) fn llama(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Neighbors)?;
    config.set_windows(fields.windows(ALL, config.layers.len())?);
    if fields.maybe("expert_count")?.is_some() {
        config.set_experts(0, fields.experts(true)?);
    }
    Ok(config)
}

pub(super) fn qwen2(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.set_windows(fields.windows(ALL, config.layers.len())?);
    Ok(config)
}

pub(super) fn qwen3(fields: &Fields<'_>) -> Result<Config> {
    let mut config = qwen2(fields)?;
    config.set_head_norms(HeadNorms::OfEach);
    Ok(config)
}

/// Biases and the name of a norm differ from Llama.
fn seed_oss(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    let norms = Norms { before_feed_forward: Some("post_attention_norm"), ..Norms::BEFORE };
    config.layers.iter_mut().for_each(|layer| layer.norms = norms);
    Ok(config)
}

/// Each fourth layer is not rotated.
fn smollm3(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Neighbors)?;
    for layer in config.layers.iter_mut().skip(3).step_by(4) {
        layer.set_attention(|attention| attention.rotation = None);
    }
    Ok(config)
}

/// Multipliers of embeddings, attention, residuals and logits.
fn granite(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Neighbors)?;
    config.embedding_scale = fields.positive("embedding_scale").unwrap_or(1.0);
    config.logit_scale = fields.positive("logit_scale").map_or(1.0, |scale| 1.0 / scale);
    let by = fields.positive("residual_scale").unwrap_or(1.0);
    config.layers.iter_mut().for_each(|layer| layer.residual_scale = by);
    Ok(config)
}

/// Queries of later positions are larger.
fn mistral3(fields: &Fields<'_>) -> Result<Config> {
    let mut config = llama(fields)?;
    if let Some(scale) = fields.positive("attention.temperature_scale") {
        let length = match fields.count_or("attention.temperature_length", 0)? {
            0 => fields.count("rope.scaling.original_context_length")?,
            length => length,
        };
        for layer in &mut config.layers {
            layer.set_attention(|attention| {
                attention.temperature = Some(Temperature { scale, length });
            });
        }
    }
    Ok(config)
}

/// Norms after the parts of a layer, and one of all heads; layers with windows are rotated without scaling.
fn olmo2(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.set_windows(fields.windows(4, config.layers.len())?);
    config.set_head_norms(HeadNorms::OfAll);
    let base = fields.number("rope.freq_base").unwrap_or(10_000.0);
    config.set_local_rotation(fields, base)?;
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::AFTER);
    Ok(config)
}

/// Norms after the parts of a layer; only layers with windows are rotated, if there are some.
fn exaone4(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    let windows = fields.windows(4, config.layers.len())?;
    let has_windows = windows.iter().any(Option::is_some);
    config.set_windows(windows);
    config.set_head_norms(HeadNorms::OfEach);
    for layer in &mut config.layers {
        layer.norms = Norms::AFTER;
        layer.set_attention(|attention| {
            let is_rotated = !has_windows || attention.window.is_some();
            attention.rotation = attention.rotation.filter(|_| is_rotated);
        });
    }
    Ok(config)
}

/// Norms around the parts of a layer, and heads that are rotated in part.
fn glm4(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Neighbors)?;
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::AROUND);
    Ok(config)
}

/// Scaled embeddings, and gates by GELU.
fn gemma(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.embedding_scale = (config.hidden_size as f32).sqrt();
    config.layers.iter_mut().for_each(|layer| layer.set_activation(Activation::Gelu));
    Ok(config)
}

/// Bounded scores and logits, and windows in each second layer.
fn gemma2(fields: &Fields<'_>) -> Result<Config> {
    let mut config = gemma(fields)?;
    let num_layers = config.layers.len();
    config.set_windows(fields.windows(2, num_layers)?);
    config.logit_cap = Some(fields.positive("final_logit_softcapping").unwrap_or(30.0));
    let cap = fields.positive("attn_logit_softcapping").unwrap_or(50.0);
    let is_27b = num_layers == 46;
    for layer in &mut config.layers {
        layer.norms = Norms::AROUND;
        layer.set_attention(|attention| attention.score_cap = Some(cap));
    }
    config.set_scale_of_27b(fields, is_27b);
    Ok(config)
}

/// Windows in five of six layers, which have a rotation of their own.
fn gemma3(fields: &Fields<'_>) -> Result<Config> {
    gemma_with_windows(fields, 6)
}

fn gemma_with_windows(fields: &Fields<'_>, period: usize) -> Result<Config> {
    let mut config = gemma(fields)?;
    let num_layers = config.layers.len();
    config.set_windows(fields.windows(period, num_layers)?);
    config.set_head_norms(HeadNorms::OfEach);
    let base = fields.number("rope.freq_base_swa").unwrap_or(10_000.0);
    config.set_local_rotation(fields, base)?;
    config.logit_cap = fields.positive("final_logit_softcapping");
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::AROUND);
    config.set_scale_of_27b(fields, num_layers == 62);
    Ok(config)
}

/// Scores that are not scaled, norms of values, inputs of each layer, and last layers that attend to the keys of others.
fn gemma_with_inputs(fields: &Fields<'_>, period: usize) -> Result<Config> {
    let mut config = gemma_with_windows(fields, period)?;
    config.layer_input_size = fields.maybe("embedding_length_per_layer_input")?;
    let has_window = |layer: &LayerConfig| match &layer.mixer {
        Mixer::Attention(attention) => attention.has_window(),
        _ => false,
    };
    let has_window: Vec<_> = config.layers.iter().map(has_window).collect();
    let num_shared = fields.maybe("attention.shared_kv_layers")?.unwrap_or(0);
    let num_own = config.layers.len().saturating_sub(num_shared);
    for (number, layer) in config.layers.iter_mut().enumerate() {
        let keys_of = (0..num_own).rev().find(|&layer| has_window[layer] == has_window[number]);
        if keys_of.is_none() {
            return Err(fields.file.corrupt("its last layers share keys that no layer has"));
        }
        layer.set_attention(|attention| {
            attention.scale = 1.0;
            attention.has_value_norms = true;
            attention.keys_of = keys_of.filter(|_| number >= num_own);
        });
    }
    Ok(config)
}

/// Streams of states, products of low rank, and gates of which most are zero.
fn gemma3n(fields: &Fields<'_>) -> Result<Config> {
    let mut config = gemma_with_inputs(fields, 5)?;
    config.logit_cap = config.logit_cap.or(Some(30.0));
    config.num_streams = Some(fields.count("altup.num_inputs")?);
    if fields.maybe("altup.active_idx")?.is_some() {
        return Err(fields.file.unsupported("computes another stream of states than the first"));
    }
    let cutoffs = fields.numbers("activation_sparsity_scale", config.layers.len())?;
    for (layer, cutoff) in config.layers.iter_mut().zip(cutoffs) {
        layer.has_low_rank = true;
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            dense.cutoff = Some(cutoff).filter(|cutoff| cutoff.is_finite());
        }
    }
    Ok(config)
}

/// Layers with windows have heads of another size, and some models have experts next to dense feed-forward parts.
fn gemma4(fields: &Fields<'_>) -> Result<Config> {
    let mut config = gemma_with_inputs(fields, 6)?;
    if fields.maybe("expert_count")?.is_some() {
        config.add_experts(fields.experts(true)?);
    }
    for layer in &mut config.layers {
        let Mixer::Attention(attention) = &mut layer.mixer else { continue };
        if attention.has_window() {
            let AttentionConfig { head_size, value_size, .. } = attention;
            *head_size = fields.count_or("attention.key_length_swa", *head_size)?;
            *value_size = fields.count_or("attention.value_length_swa", *value_size)?;
        }
    }
    Ok(config)
}

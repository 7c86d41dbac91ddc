//! Families of models: how each differs from a plain decoder.

use super::config::{
    Activation, AttentionConfig, Config, FeedForward, HeadNorms, LayerConfig, Mixer, Norms,
    Temperature,
};
use super::fields::{ANGLES, Fields};
use super::hybrids::HYBRIDS;
use super::mixtures::MIXTURES;
use super::rotation::{Pairs, Rotation};
use crate::error::Result;
use crate::gguf::file::Gguf;

pub(super) type Family = fn(&Fields<'_>) -> Result<Config>;

/// Families by `general.architecture`.
const FAMILIES: [(&str, Family); 16] = [
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
    /// The values of `general.architecture` that are computed.
    pub fn architectures() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().chain(&MIXTURES).chain(&HYBRIDS).map(|(name, _)| *name)
    }

    /// Reads the description of the model of a file.
    pub(crate) fn read(file: &Gguf) -> Result<Self> {
        let architecture = file.text("general.architecture").unwrap_or_default();
        let Some((_, family)) = FAMILIES
            .iter()
            .chain(&MIXTURES)
            .chain(&HYBRIDS)
            .find(|(name, _)| *name == architecture)
        else {
            return Err(file.unsupported(format!("has the architecture {architecture:?}")));
        };
        let config = family(&Fields { file, architecture })?;
        let long = |size: usize| (size > 64).then_some("a long convolution");
        let reason = config.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Attention(of) if of.num_kv_heads == 0 => Some("layers without keys"),
            Mixer::Attention(of) if !of.num_heads.is_multiple_of(of.num_kv_heads) => {
                Some("heads that no number of them shares keys")
            }
            Mixer::Attention(of) if !config.shares_keys(of) => {
                Some("layers that attend to keys of another shape")
            }
            Mixer::Attention(of) if !config.rotates(of) => {
                Some("rotations of more dimensions than heads have")
            }
            Mixer::Attention(of) => {
                let is_usual = |size: usize| size.is_multiple_of(16) && (16..=1024).contains(&size);
                let is_usual = is_usual(of.head_size) && is_usual(of.value_size);
                (!is_usual).then_some("heads that are not a multiple of 16 in size")
            }
            Mixer::ShortConvolution(of) => long(of.kernel_size),
            Mixer::GatedDelta(of)
                if !of.memory.num_heads.is_multiple_of(of.memory.num_key_heads) =>
            {
                Some("heads that no number of them shares keys")
            }
            Mixer::GatedDelta(of) if !matches!(of.memory.head_size, 16..=1024) => {
                Some("memories of an unusual size")
            }
            Mixer::GatedDelta(of) if !of.memory.head_size.is_multiple_of(16) => {
                Some("heads that are not a multiple of 16 in size")
            }
            Mixer::GatedDelta(of) => long(of.kernel_size),
        });
        reason.map_or(Ok(config), |reason| Err(file.unsupported(format!("has {reason}"))))
    }

    /// Returns true if the heads of a layer are not smaller than what is rotated.
    fn rotates(&self, attention: &AttentionConfig) -> bool {
        let rotation = attention.rotation.and_then(|of| self.rotations.get(of));
        rotation.is_none_or(|of| 2 * of.angles.len() <= attention.head_size)
    }

    /// Returns true if the keys that a layer attends to have the shape of its own ones.
    fn shares_keys(&self, attention: &AttentionConfig) -> bool {
        let shape = |of: &AttentionConfig| (of.num_kv_heads, of.head_size, of.value_size);
        let source = attention.keys_of.map(|of| &self.layers[of].mixer);
        match source {
            Some(Mixer::Attention(of)) => shape(of) == shape(attention),
            Some(_) => false,
            None => true,
        }
    }

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
            layer.set_attention(|of| of.rotation = Some(usize::from(of.window.is_some())));
        }
        Ok(())
    }

    /// Models of Gemma of 27 billion weights alone divide by another size than that of a head.
    fn set_scale_of_27b(&mut self, fields: &Fields<'_>, is_27b: bool) {
        if is_27b && fields.number("attention.scale").is_none() {
            let hidden = self.hidden_size;
            for layer in &mut self.layers {
                layer.set_attention(|of| of.scale = 1.0 / ((hidden / of.num_heads) as f32).sqrt());
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
            layer.set_attention(|of| of.temperature = Some(Temperature { scale, length }));
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
        layer.set_attention(|of| {
            of.rotation = of.rotation.filter(|_| !has_windows || of.window.is_some());
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
        let keys_of = (0..num_own).rev().find(|&of| has_window[of] == has_window[number]);
        if keys_of.is_none() {
            return Err(fields.file.corrupt("its last layers share keys that no layer has"));
        }
        layer.set_attention(|of| {
            of.scale = 1.0;
            of.has_value_norms = true;
            of.keys_of = keys_of.filter(|_| number >= num_own);
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

/// Layers with windows have heads of another size.
fn gemma4(fields: &Fields<'_>) -> Result<Config> {
    let mut config = gemma_with_inputs(fields, 6)?;
    for layer in &mut config.layers {
        let LayerConfig { mixer: Mixer::Attention(of), .. } = layer else { continue };
        if of.has_window() {
            of.head_size = fields.count_or("attention.key_length_swa", of.head_size)?;
            of.value_size = fields.count_or("attention.value_length_swa", of.value_size)?;
        }
    }
    Ok(config)
}

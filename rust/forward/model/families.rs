//! Families of models: how each differs from a plain decoder.

use super::config::{Activation, Config, FeedForward, HeadNorms, Mixer, Norms};
use super::fields::{ANGLES, Fields};
use super::hybrids::HYBRIDS;
use super::mixtures::MIXTURES;
use super::rotation::Pairs;
use crate::error::Result;
use crate::gguf::file::Gguf;

pub(super) type Family = fn(&Fields<'_>) -> Result<Config>;

/// Families by `general.architecture`.
const FAMILIES: [(&str, Family); 5] =
    [("gemma3", gemma3), ("llama", llama), ("olmo2", olmo2), ("qwen2", qwen2), ("qwen3", qwen3)];

impl Config {
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

    pub(super) fn set_windows(&mut self, windows: Vec<Option<usize>>) {
        for (layer, window) in self.layers.iter_mut().zip(windows) {
            layer.set_attention(|attention| attention.window = window);
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

/// Norms after the parts of a layer, and one of all heads.
fn olmo2(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    config.set_windows(fields.windows(4, config.layers.len())?);
    config.set_head_norms(HeadNorms::OfAll);
    config.layers.iter_mut().for_each(|layer| layer.norms = Norms::AFTER);
    Ok(config)
}

/// Windows in five of six layers, which have a rotation of their own.
fn gemma3(fields: &Fields<'_>) -> Result<Config> {
    let mut config = fields.decoder(Pairs::Halves)?;
    let num_layers = config.layers.len();
    config.set_windows(fields.windows(6, num_layers)?);
    config.set_head_norms(HeadNorms::OfEach);
    let base = fields.number("rope.freq_base_swa").unwrap_or(10_000.0);
    let size = 2 * config.rotations[0].angles.len();
    config.rotations.push(fields.unscaled(Pairs::Halves, size, base, ANGLES[1])?);
    config.embedding_scale = (config.hidden_size as f32).sqrt();
    config.logit_cap = fields.positive("final_logit_softcapping");
    let of_27b = fields.number("attention.scale").is_none() && num_layers == 62;
    for layer in &mut config.layers {
        layer.norms = Norms::AROUND;
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            dense.activation = Activation::Gelu;
        }
        layer.set_attention(|attention| {
            attention.rotation = Some(usize::from(attention.window.is_some()));
            if of_27b {
                // It alone divides by another size than that of a head.
                let size = config.hidden_size / attention.num_heads;
                attention.scale = 1.0 / (size as f32).sqrt();
            }
        });
    }
    Ok(config)
}

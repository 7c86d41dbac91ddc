//! Architectures that are computed, and the checks of what their files describe.

use super::config::{AttentionConfig, Config, DeltaConfig, Mixer};
use super::families::DECODERS;
use super::fields::{Family, Fields};
use super::hybrids::HYBRIDS;
use super::mixtures::MIXTURES;
use crate::error::Result;
use crate::gguf::file::Gguf;

/// The most inputs that an output of a convolution depends on.
const MAX_KERNEL_SIZE: usize = 64;
/// The sizes of a head.
const HEAD_SIZES: std::ops::RangeInclusive<usize> = 16..=1024;

/// All families, by `general.architecture`.
fn families() -> impl Iterator<Item = &'static (&'static str, Family)> {
    DECODERS.iter().chain(&MIXTURES).chain(&HYBRIDS)
}

impl Config {
    /// The values of `general.architecture` that are computed.
    pub fn architectures() -> impl Iterator<Item = &'static str> {
        families().map(|(name, _)| *name)
    }

    /// Reads the description of the model of a file.
    pub(crate) fn read(file: &Gguf) -> Result<Self> {
        let architecture = file.text("general.architecture").unwrap_or_default();
        let Some((_, family)) = families().find(|(name, _)| *name == architecture) else {
            return Err(file.unsupported(format!("has the architecture {architecture:?}")));
        };
        let config = family(&Fields { file, architecture })?;
        match config.layers.iter().find_map(|layer| config.fault(&layer.mixer)) {
            None => Ok(config),
            Some(reason) => Err(file.unsupported(format!("has {reason}"))),
        }
    }

    /// The first setting of a mixer that kernels do not compute.
    fn fault(&self, mixer: &Mixer) -> Option<&'static str> {
        match mixer {
            Mixer::Attention(attention) => self.attention_fault(attention),
            Mixer::ShortConvolution(convolution) => kernel_fault(convolution.kernel_size),
            Mixer::GatedDelta(DeltaConfig { memory, kernel_size }) => {
                heads_fault(memory.num_heads, memory.num_key_heads)
                    .or_else(|| size_fault(memory.head_size))
                    .or_else(|| kernel_fault(*kernel_size))
            }
        }
    }

    fn attention_fault(&self, attention: &AttentionConfig) -> Option<&'static str> {
        let shape =
            |layer: &AttentionConfig| (layer.num_kv_heads, layer.head_size, layer.value_size);
        let shares_keys = match attention.keys_of.map(|layer| &self.layers[layer].mixer) {
            Some(Mixer::Attention(source)) => shape(source) == shape(attention),
            Some(_) => false,
            None => true,
        };
        let rotation = attention.rotation.and_then(|rotation| self.rotations.get(rotation));
        let rotated = rotation.map_or(0, |rotation| 2 * rotation.angles.len());
        heads_fault(attention.num_heads, attention.num_kv_heads)
            .or((!shares_keys).then_some("layers that attend to keys of another shape"))
            .or((rotated > attention.head_size)
                .then_some("rotations of more dimensions than heads have"))
            .or_else(|| size_fault(attention.head_size))
            .or_else(|| size_fault(attention.value_size))
    }
}

fn heads_fault(num_heads: usize, num_key_heads: usize) -> Option<&'static str> {
    match num_key_heads {
        0 => Some("layers without keys"),
        _ if !num_heads.is_multiple_of(num_key_heads) => {
            Some("a number of heads that is not a multiple of its key heads")
        }
        _ => None,
    }
}

fn size_fault(size: usize) -> Option<&'static str> {
    let is_usual = size.is_multiple_of(16) && HEAD_SIZES.contains(&size);
    (!is_usual).then_some("heads whose size is not a multiple of 16, from 16 to 1024")
}

fn kernel_fault(size: usize) -> Option<&'static str> {
    (size > MAX_KERNEL_SIZE).then_some("a long convolution")
}

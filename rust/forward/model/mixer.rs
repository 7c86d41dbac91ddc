//! Parts of layers that bring the states of other tokens to a token.

use super::cache::Cache;
use super::config::{Config, Mixer};
use super::gated_delta::GatedDelta;
use super::load::{Loader, Model};
use super::pass::{PassChunk, Scratch};
use super::self_attention::SelfAttention;
use super::short_convolution::ShortConvolution;
use crate::error::Result;

#[derive(Debug)]
pub(crate) enum MixerWeights {
    Attention(SelfAttention),
    ShortConvolution(ShortConvolution),
    GatedDelta(GatedDelta),
}

impl MixerWeights {
    pub(crate) fn load(loader: &mut Loader<'_>, config: &Config, number: usize) -> Result<Self> {
        match &config.layers[number].mixer {
            Mixer::Attention(attention) => {
                let of = SelfAttention::load(loader, config.hidden_size, attention, number);
                of.map(Self::Attention)
            }
            Mixer::ShortConvolution(of) => {
                let of = ShortConvolution::load(loader, config.hidden_size, *of, number);
                of.map(Self::ShortConvolution)
            }
            Mixer::GatedDelta(of) => {
                GatedDelta::load(loader, config, *of, number).map(Self::GatedDelta)
            }
        }
    }

    /// Writes what is added to the states, of `scratch.normed` into `scratch.added`.
    pub(crate) fn forward(
        &self,
        model: &Model,
        number: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        scratch: &mut Scratch,
    ) {
        match self {
            Self::Attention(of) => of.forward(model, number, cache, chunk, scratch),
            Self::ShortConvolution(of) => of.forward(model, number, cache, chunk, scratch),
            Self::GatedDelta(of) => of.forward(model, number, cache, chunk, scratch),
        }
    }
}

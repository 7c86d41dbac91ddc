//! Parts of layers that bring the states of other tokens to a token.
//!
//! Each projects the states, mixes what it has projected with earlier tokens, and projects the result to states.

use super::cache::Cache;
use super::chunk::PassChunk;
use super::config::{Config, LayerConfig, Mixer};
use super::gated_delta::GatedDelta;
use super::linear::LinearLayer;
use super::loader::Loader;
use super::operations::Scratch;
use super::self_attention::SelfAttention;
use super::short_convolution::ShortConvolution;
use crate::error::Result;

/// The weights of the mixer of a layer.
#[derive(Debug)]
pub(crate) struct MixerWeights {
    /// From states to what is mixed.
    projection: LinearLayer,
    /// The computation between the projections.
    core: Core,
    /// From what was mixed to states.
    output: LinearLayer,
}

/// The kinds of mixers.
#[derive(Debug)]
enum Core {
    Attention(SelfAttention),
    ShortConvolution(ShortConvolution),
    GatedDelta(GatedDelta),
}

impl MixerWeights {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        config: &Config,
        layer: &LayerConfig,
    ) -> Result<Self> {
        let hidden = config.hidden_size;
        let ([projection, output], core) = match &layer.mixer {
            Mixer::Attention(attention) => (
                SelfAttention::projections(loader, hidden, attention)?,
                Core::Attention(SelfAttention::load(loader, attention)?),
            ),
            Mixer::ShortConvolution(convolution) => (
                ShortConvolution::projections(loader, hidden)?,
                Core::ShortConvolution(ShortConvolution::load(loader, hidden, *convolution)?),
            ),
            Mixer::GatedDelta(delta) => (
                GatedDelta::projections(loader, hidden, *delta)?,
                Core::GatedDelta(GatedDelta::load(loader, *delta)?),
            ),
        };
        Ok(Self { projection, core, output })
    }

    /// Writes what is added to the states, of `scratch.normed` into `scratch.added`; `layer` is the index of the layer.
    pub(crate) fn forward(
        &self,
        layer: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        scratch: &mut Scratch,
    ) {
        let Scratch { prepared, normed, projected, mixed, added, .. } = scratch;
        chunk.ops.linear(&self.projection, normed, prepared, projected);
        match &self.core {
            Core::Attention(core) => core.mix(layer, cache, chunk, projected, mixed),
            Core::ShortConvolution(core) => core.mix(layer, cache, chunk, projected, mixed),
            Core::GatedDelta(core) => core.mix(layer, cache, chunk, projected, mixed),
        }
        chunk.ops.linear(&self.output, mixed, prepared, added);
    }
}

//! The weights of a layer, and its pass over the states of some tokens.

use std::f32::consts::FRAC_1_SQRT_2;

use super::cache::Cache;
use super::chunk::PassChunk;
use super::config::{Config, LayerConfig};
use super::elementwise::{add, scale};
use super::feed_forward::FeedForwardWeights;
use super::layer_inputs::LayerInput;
use super::loader::Loader;
use super::low_rank::LowRank;
use super::mixer::MixerWeights;
use super::operations::{Operations, Scratch};
use super::streams::StreamMixing;
use crate::error::Result;

/// The weights of a layer.
#[derive(Debug)]
pub(crate) struct DecoderBlock {
    /// The norms around the mixer.
    mixer_norms: PartNorms,
    /// The part that brings the states of other tokens to a token.
    mixer: MixerWeights,
    /// A product that is added after the mixer.
    low_rank: Option<LowRank>,
    /// The norms around the feed-forward part.
    feed_forward_norms: PartNorms,
    /// The part that is computed for each token alone.
    feed_forward: FeedForwardWeights,
    /// The weights by which the layer mixes streams, if the model has several.
    streams: Option<StreamMixing>,
    /// The weights of the input that the layer has for a token.
    layer_input: Option<LayerInput>,
    /// The factor of what the mixer and the feed-forward part add to the states.
    residual_scale: f32,
    /// The factor of the states after the layer.
    scale: Option<f32>,
}

/// The weights of the norms before and after a part of a layer, `(hidden_size,)`.
#[derive(Debug)]
struct PartNorms {
    before: Option<Vec<f32>>,
    after: Option<Vec<f32>>,
}

/// The states of some tokens, which layers read and write.
pub(crate) struct LayerStates {
    /// `(num_tokens, hidden_size)`.
    pub(crate) active: Vec<f32>,
    /// All streams, of which `active` is the first one as a layer sees it; none if there is only that.
    pub(crate) streams: Vec<Vec<f32>>,
    /// For each layer, `(num_tokens, layer_input_size)`.
    pub(crate) inputs: Vec<Vec<f32>>,
}

impl PartNorms {
    fn load(
        loader: &mut Loader<'_>,
        [before, after]: [Option<&str>; 2],
        hidden: usize,
    ) -> Result<Self> {
        let mut norm = |name: Option<&str>| {
            name.map(|name| loader.vector(&format!("{name}.weight"), hidden)).transpose()
        };
        Ok(Self { before: norm(before)?, after: norm(after)? })
    }

    /// Makes the states the inputs of the part.
    fn begin(&self, ops: Operations, states: &[f32], scratch: &mut Scratch) {
        match &self.before {
            Some(norm) => ops.normalize(states, norm, &mut scratch.normed),
            None => copy(states, &mut scratch.normed),
        }
    }

    /// Adds the outputs of the part to the states, times a factor.
    fn end(&self, ops: Operations, states: &mut [f32], by: f32, scratch: &mut Scratch) {
        let Scratch { added, normed, .. } = scratch;
        let added = if let Some(norm) = &self.after {
            ops.normalize(added, norm, normed);
            normed
        } else {
            added
        };
        scale(added, by);
        add(states, added);
    }
}

impl DecoderBlock {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        config: &Config,
        layer: &LayerConfig,
    ) -> Result<Self> {
        let (hidden, norms) = (config.hidden_size, layer.norms);
        let low_rank = layer.has_low_rank.then(|| LowRank::load(loader, hidden));
        let low_rank = low_rank.transpose()?;
        let streams = config.num_streams.map(|num| StreamMixing::load(loader, hidden, num));
        let streams = streams.transpose()?;
        let input = config.layer_input_size;
        let input = input.map(|size| LayerInput::load(loader, hidden, size));
        let scale = loader.optional("layer_output_scale.weight", 1)?;
        let mixer_norms = [norms.before_mixer, norms.after_mixer];
        let feed_forward_norms = [norms.before_feed_forward, norms.after_feed_forward];
        Ok(Self {
            mixer_norms: PartNorms::load(loader, mixer_norms, hidden)?,
            mixer: MixerWeights::load(loader, config, layer)?,
            low_rank,
            feed_forward_norms: PartNorms::load(loader, feed_forward_norms, hidden)?,
            feed_forward: FeedForwardWeights::load(loader, config, layer)?,
            streams,
            layer_input: input.transpose()?,
            residual_scale: layer.residual_scale,
            scale: scale.map(|scale| scale[0]),
        })
    }

    /// Changes the states of the tokens of a chunk; `layer` is the index of this layer.
    pub(crate) fn forward(
        &self,
        layer: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        states: &mut LayerStates,
        scratch: &mut Scratch,
    ) {
        let LayerStates { active, streams, inputs } = states;
        let (ops, by) = (chunk.ops, self.residual_scale);
        if let Some(mixing) = &self.streams {
            mixing.predict(ops, streams, scratch);
            active.clone_from(&streams[0]);
        }
        self.mixer_norms.begin(ops, active, scratch);
        let low_rank = self.low_rank.as_ref().map(|product| product.forward(ops, scratch));
        self.mixer.forward(layer, cache, chunk, scratch);
        self.mixer_norms.end(ops, active, by, scratch);
        if let Some(low_rank) = low_rank {
            add(active, &low_rank);
            scale(active, FRAC_1_SQRT_2);
        }
        self.feed_forward_norms.begin(ops, active, scratch);
        self.feed_forward.forward(ops, active, scratch);
        self.feed_forward_norms.end(ops, active, by, scratch);
        if let Some(mixing) = &self.streams {
            mixing.correct(ops, active, streams, scratch);
        }
        if let Some(input) = &self.layer_input {
            let is_alone = self.streams.is_none();
            if is_alone {
                copy(active, &mut scratch.normed);
            }
            input.forward(ops, &inputs[layer], scratch);
            let changed = streams.iter_mut().skip(1).chain(is_alone.then_some(active));
            changed.for_each(|states| add(states, &scratch.added));
        }
        if let Some(by) = self.scale {
            scale(&mut states.active, by);
        }
    }
}

fn copy(states: &[f32], to: &mut Vec<f32>) {
    to.clear();
    to.extend_from_slice(states);
}

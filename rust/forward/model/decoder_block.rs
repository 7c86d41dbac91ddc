//! The weights of a layer, and its pass over the states of some tokens.

use std::f32::consts::FRAC_1_SQRT_2;

use super::cache::Cache;
use super::config::Config;
use super::elementwise::{add, scale};
use super::feed_forward::FeedForwardWeights;
use super::layer_inputs::LayerInput;
use super::load::{Loader, Model};
use super::low_rank::LowRank;
use super::mixer::MixerWeights;
use super::pass::{PassChunk, Scratch};
use super::streams::StreamMixing;
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct DecoderBlock {
    before_mixer: Option<Vec<f32>>,
    mixer: MixerWeights,
    after_mixer: Option<Vec<f32>>,
    low_rank: Option<LowRank>,
    before_feed_forward: Option<Vec<f32>>,
    feed_forward: FeedForwardWeights,
    after_feed_forward: Option<Vec<f32>>,
    streams: Option<StreamMixing>,
    layer_input: Option<LayerInput>,
    /// Times the states after the layer.
    scale: Option<f32>,
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

impl DecoderBlock {
    pub(crate) fn load(loader: &mut Loader<'_>, config: &Config, number: usize) -> Result<Self> {
        let (of_layer, hidden) = (&config.layers[number], config.hidden_size);
        let norms = of_layer.norms;
        let norm = |name: Option<&str>, loader: &mut Loader<'_>| {
            let name = name.map(|name| format!("blk.{number}.{name}.weight"));
            name.map(|name| loader.vector(&name, hidden)).transpose()
        };
        let low_rank = of_layer.has_low_rank.then(|| LowRank::load(loader, hidden, number));
        let low_rank = low_rank.transpose()?;
        let streams = config.num_streams.map(|of| StreamMixing::load(loader, hidden, of, number));
        let input = config.layer_input_size;
        let input = input.map(|size| LayerInput::load(loader, hidden, size, number));
        let scale = loader.optional(&format!("blk.{number}.layer_output_scale.weight"), 1)?;
        Ok(Self {
            before_mixer: norm(norms.before_mixer, loader)?,
            mixer: MixerWeights::load(loader, config, number)?,
            after_mixer: norm(norms.after_mixer, loader)?,
            low_rank,
            before_feed_forward: norm(norms.before_feed_forward, loader)?,
            feed_forward: FeedForwardWeights::load(loader, config, number)?,
            after_feed_forward: norm(norms.after_feed_forward, loader)?,
            streams: streams.transpose()?,
            layer_input: input.transpose()?,
            scale: scale.map(|scale| scale[0]),
        })
    }

    pub(crate) fn forward(
        &self,
        model: &Model,
        number: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        states: &mut LayerStates,
        scratch: &mut Scratch,
    ) {
        let LayerStates { active, streams, inputs } = states;
        let (options, by) = (chunk.options, model.config.layers[number].residual_scale);
        if let Some(of) = &self.streams {
            of.predict(model, options, streams, scratch);
            active.clone_from(&streams[0]);
        }
        begin(model, active, self.before_mixer.as_ref(), scratch);
        let low_rank = self.low_rank.as_ref().map(|of| of.forward(model, options, scratch));
        self.mixer.forward(model, number, cache, chunk, scratch);
        end(model, active, self.after_mixer.as_ref(), by, scratch);
        if let Some(low_rank) = low_rank {
            add(active, &low_rank);
            scale(active, FRAC_1_SQRT_2);
        }
        begin(model, active, self.before_feed_forward.as_ref(), scratch);
        self.feed_forward.forward(model.with, options, scratch);
        end(model, active, self.after_feed_forward.as_ref(), by, scratch);
        if let Some(of) = &self.streams {
            of.correct(model, options, active, streams, scratch);
        }
        if let Some(of) = &self.layer_input {
            let is_alone = self.streams.is_none();
            if is_alone {
                begin(model, active, None, scratch);
            }
            of.forward(model, options, &inputs[number], scratch);
            let changed = streams.iter_mut().skip(1).chain(is_alone.then_some(active));
            changed.for_each(|states| add(states, &scratch.added));
        }
        if let Some(by) = self.scale {
            scale(&mut states.active, by);
        }
    }
}

/// Makes the states the inputs of a part of a layer.
fn begin(model: &Model, states: &[f32], norm: Option<&Vec<f32>>, scratch: &mut Scratch) {
    if let Some(norm) = norm {
        model.normalize(states, norm, &mut scratch.normed);
    } else {
        scratch.normed.clear();
        scratch.normed.extend_from_slice(states);
    }
}

/// Adds the outputs of a part of a layer to the states.
fn end(model: &Model, states: &mut [f32], norm: Option<&Vec<f32>>, by: f32, scratch: &mut Scratch) {
    let Scratch { added, normed, .. } = scratch;
    let added = if let Some(norm) = norm {
        model.normalize(added, norm, normed);
        normed
    } else {
        added
    };
    scale(added, by);
    add(states, added);
}

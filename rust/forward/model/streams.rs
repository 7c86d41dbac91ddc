//! Several streams of states, of which layers compute the first and mixtures the others (`AltUp`, arXiv 2301.13310).

use super::elementwise::{add, scale};
use super::layer::LinearLayer;
use super::load::{Loader, Model};
use super::pass::{PassOptions, Scratch, apply};
use crate::error::Result;

/// Products of the other streams with the embeddings, and of the last states with them.
#[derive(Debug)]
pub(crate) struct Streams {
    spread: Vec<LinearLayer>,
    merge: Vec<LinearLayer>,
}

/// The weights by which a layer mixes the streams.
#[derive(Debug)]
pub(crate) struct StreamMixing {
    number: usize,
    router: LinearLayer,
    router_norm: Vec<f32>,
    /// For each pair of streams, the sums of what the router states.
    predict: Vec<f32>,
    /// For each stream.
    correct: Vec<f32>,
    /// Times the first stream where the input of the layer is added.
    scale: Vec<f32>,
}

impl Streams {
    pub(crate) fn load(loader: &mut Loader<'_>, hidden: usize, number: usize) -> Result<Self> {
        let mut of = |name: &str| -> Result<Vec<LinearLayer>> {
            let matrices = loader.matrices(name, number - 1, [hidden, hidden])?;
            Ok(matrices.into_iter().map(|of| loader.pack(&[of], hidden)).collect())
        };
        Ok(Self { spread: of("altup_proj.weight")?, merge: of("altup_unembd_proj.weight")? })
    }

    /// Returns all streams of some embeddings.
    pub(crate) fn spread(
        &self,
        embeddings: &[f32],
        options: PassOptions<'_>,
        scratch: &mut Scratch,
    ) -> Vec<Vec<f32>> {
        let of_stream = |layer: &LinearLayer| {
            let Scratch { prepared, down, .. } = &mut *scratch;
            apply(layer, embeddings, options, prepared, down);
            equalize(embeddings, down, layer.num_outputs);
            down.clone()
        };
        let others: Vec<_> = self.spread.iter().map(of_stream).collect();
        [embeddings.to_vec()].into_iter().chain(others).collect()
    }

    /// Returns the mean of all streams.
    pub(crate) fn merge(
        &self,
        streams: &[Vec<f32>],
        options: PassOptions<'_>,
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let mut merged = streams[0].clone();
        for (layer, states) in self.merge.iter().zip(&streams[1..]) {
            let Scratch { prepared, down, .. } = scratch;
            apply(layer, states, options, prepared, down);
            equalize(&streams[0], down, layer.num_outputs);
            add(&mut merged, down);
        }
        scale(&mut merged, 1.0 / streams.len() as f32);
        merged
    }
}

impl StreamMixing {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        hidden: usize,
        number: usize,
        layer: usize,
    ) -> Result<Self> {
        let of = |part: &str| format!("blk.{layer}.altup_{part}");
        let router = [(of("router"), number)];
        let (predict, correct) = (of("predict_coef.weight"), of("correct_coef.weight"));
        Ok(Self {
            number,
            router: loader.linear(&router, hidden)?,
            router_norm: loader.vector(&of("router_norm.weight"), hidden)?,
            predict: loader.table(&predict, number * number, number)?.numbers(),
            correct: loader.table(&correct, number, number)?.numbers(),
            scale: loader.vector(&of("correct_scale.weight"), hidden)?,
        })
    }

    /// Returns the numbers of the router for each token of the first stream, `(num_tokens, number)`.
    fn route(
        &self,
        model: &Model,
        options: PassOptions<'_>,
        states: &[f32],
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let Scratch { prepared, normed, logits, .. } = scratch;
        model.normalize(states, &self.router_norm, normed);
        scale(normed, 1.0 / model.config.hidden_size as f32);
        apply(&self.router, normed, options, prepared, logits);
        logits.iter().map(|logit| logit.tanh()).collect()
    }

    /// Adds sums of all streams to each.
    pub(crate) fn predict(
        &self,
        model: &Model,
        options: PassOptions<'_>,
        streams: &mut [Vec<f32>],
        scratch: &mut Scratch,
    ) {
        let (hidden, number) = (model.config.hidden_size, self.number);
        let routes = self.route(model, options, &streams[0], scratch);
        for (token, routes) in routes.chunks_exact(number).enumerate() {
            let place = token * hidden..(token + 1) * hidden;
            let before: Vec<Vec<f32>> =
                streams.iter().map(|states| states[place.clone()].to_vec()).collect();
            let weights = self.predict.chunks_exact(number).map(|of| product(of, routes));
            let weights: Vec<f32> = weights.collect();
            for (states, weights) in streams.iter_mut().zip(weights.chunks_exact(number)) {
                for (before, weight) in before.iter().zip(weights) {
                    let states = states[place.clone()].iter_mut().zip(before);
                    states.for_each(|(state, before)| *state += weight * before);
                }
            }
        }
    }

    /// Adds what the layer has changed in the first stream to each; `scratch.normed` becomes the first one, scaled.
    pub(crate) fn correct(
        &self,
        model: &Model,
        options: PassOptions<'_>,
        computed: &[f32],
        streams: &mut [Vec<f32>],
        scratch: &mut Scratch,
    ) {
        let (hidden, number) = (model.config.hidden_size, self.number);
        let routes = self.route(model, options, computed, scratch);
        let changes: Vec<f32> = computed.iter().zip(&streams[0]).map(|(a, b)| a - b).collect();
        for (token, routes) in routes.chunks_exact(number).enumerate() {
            let place = token * hidden..(token + 1) * hidden;
            for (states, of) in streams.iter_mut().zip(self.correct.chunks_exact(number)) {
                let weight = 1.0 + product(of, routes);
                let states = states[place.clone()].iter_mut().zip(&changes[place.clone()]);
                states.for_each(|(state, change)| *state += weight * change);
            }
        }
        scratch.normed.clone_from(&streams[0]);
        for states in scratch.normed.chunks_exact_mut(hidden) {
            states.iter_mut().zip(&self.scale).for_each(|(state, scale)| *state *= scale);
        }
    }
}

/// Gives each token of `states` the root mean square that it has in `first`.
fn equalize(first: &[f32], states: &mut [f32], hidden: usize) {
    let mean = |states: &[f32]| product(states, states) / hidden as f32;
    for (first, states) in first.chunks_exact(hidden).zip(states.chunks_exact_mut(hidden)) {
        let by = mean(first).sqrt() / mean(states).max(1e-5).sqrt();
        scale(states, by);
    }
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

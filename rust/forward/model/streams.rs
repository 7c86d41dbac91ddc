//! Several streams of states, of which layers compute the first and mixtures the others (`AltUp`, arXiv 2301.13310).

use super::elementwise::{add, scale};
use super::linear::LinearLayer;
use super::loader::Loader;
use super::operations::{Operations, Scratch};
use crate::error::Result;

/// Products of the other streams with the embeddings, and of the last states with them.
#[derive(Debug)]
pub(crate) struct Streams {
    /// From embeddings to each other stream.
    spread: Vec<LinearLayer>,
    /// From each other stream to what is added to the first.
    merge: Vec<LinearLayer>,
}

/// The weights by which a layer mixes the streams.
#[derive(Debug)]
pub(crate) struct StreamMixing {
    /// The number of streams.
    num_streams: usize,
    /// From the first stream to a number for each stream.
    router: LinearLayer,
    /// The weights of the norm before the router, `(hidden_size,)`.
    router_norm: Vec<f32>,
    /// The factors of the router's numbers before the layer, `(num_streams, num_streams, num_streams)`: the weight of
    /// the second stream in the first one is their product with the numbers of the router.
    predict: Vec<f32>,
    /// The factors of the router's numbers after the layer, `(num_streams, num_streams)`.
    correct: Vec<f32>,
    /// The factors of the first stream where the input of the layer is added, `(hidden_size,)`.
    scale: Vec<f32>,
}

impl Streams {
    pub(crate) fn load(loader: &mut Loader<'_>, hidden: usize, num_streams: usize) -> Result<Self> {
        let mut layers = |name: &str| -> Result<Vec<LinearLayer>> {
            let matrices = loader.matrices(name, num_streams - 1, [hidden, hidden])?;
            Ok(matrices.into_iter().map(|matrix| loader.pack(&[matrix], hidden)).collect())
        };
        Ok(Self {
            spread: layers("altup_proj.weight")?,
            merge: layers("altup_unembd_proj.weight")?,
        })
    }

    /// Returns all streams of some embeddings.
    pub(crate) fn spread(
        &self,
        ops: Operations,
        embeddings: &[f32],
        scratch: &mut Scratch,
    ) -> Vec<Vec<f32>> {
        let stream = |layer: &LinearLayer| {
            let Scratch { prepared, down, .. } = &mut *scratch;
            ops.linear(layer, embeddings, prepared, down);
            equalize(embeddings, down, layer.num_outputs);
            down.clone()
        };
        let others: Vec<_> = self.spread.iter().map(stream).collect();
        [embeddings.to_vec()].into_iter().chain(others).collect()
    }

    /// Returns the mean of all streams.
    pub(crate) fn merge(
        &self,
        ops: Operations,
        streams: &[Vec<f32>],
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let mut merged = streams[0].clone();
        for (layer, states) in self.merge.iter().zip(&streams[1..]) {
            let Scratch { prepared, down, .. } = scratch;
            ops.linear(layer, states, prepared, down);
            equalize(&streams[0], down, layer.num_outputs);
            add(&mut merged, down);
        }
        scale(&mut merged, 1.0 / streams.len() as f32);
        merged
    }
}

impl StreamMixing {
    pub(crate) fn load(loader: &mut Loader<'_>, hidden: usize, num_streams: usize) -> Result<Self> {
        let num = num_streams;
        Ok(Self {
            num_streams,
            router: loader.linear(&[("altup_router", num)], hidden)?,
            router_norm: loader.vector("altup_router_norm.weight", hidden)?,
            predict: loader.table("altup_predict_coef.weight", num * num, num)?.numbers(),
            correct: loader.table("altup_correct_coef.weight", num, num)?.numbers(),
            scale: loader.vector("altup_correct_scale.weight", hidden)?,
        })
    }

    /// Returns the numbers of the router for each token of the first stream, `(num_tokens, num_streams)`.
    fn route(&self, ops: Operations, states: &[f32], scratch: &mut Scratch) -> Vec<f32> {
        let Scratch { prepared, normed, logits, .. } = scratch;
        ops.normalize(states, &self.router_norm, normed);
        scale(normed, 1.0 / self.router.num_inputs as f32);
        ops.linear(&self.router, normed, prepared, logits);
        logits.iter().map(|logit| logit.tanh()).collect()
    }

    /// Adds sums of all streams to each.
    pub(crate) fn predict(&self, ops: Operations, streams: &mut [Vec<f32>], scratch: &mut Scratch) {
        let (hidden, num_streams) = (self.router.num_inputs, self.num_streams);
        let routes = self.route(ops, &streams[0], scratch);
        for (token, routes) in routes.chunks_exact(num_streams).enumerate() {
            let range = token * hidden..(token + 1) * hidden;
            let before: Vec<Vec<f32>> =
                streams.iter().map(|states| states[range.clone()].to_vec()).collect();
            let factors = self.predict.chunks_exact(num_streams);
            let weights: Vec<f32> = factors.map(|factors| product(factors, routes)).collect();
            for (states, weights) in streams.iter_mut().zip(weights.chunks_exact(num_streams)) {
                for (before, weight) in before.iter().zip(weights) {
                    let states = states[range.clone()].iter_mut().zip(before);
                    states.for_each(|(state, before)| *state += weight * before);
                }
            }
        }
    }

    /// Adds what the layer has changed in the first stream to each; `scratch.normed` becomes the first one, scaled.
    pub(crate) fn correct(
        &self,
        ops: Operations,
        computed: &[f32],
        streams: &mut [Vec<f32>],
        scratch: &mut Scratch,
    ) {
        let (hidden, num_streams) = (self.router.num_inputs, self.num_streams);
        let routes = self.route(ops, computed, scratch);
        let changes: Vec<f32> = computed.iter().zip(&streams[0]).map(|(a, b)| a - b).collect();
        for (token, routes) in routes.chunks_exact(num_streams).enumerate() {
            let range = token * hidden..(token + 1) * hidden;
            for (states, factors) in streams.iter_mut().zip(self.correct.chunks_exact(num_streams))
            {
                let weight = 1.0 + product(factors, routes);
                let states = states[range.clone()].iter_mut().zip(&changes[range.clone()]);
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

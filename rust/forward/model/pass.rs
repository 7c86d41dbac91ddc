//! A pass: the logits of some tokens of some sequences.

use super::attention::Visible;
use super::cache::{Cache, CacheRow};
use super::decoder_block::LayerStates;
use super::elementwise::{Normalize, scale};
use super::layer::LinearLayer;
use super::load::Model;
use super::recurrent::PassPart;
use super::watch::Watch;
use crate::error::{Error, Result};
use crate::kernel::states::{Activations, States};
use crate::parallel;

/// Tokens that are computed at once; more of them take no less time each.
const CHUNK: usize = 256;

/// Tokens that follow the committed ones of a row.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub row: usize,
    pub tokens: &'a [u32],
    /// The place of the parent of each token among them, or -1: the last committed token. Parents come first.
    /// `None`: each token follows the one before.
    pub parents: Option<&'a [i32]>,
    /// The number of tokens, the last ones, whose logits are computed.
    pub num_logits: usize,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct PassOptions<'a> {
    pub activations: Activations,
    /// 0 is as 1.
    pub num_threads: usize,
    /// Lets another thread see the pass, and stop it.
    pub watch: Option<&'a Watch>,
    /// Computes this many of the first layers alone, and the head, to measure their time.
    pub num_layers: Option<usize>,
}

/// A token of a pass.
pub(crate) struct Token {
    pub(crate) row: usize,
    pub(crate) id: u32,
    pub(crate) slot: usize,
    pub(crate) visible: Visible,
    has_logits: bool,
}

/// Tokens that are computed at once.
pub(crate) struct PassChunk<'a> {
    pub(crate) tokens: &'a [Token],
    /// For each rotation and token, the cosines and sines.
    pub(crate) turns: Vec<Vec<Vec<[f32; 2]>>>,
    pub(crate) options: PassOptions<'a>,
}

impl PassChunk<'_> {
    /// The tokens of each row, as a part of its pass, the row, and the states of these tokens.
    pub(crate) fn by_row<'a>(
        &self,
        cache: &Cache,
        states: &'a [f32],
    ) -> Vec<(PassPart, usize, &'a [f32])> {
        let size = states.len() / self.tokens.len();
        let mut rest = states;
        let of_row = |tokens: &[Token]| {
            let (states, others) = rest.split_at(tokens.len() * size);
            rest = others;
            let row = tokens[0].row;
            let CacheRow { length, is_recorded, .. } = cache.rows[row];
            (PassPart { is_first: tokens[0].slot == length, is_recorded }, row, states)
        };
        self.tokens.chunk_by(|a, b| a.row == b.row).map(of_row).collect()
    }
}

/// Numbers between the layers, kept from chunk to chunk.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) prepared: States,
    /// The inputs of a part of a layer.
    pub(crate) normed: Vec<f32>,
    pub(crate) qkv: Vec<f32>,
    pub(crate) attended: Vec<f32>,
    /// The outputs of a part of a layer.
    pub(crate) added: Vec<f32>,
    pub(crate) gate_up: Vec<f32>,
    pub(crate) gated: Vec<f32>,
    /// Logits of routers, and then of the gates of shared experts.
    pub(crate) logits: Vec<f32>,
    /// The inputs and the outputs of the tokens of an expert.
    pub(crate) gathered: Vec<f32>,
    pub(crate) down: Vec<f32>,
}

impl Model {
    /// Computes the logits of tokens, `(sum of num_logits, vocab_size)`, in the order of the inputs.
    ///
    /// Keys and values stay in the cache until the next pass of the row; [`Cache::commit`] makes some of them
    /// part of the sequence. A pass that fails leaves the committed tokens of all rows as they were.
    ///
    /// If the model has a short context and a path of a row is longer, all of its tokens have the rotations of long
    /// texts, committed ones too: these are computed again in the pass that crosses this length, either way.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a token, parent or row that does not exist, [`Error::OutOfMemory`], and
    /// [`Error::Stopped`] by [`PassOptions::watch`].
    pub fn forward(
        &self,
        cache: &mut Cache,
        inputs: &[Input<'_>],
        options: PassOptions<'_>,
    ) -> Result<Vec<f32>> {
        let tokens = self.tokens(cache, inputs)?;
        self.rotate_rows(cache, &tokens, options)?;
        self.pass(cache, inputs, &tokens, options)
    }

    /// Computes the committed tokens of a row again where its text, which now is above the short context or no longer
    /// is, needs other rotations.
    fn rotate_rows(
        &self,
        cache: &mut Cache,
        tokens: &[Token],
        options: PassOptions<'_>,
    ) -> Result<()> {
        for (place, is_long) in self.rotated_rows(cache, tokens) {
            let row = &mut cache.rows[place];
            let committed = &row.tokens[..row.length];
            let input = Input { row: 0, tokens: committed, parents: None, num_logits: 0 };
            let mut other = Cache::new(self, 1, cache.shape.kind);
            other.rows[0].is_long = is_long;
            let tokens = self.tokens(&other, &[input])?;
            self.pass(&mut other, &[input], &tokens, options)?;
            let path: Vec<_> = (0..committed.len()).collect();
            other.commit(0, &path)?;
            std::mem::swap(row, &mut other.rows[0]);
        }
        Ok(())
    }

    /// The rows whose states are of the other length than their texts, and true for those with long texts.
    fn rotated_rows(&self, cache: &Cache, tokens: &[Token]) -> Vec<(usize, bool)> {
        let Some(most) = self.config.short_context else { return Vec::new() };
        let rows = tokens.chunk_by(|a, b| a.row == b.row).map(|tokens| {
            let is_long = tokens.iter().any(|token| token.visible.length() > most);
            (tokens[0].row, is_long)
        });
        rows.filter(|&(row, is_long)| cache.rows[row].is_long != is_long).collect()
    }

    /// Returns the number of committed tokens that a pass computes again.
    ///
    /// # Errors
    /// As of [`forward`](Self::forward).
    pub fn num_repeated(&self, cache: &Cache, inputs: &[Input<'_>]) -> Result<usize> {
        if self.config.short_context.is_none() {
            return Ok(0);
        }
        let rows = self.rotated_rows(cache, &self.tokens(cache, inputs)?);
        Ok(rows.iter().map(|&(row, _)| cache.rows[row].length).sum())
    }

    fn pass(
        &self,
        cache: &mut Cache,
        inputs: &[Input<'_>],
        tokens: &[Token],
        options: PassOptions<'_>,
    ) -> Result<Vec<f32>> {
        for input in inputs {
            cache.reserve(input.row, input.tokens.len())?;
        }
        let num_logits: usize = inputs.iter().map(|input| input.num_logits).sum();
        let mut logits = vec![0.0; num_logits * self.config.vocab_size];
        let mut scratch = Scratch::default();
        let mut rest = logits.as_mut_slice();
        parallel::awake(options.num_threads, || {
            for chunk in tokens.chunks(CHUNK) {
                let number = chunk.iter().filter(|token| token.has_logits).count();
                let (of_chunk, others) = rest.split_at_mut(number * self.config.vocab_size);
                rest = others;
                self.forward_chunk(cache, chunk, options, &mut scratch, of_chunk)?;
            }
            Ok(())
        })?;
        for input in inputs {
            let row = &mut cache.rows[input.row];
            row.num_pending = input.tokens.len();
            if self.config.short_context.is_some() {
                row.tokens.extend_from_slice(input.tokens);
            }
        }
        Ok(logits)
    }

    fn tokens(&self, cache: &Cache, inputs: &[Input<'_>]) -> Result<Vec<Token>> {
        if !cache.is_for(self) {
            return Err(Error::invalid("cache", "must be one of this model"));
        }
        let mut tokens: Vec<Token> =
            Vec::with_capacity(inputs.iter().map(|input| input.tokens.len()).sum());
        for (place, input) in inputs.iter().enumerate() {
            let is_new = inputs[..place].iter().all(|before| before.row != input.row);
            let Some(length) = cache.length(input.row).filter(|_| is_new) else {
                let reason = "must be a row of the cache, and each another one";
                return Err(Error::invalid("row", reason));
            };
            if input.num_logits > input.tokens.len() {
                return Err(Error::invalid("num_logits", "must be at most the number of tokens"));
            }
            if input.parents.is_some_and(|parents| parents.len() != input.tokens.len()) {
                return Err(Error::invalid("parents", "must be as many as tokens"));
            }
            let mut parents = (0..).zip(input.parents.into_iter().flatten());
            if self.config.is_recurrent() && !parents.all(|(place, &parent)| parent == place - 1) {
                let reason = "must be those of a chain, because the model has recurrent states";
                return Err(Error::invalid("parents", reason));
            }
            let first = tokens.len();
            for (place, &token) in input.tokens.iter().enumerate() {
                if token as usize >= self.config.vocab_size {
                    let reason = format!("hold {token}, the vocabulary {}", self.config.vocab_size);
                    return Err(Error::invalid("tokens", reason));
                }
                let parent = match input.parents.map(|parents| parents[place]) {
                    None => place.checked_sub(1),
                    Some(-1) => None,
                    Some(parent) => {
                        let parent = usize::try_from(parent).ok().filter(|&parent| parent < place);
                        let reason = "must be before their children";
                        Some(parent.ok_or_else(|| Error::invalid("parents", reason))?)
                    }
                };
                let slot = length + place;
                let mut visible = match parent {
                    Some(parent) => tokens[first + parent].visible.clone(),
                    None => Visible { num_straight: length, path: Vec::new() },
                };
                if visible.path.is_empty() && visible.num_straight == slot {
                    visible.num_straight += 1;
                } else {
                    visible.path.push(slot);
                }
                let has_logits = place + input.num_logits >= input.tokens.len();
                tokens.push(Token { row: input.row, id: token, slot, visible, has_logits });
            }
        }
        Ok(tokens)
    }

    fn forward_chunk(
        &self,
        cache: &mut Cache,
        tokens: &[Token],
        options: PassOptions<'_>,
        scratch: &mut Scratch,
        logits: &mut [f32],
    ) -> Result<()> {
        let config = &self.config;
        let mut states = self.begin(tokens, options, scratch);
        let turns = config.rotations.iter().map(|rotation| -> Vec<_> {
            let turns = |token: &Token| {
                rotation.at(token.visible.length() - 1, cache.rows[token.row].is_long)
            };
            tokens.iter().map(turns).collect()
        });
        let chunk = PassChunk { tokens, turns: turns.collect(), options };
        let num_layers = options.num_layers.unwrap_or(self.blocks.len());
        for (number, block) in self.blocks.iter().enumerate().take(num_layers) {
            block.forward(self, number, cache, &chunk, &mut states, scratch);
            if let Some(watch) = options.watch {
                watch.advance(tokens.len())?;
            }
        }
        let asked = |states: &Vec<f32>| -> Vec<f32> {
            let of_tokens = tokens.iter().zip(states.chunks_exact(config.hidden_size));
            let asked = of_tokens.filter(|(token, _)| token.has_logits);
            asked.flat_map(|(_, states)| states).copied().collect()
        };
        let asked = match &self.streams {
            None => asked(&states.active),
            Some(of) => {
                let streams: Vec<_> = states.streams.iter().map(asked).collect();
                of.merge(&streams, options, scratch)
            }
        };
        self.normalize(&asked, &self.norm, &mut scratch.normed);
        let Scratch { prepared, normed, .. } = scratch;
        let PassOptions { activations, num_threads, .. } = options;
        self.head.multiply(normed, activations, num_threads, prepared, logits);
        scale(logits, config.logit_scale);
        if let Some(cap) = config.logit_cap {
            for logit in logits {
                *logit = (*logit / cap).tanh() * cap;
            }
        }
        Ok(())
    }

    /// Returns the states before the first layer.
    fn begin(
        &self,
        tokens: &[Token],
        options: PassOptions<'_>,
        scratch: &mut Scratch,
    ) -> LayerStates {
        let size = self.config.hidden_size;
        let mut active = vec![0.0; tokens.len() * size];
        for (token, states) in tokens.iter().zip(active.chunks_exact_mut(size)) {
            self.embeddings.embed(token.id as usize, states);
            scale(states, self.config.embedding_scale);
        }
        let inputs = self.layer_inputs.as_ref();
        let inputs = inputs.map(|of| of.forward(self, options, tokens, &active, scratch));
        let streams = self.streams.as_ref().map(|of| of.spread(&active, options, scratch));
        let (inputs, streams) = (inputs.unwrap_or_default(), streams.unwrap_or_default());
        LayerStates { active, streams, inputs }
    }

    /// Divides rows of the size of the weights by their root mean squares.
    pub(crate) fn normalize(&self, states: &[f32], weights: &[f32], outputs: &mut Vec<f32>) {
        outputs.resize(states.len(), 0.0);
        let epsilon = self.config.epsilon;
        self.with.run(Normalize { states, weights, epsilon, outputs });
    }
}

/// Writes the outputs of a layer.
pub(crate) fn apply(
    layer: &LinearLayer,
    states: &[f32],
    options: PassOptions<'_>,
    prepared: &mut States,
    outputs: &mut Vec<f32>,
) {
    let num_tokens = states.len() / layer.num_inputs;
    outputs.resize(num_tokens * layer.num_outputs, 0.0);
    layer.multiply(states, options.activations, options.num_threads, prepared, outputs);
}

//! A pass: the logits of some tokens of some sequences.

use super::attention::Visible;
use super::cache::Cache;
use super::chunk::{PassChunk, Token};
use super::decoder_block::LayerStates;
use super::elementwise::scale;
use super::load::Model;
use super::operations::{Operations, Scratch};
use super::watch::Watch;
use crate::error::{Error, Result};
use crate::kernel::states::Activations;
use crate::parallel;

/// The tokens that are computed at once; more of them take no less time each.
const MAX_CHUNK_TOKENS: usize = 256;

/// Tokens that follow the committed ones of a row.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The index of the row in the cache.
    pub row: usize,
    /// The ids in the vocabulary.
    pub tokens: &'a [u32],
    /// The index of the parent of each token among them, or -1: the last committed token. Parents come first.
    /// `None`: each token follows the one before.
    pub parents: Option<&'a [i32]>,
    /// The number of tokens, the last ones, whose logits are computed.
    pub num_logits: usize,
}

/// Options of a pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct PassOptions<'a> {
    /// The precision of the states in products.
    pub activations: Activations,
    /// The number of threads; 0 means one.
    pub num_threads: usize,
    /// Lets another thread see the pass, and stop it.
    pub watch: Option<&'a Watch>,
    /// Computes this many of the first layers alone, and the head, to measure their time.
    pub num_layers: Option<usize>,
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
        for (index, is_long) in self.rotated_rows(cache, tokens) {
            let row = &mut cache.rows[index];
            let committed = &row.tokens[..row.length];
            let input = Input { row: 0, tokens: committed, parents: None, num_logits: 0 };
            let mut other = self.new_cache(1, cache.shape.kind);
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
        let Some(short_context) = self.config.short_context else { return Vec::new() };
        let rows = tokens.chunk_by(|a, b| a.row == b.row).map(|tokens| {
            let is_long = tokens.iter().any(|token| token.visible.length() > short_context);
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
        let mut remaining = logits.as_mut_slice();
        parallel::awake(options.num_threads, || {
            for chunk in tokens.chunks(MAX_CHUNK_TOKENS) {
                let count = chunk.iter().filter(|token| token.has_logits).count();
                let (logits, others) = remaining.split_at_mut(count * self.config.vocab_size);
                remaining = others;
                self.forward_chunk(cache, chunk, options, &mut scratch, logits)?;
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

    /// Returns the tokens of all inputs, which it checks.
    fn tokens(&self, cache: &Cache, inputs: &[Input<'_>]) -> Result<Vec<Token>> {
        if !cache.is_for(&self.config, self.isa) {
            return Err(Error::invalid("cache", "must be one of this model"));
        }
        let num_tokens = inputs.iter().map(|input| input.tokens.len()).sum();
        let mut tokens: Vec<Token> = Vec::with_capacity(num_tokens);
        for (index, input) in inputs.iter().enumerate() {
            let is_new = inputs[..index].iter().all(|before| before.row != input.row);
            let Some(length) = cache.length(input.row).filter(|_| is_new) else {
                let reason = "must be a row of the cache, and each another one";
                return Err(Error::invalid("row", reason));
            };
            self.check(input)?;
            let first = tokens.len();
            for (index, &id) in input.tokens.iter().enumerate() {
                let parent = match input.parents.map(|parents| parents[index]) {
                    None => index.checked_sub(1),
                    Some(parent) => usize::try_from(parent).ok(),
                };
                let slot = length + index;
                let mut visible = match parent {
                    Some(parent) => tokens[first + parent].visible.clone(),
                    None => Visible { num_contiguous: length, path: Vec::new() },
                };
                if visible.path.is_empty() && visible.num_contiguous == slot {
                    visible.num_contiguous += 1;
                } else {
                    visible.path.push(slot);
                }
                let has_logits = index + input.num_logits >= input.tokens.len();
                tokens.push(Token { row: input.row, id, slot, visible, has_logits });
            }
        }
        Ok(tokens)
    }

    /// Checks tokens, parents and the number of logits of an input.
    fn check(&self, input: &Input<'_>) -> Result<()> {
        if input.num_logits > input.tokens.len() {
            return Err(Error::invalid("num_logits", "must be at most the number of tokens"));
        }
        let vocab_size = self.config.vocab_size;
        if let Some(id) = input.tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Error::invalid(
                "tokens",
                format!("hold {id}, the vocabulary {vocab_size}"),
            ));
        }
        let Some(parents) = input.parents else { return Ok(()) };
        if parents.len() != input.tokens.len() {
            return Err(Error::invalid("parents", "must be as many as tokens"));
        }
        if !(0..).zip(parents).all(|(index, parent)| (-1..index).contains(parent)) {
            return Err(Error::invalid("parents", "must be before their children"));
        }
        if self.config.is_recurrent()
            && !(0..).zip(parents).all(|(index, &parent)| parent == index - 1)
        {
            let reason = "must be those of a chain, because the model has recurrent states";
            return Err(Error::invalid("parents", reason));
        }
        Ok(())
    }

    /// Writes the logits of the tokens of a chunk that have some, `(num_logits, vocab_size)`.
    fn forward_chunk(
        &self,
        cache: &mut Cache,
        tokens: &[Token],
        options: PassOptions<'_>,
        scratch: &mut Scratch,
        logits: &mut [f32],
    ) -> Result<()> {
        let config = &self.config;
        let PassOptions { activations, num_threads, .. } = options;
        let ops = Operations { isa: self.isa, activations, num_threads, epsilon: config.epsilon };
        let mut states = self.begin(tokens, ops, scratch);
        let turns = config.rotations.iter().map(|rotation| -> Vec<_> {
            let turns =
                |token: &Token| rotation.at(token.position(), cache.rows[token.row].is_long);
            tokens.iter().map(turns).collect()
        });
        let chunk = PassChunk { tokens, rotations: &config.rotations, turns: turns.collect(), ops };
        let num_layers = options.num_layers.unwrap_or(self.blocks.len());
        for (layer, block) in self.blocks.iter().enumerate().take(num_layers) {
            block.forward(layer, cache, &chunk, &mut states, scratch);
            if let Some(watch) = options.watch {
                watch.advance(tokens.len())?;
            }
        }
        let rows_with_logits = |states: &Vec<f32>| -> Vec<f32> {
            let rows = tokens.iter().zip(states.chunks_exact(config.hidden_size));
            let rows = rows.filter(|(token, _)| token.has_logits);
            rows.flat_map(|(_, states)| states).copied().collect()
        };
        let logit_rows = match &self.streams {
            None => rows_with_logits(&states.active),
            Some(streams) => {
                let rows: Vec<_> = states.streams.iter().map(rows_with_logits).collect();
                streams.merge(ops, &rows, scratch)
            }
        };
        let Scratch { prepared, normed, .. } = scratch;
        ops.normalize(&logit_rows, &self.norm, normed);
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
    fn begin(&self, tokens: &[Token], ops: Operations, scratch: &mut Scratch) -> LayerStates {
        let size = self.config.hidden_size;
        let mut active = vec![0.0; tokens.len() * size];
        for (token, states) in tokens.iter().zip(active.chunks_exact_mut(size)) {
            self.embeddings.embed(token.id as usize, states);
            scale(states, self.config.embedding_scale);
        }
        let inputs = self.layer_inputs.as_ref();
        let inputs = inputs.map(|weights| weights.forward(ops, tokens, &active, scratch));
        let streams = self.streams.as_ref().map(|streams| streams.spread(ops, &active, scratch));
        let (inputs, streams) = (inputs.unwrap_or_default(), streams.unwrap_or_default());
        LayerStates { active, streams, inputs }
    }
}

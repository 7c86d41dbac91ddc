//! A pass: the logits of some tokens of some sequences.

use super::attention::{Attend, Keys, Query, Visible};
use super::cache::Cache;
use super::elementwise::{Gated, Normalize, add};
use super::layer::LinearLayer;
use super::load::{DecoderBlock, Model};
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
}

/// A token of a pass.
struct Token {
    row: usize,
    id: u32,
    slot: usize,
    visible: Visible,
    has_logits: bool,
}

/// Numbers between the layers, kept from chunk to chunk.
#[derive(Default)]
struct Scratch {
    prepared: States,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    added: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
}

impl Model {
    /// Computes the logits of tokens, `(sum of num_logits, vocab_size)`, in the order of the inputs.
    ///
    /// Keys and values stay in the cache until the next pass of the row; [`Cache::commit`] makes some of them
    /// part of the sequence. A pass that fails leaves the committed tokens of all rows as they were.
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
            cache.rows[input.row].num_pending = input.tokens.len();
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
        let mut states = self.embed(tokens);
        let turns = config.rotations.each_ref().map(|rotation| -> Vec<_> {
            tokens.iter().map(|token| rotation.at(token.visible.length() - 1)).collect()
        });
        for (layer, block) in self.blocks.iter().enumerate() {
            let is_local = usize::from(config.is_local[layer]);
            self.normalize(&states, &block.attention_norm, &mut scratch.normed);
            apply(&block.qkv, &scratch.normed, options, &mut scratch.prepared, &mut scratch.qkv);
            self.rotate(block, tokens, is_local, &turns[is_local], &mut scratch.qkv);
            self.attend(cache, layer, tokens, options, scratch);
            let Scratch { prepared, normed, attended, added, gate_up, gated, .. } = &mut *scratch;
            apply(&block.output, attended, options, prepared, added);
            self.add(&mut states, added, block.attention_post_norm.as_ref(), normed);
            self.normalize(&states, &block.feed_forward_norm, normed);
            apply(&block.gate_up, normed, options, prepared, gate_up);
            let size = config.feed_forward_size;
            gated.resize(tokens.len() * size, 0.0);
            self.with.run(Gated { is_gelu: config.is_gelu, inputs: gate_up, size, outputs: gated });
            apply(&block.down, gated, options, prepared, added);
            self.add(&mut states, added, block.feed_forward_post_norm.as_ref(), normed);
            if let Some(watch) = options.watch {
                watch.advance(tokens.len())?;
            }
        }
        let asked = tokens.iter().zip(states.chunks_exact(config.hidden_size));
        let asked: Vec<f32> = asked
            .filter(|(token, _)| token.has_logits)
            .flat_map(|(_, states)| states)
            .copied()
            .collect();
        self.normalize(&asked, &self.norm, &mut scratch.normed);
        let Scratch { prepared, normed, .. } = scratch;
        let PassOptions { activations, num_threads, .. } = options;
        self.head.multiply(normed, activations, num_threads, prepared, logits);
        if let Some(cap) = config.logit_cap {
            for logit in logits {
                *logit = (*logit / cap).tanh() * cap;
            }
        }
        Ok(())
    }

    fn embed(&self, tokens: &[Token]) -> Vec<f32> {
        let size = self.config.hidden_size;
        let mut states = vec![0.0; tokens.len() * size];
        let table = &self.embeddings;
        let length = table.bytes.len() / table.rows.max(1);
        for (token, states) in tokens.iter().zip(states.chunks_exact_mut(size)) {
            let row = &table.bytes[token.id as usize * length..][..length];
            table.kind.dequantize(row, states);
            for state in states {
                *state *= self.config.embedding_scale;
            }
        }
        states
    }

    fn normalize(&self, states: &[f32], weights: &[f32], outputs: &mut Vec<f32>) {
        outputs.resize(states.len(), 0.0);
        let epsilon = self.config.epsilon;
        self.with.run(Normalize { states, weights, epsilon, outputs });
    }

    /// Adds what a layer gives to the states, normalized where the model does that.
    fn add(
        &self,
        states: &mut [f32],
        added: &[f32],
        norm: Option<&Vec<f32>>,
        normed: &mut Vec<f32>,
    ) {
        match norm {
            None => add(states, added),
            Some(norm) => {
                self.normalize(added, norm, normed);
                add(states, normed);
            }
        }
    }

    /// Biases, norms and rotations of queries and keys.
    fn rotate(
        &self,
        block: &DecoderBlock,
        tokens: &[Token],
        is_local: usize,
        turns: &[Vec<[f32; 2]>],
        qkv: &mut [f32],
    ) {
        let [queries, keys, _] = self.config.qkv_sizes();
        let mut normed = Vec::new();
        for (row, turns) in qkv.chunks_exact_mut(qkv.len() / tokens.len()).zip(turns) {
            if let Some(bias) = &block.qkv_bias {
                add(row, bias);
            }
            let heads = row[..queries + keys].chunks_exact_mut(self.config.head_size);
            for (head, of) in heads.enumerate() {
                let is_query = head < self.config.num_heads;
                if let Some(norm) = if is_query { &block.query_norm } else { &block.key_norm } {
                    self.normalize(of, norm, &mut normed);
                    of.copy_from_slice(&normed);
                }
                self.config.rotations[is_local].apply(turns, of);
            }
        }
    }

    /// Puts keys and values into the cache, and attends to what is there.
    fn attend(
        &self,
        cache: &mut Cache,
        layer: usize,
        tokens: &[Token],
        options: PassOptions<'_>,
        scratch: &mut Scratch,
    ) {
        let config = &self.config;
        let shape = cache.shape;
        let [size, of_keys, _] = config.qkv_sizes();
        let width = size + 2 * of_keys;
        for (token, row) in tokens.iter().zip(scratch.qkv.chunks_exact(width)) {
            let (keys, values) = row[size..].split_at(of_keys);
            cache.rows[token.row].put(shape, layer, token.slot, keys, values);
        }
        let cache = &*cache;
        scratch.attended.resize(tokens.len() * size, 0.0);
        let qkv = scratch.qkv.as_slice();
        let of_query = |(place, attended)| {
            let (token, head) = (place / config.num_heads, place % config.num_heads);
            let Token { row, ref visible, .. } = tokens[token];
            let states = &qkv[token * width + head * config.head_size..][..config.head_size];
            let head = head / (config.num_heads / config.num_kv_heads);
            Query { row, head, visible, states, attended }
        };
        let attended = scratch.attended.chunks_exact_mut(config.head_size).enumerate();
        let mut queries: Vec<_> = attended.map(of_query).collect();
        queries.sort_by_key(|query| (query.row, query.head));
        let attend = |queries: &mut [Query<'_>]| {
            let mut scores = Vec::new();
            for queries in queries.chunk_by_mut(|a, b| (a.row, a.head) == (b.row, b.head)) {
                let Query { row, head, .. } = queries[0];
                let end = queries.iter().map(|query| query.visible.end()).max();
                let pages = cache.rows[row].pages(shape, layer, end.unwrap_or(0));
                let window = config.window.filter(|_| config.is_local[layer]);
                let keys =
                    Keys { shape, pages: &pages, window, scale: config.attention_scale, head };
                self.with.run(Attend { keys, queries, scores: &mut scores });
            }
        };
        let most = tokens.last().map_or(0, |token| token.visible.length());
        let is_long = most * tokens.len() * config.num_kv_heads > 1 << 10;
        let num_shares = if is_long { options.num_threads.max(1) } else { 1 };
        let share = queries.len().div_ceil(num_shares).max(1);
        parallel::each(queries.chunks_mut(share).collect(), attend);
    }
}

/// Writes the outputs of a layer.
fn apply(
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

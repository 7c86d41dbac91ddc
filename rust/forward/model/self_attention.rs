//! Attention layers: their weights, and their pass around the kernel of `attention`.

use super::attention::{Attend, Keys, Query, SoftmaxState};
use super::cache::Cache;
use super::chunk::{PassChunk, Token};
use super::config::{AttentionConfig, HeadNorms, Temperature};
use super::elementwise::{Gate, scale};
use super::linear::LinearLayer;
use super::loader::Loader;
use crate::error::Result;
use crate::parallel;

/// The least scores of a pass, of one head of queries for each head of keys, that threads share: fewer take less time
/// than a thread needs to begin.
const MIN_SHARED_SCORES: usize = 1 << 10;

/// Attention between its two projections.
#[derive(Debug)]
pub(crate) struct SelfAttention {
    /// The heads, their sizes and what is done to them.
    config: AttentionConfig,
    /// The weights of the norms of queries and of keys: of each head `(head_size,)`, or of all of them.
    head_norms: Option<[Vec<f32>; 2]>,
    /// The weights of the norm of values, ones, `(value_size,)`.
    value_norm: Option<Vec<f32>>,
    /// The score of no token, `(num_heads,)`.
    sinks: Option<Vec<f32>>,
}

impl SelfAttention {
    /// Queries, keys, values and gates; and the output.
    pub(crate) fn projections(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: &AttentionConfig,
    ) -> Result<[LinearLayer; 2]> {
        let [queries, keys, values] = config.sizes();
        let projection = if config.has_gates {
            Self::load_gated(loader, hidden, config)?
        } else if loader.has("attn_qkv.weight") {
            loader.linear(&[("attn_qkv", queries + keys + values)], hidden)?
        } else if config.keys_of.is_some() {
            // Files of some converters have unused keys and values.
            for name in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
                loader.skip(name);
            }
            loader.linear(&[("attn_q", queries)], hidden)?
        } else {
            let has_values = !config.has_value_norms || loader.has("attn_v.weight");
            let name = if has_values { "attn_v" } else { "attn_k" };
            loader.linear(&[("attn_q", queries), ("attn_k", keys), (name, values)], hidden)?
        };
        let num_attended = config.num_heads * config.value_size;
        Ok([projection, loader.linear(&[("attn_output", hidden)], num_attended)?])
    }

    /// Queries, keys, values and gates: files have the gates of a head after its queries.
    fn load_gated(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: &AttentionConfig,
    ) -> Result<LinearLayer> {
        let (size, [queries, keys, values]) = (config.head_size, config.sizes());
        let both = loader.matrix("attn_q.weight", 2 * queries, hidden)?;
        let rows =
            |first: usize| (0..queries).map(move |row| 2 * (row - row % size) + first + row % size);
        let parts = [
            both.select(rows(0)),
            loader.matrix("attn_k.weight", keys, hidden)?,
            loader.matrix("attn_v.weight", values, hidden)?,
            both.select(rows(size)),
        ];
        Ok(loader.pack(&parts, hidden))
    }

    pub(crate) fn load(loader: &mut Loader<'_>, config: &AttentionConfig) -> Result<Self> {
        let [queries, keys, _] = config.sizes();
        let norm_sizes = match config.head_norms {
            HeadNorms::None => None,
            HeadNorms::OfEach => Some([config.head_size; 2]),
            HeadNorms::OfAll => Some([queries, keys]),
        };
        let head_norms = norm_sizes.map(|[queries, keys]| -> Result<_> {
            let of_queries = loader.vector("attn_q_norm.weight", queries)?;
            let of_keys = match config.keys_of {
                None => loader.vector("attn_k_norm.weight", keys)?,
                Some(_) => vec![1.0; keys],
            };
            Ok([of_queries, of_keys])
        });
        let head_norms = head_norms.transpose()?;
        let sinks = config.has_sinks.then(|| loader.vector("attn_sinks.weight", config.num_heads));
        Ok(Self {
            config: config.clone(),
            head_norms,
            value_norm: config.has_value_norms.then(|| vec![1.0; config.value_size]),
            sinks: sinks.transpose()?,
        })
    }

    /// Writes the attended values of all heads, `(num_tokens, num_heads * value_size)`.
    pub(crate) fn mix(
        &self,
        layer: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        projected: &mut [f32],
        mixed: &mut Vec<f32>,
    ) {
        let width = projected.len() / chunk.tokens.len();
        self.rotate(chunk, projected, mixed);
        if self.config.keys_of.is_none() {
            self.put(layer, cache, chunk.tokens, projected);
        }
        self.attend(self.config.keys_of.unwrap_or(layer), cache, chunk, projected, mixed);
        if self.config.has_gates {
            let start = self.config.sizes().iter().sum();
            let tokens = projected.chunks_exact(width);
            let num_attended = self.config.num_heads * self.config.value_size;
            for (token, states) in tokens.zip(mixed.chunks_exact_mut(num_attended)) {
                chunk.ops.isa.run(Gate { gates: &token[start..], states });
            }
        }
    }

    /// Normalizes and rotates queries and keys; `buffer` is overwritten.
    fn rotate(&self, chunk: &PassChunk<'_>, projected: &mut [f32], buffer: &mut Vec<f32>) {
        let [num_queries, num_keys, num_values] = self.config.sizes();
        let size = self.config.head_size;
        let width = projected.len() / chunk.tokens.len();
        for (index, states) in projected.chunks_exact_mut(width).enumerate() {
            let (queries, rest) = states.split_at_mut(num_queries);
            let (keys, rest) = rest.split_at_mut(num_keys);
            if let Some([of_queries, of_keys]) = &self.head_norms {
                chunk.ops.normalize_in_place(queries, of_queries, buffer);
                chunk.ops.normalize_in_place(keys, of_keys, buffer);
            }
            if let Some(norm) = &self.value_norm {
                chunk.ops.normalize_in_place(&mut rest[..num_values], norm, buffer);
            }
            if let Some(rotation) = self.config.rotation {
                let turns = &chunk.turns[rotation][index];
                let heads = states[..num_queries + num_keys].chunks_exact_mut(size);
                heads.for_each(|head| chunk.rotations[rotation].apply(turns, head));
            }
            if let Some(Temperature { scale: by, length }) = self.config.temperature {
                let period = chunk.tokens[index].position() / length;
                scale(&mut states[..num_queries], 1.0 + by * (1.0 + period as f32).ln());
            }
        }
    }

    /// Puts keys and values into the cache.
    fn put(&self, layer: usize, cache: &mut Cache, tokens: &[Token], projected: &[f32]) {
        let [num_queries, num_keys, num_values] = self.config.sizes();
        let Cache { rows, shape } = cache;
        let states = projected.chunks_exact(projected.len() / tokens.len());
        for (token, states) in tokens.iter().zip(states) {
            let (keys, values) = states[num_queries..][..num_keys + num_values].split_at(num_keys);
            rows[token.row].put(shape, layer, token.slot, keys, values);
        }
    }

    /// Attends to what the cache has of a layer.
    fn attend(
        &self,
        layer: usize,
        cache: &Cache,
        chunk: &PassChunk<'_>,
        projected: &[f32],
        attended: &mut Vec<f32>,
    ) {
        let PassChunk { tokens, ops, .. } = *chunk;
        let &AttentionConfig { num_heads, num_kv_heads, head_size, value_size, .. } = &self.config;
        let width = projected.len() / tokens.len();
        attended.resize(tokens.len() * num_heads * value_size, 0.0);
        let query = |(index, attended)| {
            let (token, head) = (index / num_heads, index % num_heads);
            let Token { row, ref visible, .. } = tokens[token];
            let states = &projected[token * width + head * head_size..][..head_size];
            let sink = self.sinks.as_ref().map_or(f32::MIN, |sinks| sinks[head]);
            let head = head / (num_heads / num_kv_heads);
            Query { row, head, visible, states, sink, attended, softmax: SoftmaxState::new(sink) }
        };
        let attended = attended.chunks_exact_mut(value_size).enumerate();
        let mut queries: Vec<_> = attended.map(query).collect();
        queries.sort_by_key(|query| (query.row, query.head));
        let shape = cache.shape.layers[layer];
        let AttentionConfig { window, scale, score_cap, .. } = self.config;
        let attend = |queries: &mut [Query<'_>]| {
            let mut scores = Vec::new();
            for queries in queries.chunk_by_mut(|a, b| (a.row, a.head) == (b.row, b.head)) {
                let Query { row, head, .. } = queries[0];
                let end = queries.iter().map(|query| query.visible.end()).max();
                let pages = cache.rows[row].pages(&cache.shape, layer, end.unwrap_or(0));
                let keys = Keys { shape, pages: &pages, window, scale, score_cap, head };
                ops.isa.run(Attend { keys, queries, scores: &mut scores });
            }
        };
        let longest = tokens.last().map_or(0, |token| token.visible.length());
        let is_shared = longest * tokens.len() * num_kv_heads > MIN_SHARED_SCORES;
        let num_shares = if is_shared { ops.num_threads.max(1) } else { 1 };
        let share = queries.len().div_ceil(num_shares).max(1);
        parallel::each(queries.chunks_mut(share).collect(), attend);
    }
}

//! Attention layers: their weights, and their pass around the kernel of `attention`.

use super::attention::{Attend, Keys, Query, SoFar};
use super::cache::Cache;
use super::config::{AttentionConfig, HeadNorms, Temperature};
use super::elementwise::{Gate, add, scale};
use super::layer::LinearLayer;
use super::load::{Loader, Model};
use super::pass::{PassChunk, Scratch, Token, apply};
use crate::error::Result;
use crate::parallel;

#[derive(Debug)]
pub(crate) struct SelfAttention {
    config: AttentionConfig,
    qkv: LinearLayer,
    qkv_bias: Option<Vec<f32>>,
    /// The norms of queries and of keys.
    head_norms: Option<[Vec<f32>; 2]>,
    /// The norm of values, which has no weights.
    value_norm: Option<Vec<f32>>,
    /// The score of no token, for each head.
    sinks: Option<Vec<f32>>,
    output: LinearLayer,
    output_bias: Option<Vec<f32>>,
}

impl SelfAttention {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: &AttentionConfig,
        number: usize,
    ) -> Result<Self> {
        let of = |part: &str| format!("blk.{number}.{part}");
        let sizes @ [of_queries, of_keys, of_values] = config.sizes();
        let fused = of("attn_qkv");
        let parts: Vec<(String, usize)> = if loader.has(&format!("{fused}.weight")) {
            vec![(fused, of_queries + of_keys + of_values)]
        } else if config.keys_of.is_some() {
            // Files of some converters have unused keys and values.
            for part in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
                loader.skip(&of(part));
            }
            vec![(of("attn_q"), of_queries)]
        } else {
            let has_values = !config.has_value_norms || loader.has(&of("attn_v.weight"));
            let values = if has_values { "attn_v" } else { "attn_k" };
            ["attn_q", "attn_k", values].map(of).into_iter().zip(sizes).collect()
        };
        let norm_sizes = match config.head_norms {
            HeadNorms::None => None,
            HeadNorms::OfEach => Some([config.head_size; 2]),
            HeadNorms::OfAll => Some([of_queries, of_keys]),
        };
        let norm_names = [of("attn_q_norm.weight"), of("attn_k_norm.weight")];
        let head_norms = norm_sizes.map(|[queries, keys]| -> Result<_> {
            let [of_queries, of_keys] = &norm_names;
            let of_queries = loader.vector(of_queries, queries)?;
            let is_own = config.keys_of.is_none();
            let of_keys = if is_own { loader.vector(of_keys, keys)? } else { vec![1.0; keys] };
            Ok([of_queries, of_keys])
        });
        let sinks = of("attn_sinks.weight");
        let sinks = config.has_sinks.then(|| loader.vector(&sinks, config.num_heads));
        Ok(Self {
            qkv_bias: loader.bias(&parts)?,
            qkv: if config.has_gates {
                Self::load_gated(loader, hidden, config, &of)?
            } else {
                loader.linear(&parts, hidden)?
            },
            head_norms: head_norms.transpose()?,
            value_norm: config.has_value_norms.then(|| vec![1.0; config.value_size]),
            sinks: sinks.transpose()?,
            output_bias: loader.bias(&[(of("attn_output"), hidden)])?,
            output: loader
                .linear(&[(of("attn_output"), hidden)], config.num_heads * config.value_size)?,
            config: config.clone(),
        })
    }

    /// Queries, keys, values and gates: files have the gates of a head after its queries.
    fn load_gated(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: &AttentionConfig,
        of: &dyn Fn(&str) -> String,
    ) -> Result<LinearLayer> {
        let (size, [of_queries, of_keys, of_values]) = (config.head_size, config.sizes());
        let both = loader.matrix(&of("attn_q.weight"), 2 * of_queries, hidden)?;
        let rows = |first: usize| {
            (0..of_queries).map(move |row| 2 * (row - row % size) + first + row % size)
        };
        let parts = [
            both.select(rows(0)),
            loader.matrix(&of("attn_k.weight"), of_keys, hidden)?,
            loader.matrix(&of("attn_v.weight"), of_values, hidden)?,
            both.select(rows(size)),
        ];
        Ok(loader.pack(&parts, hidden))
    }

    pub(crate) fn forward(
        &self,
        model: &Model,
        number: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        scratch: &mut Scratch,
    ) {
        let Scratch { prepared, normed, qkv, attended, added, .. } = scratch;
        apply(&self.qkv, normed, chunk.options, prepared, qkv);
        self.rotate(model, chunk, qkv, normed);
        if self.config.keys_of.is_none() {
            self.put(number, cache, chunk.tokens, qkv);
        }
        let number = self.config.keys_of.unwrap_or(number);
        self.attend(model, number, cache, chunk, qkv, attended);
        if self.config.has_gates {
            let start = self.config.sizes().iter().sum();
            let rows = qkv.chunks_exact(self.qkv.num_outputs);
            for (row, states) in rows.zip(attended.chunks_exact_mut(self.output.num_inputs)) {
                model.with.run(Gate { gates: &row[start..], states });
            }
        }
        apply(&self.output, attended, chunk.options, prepared, added);
        add_bias(self.output_bias.as_ref(), added);
    }

    /// Biases, norms and rotations of queries and keys.
    fn rotate(&self, model: &Model, chunk: &PassChunk<'_>, qkv: &mut [f32], normed: &mut Vec<f32>) {
        let [of_queries, of_keys, of_values] = self.config.sizes();
        let size = self.config.head_size;
        add_bias(self.qkv_bias.as_ref(), qkv);
        let rows = qkv.chunks_exact_mut(self.qkv.num_outputs);
        for (place, row) in rows.enumerate() {
            let (queries, keys) = row[..of_queries + of_keys].split_at_mut(of_queries);
            if let Some([of_queries, of_keys]) = &self.head_norms {
                for (states, norm) in [(queries, of_queries), (keys, of_keys)] {
                    model.normalize(states, norm, normed);
                    states.copy_from_slice(normed);
                }
            }
            if let Some(norm) = &self.value_norm {
                let values = &mut row[of_queries + of_keys..][..of_values];
                model.normalize(values, norm, normed);
                values.copy_from_slice(normed);
            }
            if let Some(rotation) = self.config.rotation {
                let turns = &chunk.turns[rotation][place];
                let heads = row[..of_queries + of_keys].chunks_exact_mut(size);
                heads.for_each(|head| model.config.rotations[rotation].apply(turns, head));
            }
            if let Some(Temperature { scale: by, length }) = self.config.temperature {
                let position = chunk.tokens[place].visible.length() - 1;
                scale(&mut row[..of_queries], 1.0 + by * (1.0 + (position / length) as f32).ln());
            }
        }
    }

    /// Puts keys and values into the cache.
    fn put(&self, number: usize, cache: &mut Cache, tokens: &[Token], qkv: &[f32]) {
        let [of_queries, of_keys, of_values] = self.config.sizes();
        let Cache { rows, shape } = cache;
        let states = qkv.chunks_exact(self.qkv.num_outputs);
        for (token, states) in tokens.iter().zip(states) {
            let (keys, values) = states[of_queries..][..of_keys + of_values].split_at(of_keys);
            rows[token.row].put(shape, number, token.slot, keys, values);
        }
    }

    /// Attends to what is in the cache.
    fn attend(
        &self,
        model: &Model,
        number: usize,
        cache: &Cache,
        chunk: &PassChunk<'_>,
        qkv: &[f32],
        attended: &mut Vec<f32>,
    ) {
        let PassChunk { tokens, options, .. } = *chunk;
        let &AttentionConfig { num_heads, num_kv_heads, head_size, value_size, .. } = &self.config;
        let width = qkv.len() / tokens.len();
        attended.resize(tokens.len() * num_heads * value_size, 0.0);
        let of_query = |(place, attended)| {
            let (token, head) = (place / num_heads, place % num_heads);
            let Token { row, ref visible, .. } = tokens[token];
            let states = &qkv[token * width + head * head_size..][..head_size];
            let sink = self.sinks.as_ref().map_or(f32::MIN, |sinks| sinks[head]);
            let head = head / (num_heads / num_kv_heads);
            Query { row, head, visible, states, sink, attended, so_far: SoFar::new(sink) }
        };
        let attended = attended.chunks_exact_mut(value_size).enumerate();
        let mut queries: Vec<_> = attended.map(of_query).collect();
        queries.sort_by_key(|query| (query.row, query.head));
        let shape = cache.shape.layers[number];
        let AttentionConfig { window, scale, score_cap, .. } = self.config;
        let attend = |queries: &mut [Query<'_>]| {
            let mut scores = Vec::new();
            for queries in queries.chunk_by_mut(|a, b| (a.row, a.head) == (b.row, b.head)) {
                let Query { row, head, .. } = queries[0];
                let end = queries.iter().map(|query| query.visible.end()).max();
                let pages = cache.rows[row].pages(&cache.shape, number, end.unwrap_or(0));
                let keys = Keys { shape, pages: &pages, window, scale, score_cap, head };
                model.with.run(Attend { keys, queries, scores: &mut scores });
            }
        };
        let most = tokens.last().map_or(0, |token| token.visible.length());
        let is_long = most * tokens.len() * num_kv_heads > 1 << 10;
        let num_shares = if is_long { options.num_threads.max(1) } else { 1 };
        let share = queries.len().div_ceil(num_shares).max(1);
        parallel::each(queries.chunks_mut(share).collect(), attend);
    }
}

/// Adds a bias to each row.
pub(crate) fn add_bias(bias: Option<&Vec<f32>>, states: &mut [f32]) {
    if let Some(bias) = bias {
        states.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
    }
}

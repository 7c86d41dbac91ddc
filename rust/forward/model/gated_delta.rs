//! Gated delta nets: heads that learn, token by token, which values follow which keys.

use super::cache::Cache;
use super::config::{Activation, Config, DeltaConfig};
use super::elementwise::{Gate, Gated, Normalize};
use super::layer::LinearLayer;
use super::load::{Loader, Model};
use super::pass::{PassChunk, Scratch, apply};
use super::recurrent::MemoryShape;
use crate::error::Result;
use crate::gguf::file::Tensor;

/// Is added to the sums of squares of queries and keys, as transformers does.
const EPSILON: f32 = 1e-6;

#[derive(Debug)]
pub(crate) struct GatedDelta {
    shape: MemoryShape,
    /// Queries, keys and values; the gates of outputs; and, for each head, what its rate and its decay depend on.
    projection: LinearLayer,
    /// `(kernel_size, num_channels)`.
    taps: Vec<f32>,
    /// For each head, what is added to the exponent of its decay, and its factor.
    decay_bias: Vec<f32>,
    decay_factor: Vec<f32>,
    norm: Vec<f32>,
    output: LinearLayer,
}

impl GatedDelta {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        config: &Config,
        delta: DeltaConfig,
        number: usize,
    ) -> Result<Self> {
        let of = |part: &str| format!("blk.{number}.{part}");
        let (hidden, shape) = (config.hidden_size, delta.memory);
        let MemoryShape { num_heads, head_size, .. } = shape;
        let of_values = num_heads * head_size;
        let mut parts = vec![
            loader.matrix(&of("attn_qkv.weight"), shape.num_channels(), hidden)?,
            loader.matrix(&of("attn_gate.weight"), of_values, hidden)?,
        ];
        parts.extend(Self::load_rates(loader, hidden, shape, &of)?);
        Ok(Self {
            projection: loader.pack(&parts, hidden),
            taps: loader.taps(&of("ssm_conv1d.weight"), delta.kernel_size, shape.num_channels())?,
            decay_bias: loader.vector(&of("ssm_dt.bias"), num_heads)?,
            decay_factor: loader.vector(&of("ssm_a"), num_heads)?,
            norm: loader.vector(&of("ssm_norm.weight"), head_size)?,
            output: loader.linear(&[(of("ssm_out"), hidden)], of_values)?,
            shape,
        })
    }

    /// The matrices of rates and decays, which some files have in one tensor, by key heads.
    fn load_rates(
        loader: &mut Loader<'_>,
        hidden: usize,
        shape: MemoryShape,
        of: &dyn Fn(&str) -> String,
    ) -> Result<[Tensor; 2]> {
        let MemoryShape { num_heads, num_key_heads, .. } = shape;
        if !loader.has(&of("ssm_ba.weight")) {
            let mut matrix = |part: &str| loader.matrix(&of(part), num_heads, hidden);
            return Ok([matrix("ssm_beta.weight")?, matrix("ssm_alpha.weight")?]);
        }
        let both = loader.matrix(&of("ssm_ba.weight"), 2 * num_heads, hidden)?;
        let shared = num_heads / num_key_heads;
        let rows = |first: usize| {
            (0..num_heads).map(move |head| 2 * (head - head % shared) + first + head % shared)
        };
        Ok([both.select(rows(0)), both.select(rows(shared))])
    }

    pub(crate) fn forward(
        &self,
        model: &Model,
        number: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        scratch: &mut Scratch,
    ) {
        let Scratch { prepared, normed, qkv: projected, attended, added, .. } = scratch;
        apply(&self.projection, normed, chunk.options, prepared, projected);
        let MemoryShape { num_heads, head_size, .. } = self.shape;
        let (width, of_values) = (self.shape.num_channels(), num_heads * head_size);
        attended.clear();
        let (mut mixed, mut read) = (Vec::new(), Vec::new());
        for (part, row, projected) in chunk.by_row(cache, projected) {
            let tokens = projected.chunks_exact(self.projection.num_outputs);
            let inputs: Vec<f32> =
                tokens.clone().flat_map(|token| &token[..width]).copied().collect();
            let states = cache.rows[row].recurrent(number);
            states.convolve(model.with, part, &self.taps, &inputs, &mut mixed);
            let gates = mixed.clone();
            model.with.run(Gate { gates: &gates, states: &mut mixed });
            let mut steps = Vec::with_capacity(tokens.len() * self.shape.step_size());
            for (token, mixed) in tokens.clone().zip(mixed.chunks_exact(width)) {
                self.put_step(model, mixed, &token[width + of_values..], &mut steps);
            }
            states.remember(model.with, part, &steps, chunk.options.num_threads, &mut read);
            let norm = self.norm.as_slice();
            let (epsilon, mut outputs) = (model.config.epsilon, vec![0.0; read.len()]);
            model.with.run(Normalize {
                states: &read,
                weights: norm,
                epsilon,
                outputs: &mut outputs,
            });
            let num_tokens = tokens.len();
            let mut both = Vec::with_capacity(2 * of_values);
            for (place, token) in tokens.enumerate() {
                both.clear();
                both.extend_from_slice(&token[width..width + of_values]);
                for head in 0..num_heads {
                    let place = (head * num_tokens + place) * head_size;
                    both.extend_from_slice(&outputs[place..][..head_size]);
                }
                let start = attended.len();
                attended.resize(start + of_values, 0.0);
                let (activation, outputs) = (Activation::Silu, &mut attended[start..]);
                model.with.run(Gated { activation, inputs: &both, size: of_values, outputs });
            }
        }
        apply(&self.output, attended, chunk.options, prepared, added);
    }

    /// Adds the step of a token: queries and keys of length 1, values, decays and rates.
    fn put_step(&self, model: &Model, mixed: &[f32], rates: &[f32], steps: &mut Vec<f32>) {
        let MemoryShape { num_heads, num_key_heads, head_size: size, .. } = self.shape;
        let of_keys = num_key_heads * size;
        let start = steps.len();
        steps.extend_from_slice(mixed);
        // Norms divide by the root mean square, and not by that of the sum; queries are scaled once more.
        let epsilon = EPSILON / size as f32;
        for (place, scale) in [(0, size as f32), (of_keys, (size as f32).sqrt())] {
            let outputs = &mut steps[start + place..][..of_keys];
            let states = &mixed[place..][..of_keys];
            model.with.run(Normalize {
                states,
                weights: &vec![1.0 / scale; size],
                epsilon,
                outputs,
            });
        }
        let (rates, decays) = rates.split_at(num_heads);
        for (head, decay) in decays.iter().enumerate() {
            steps.push((self.decay_factor[head] * softplus(decay + self.decay_bias[head])).exp());
        }
        steps.extend(rates.iter().map(|rate| 1.0 / (1.0 + (-rate).exp())));
    }
}

/// The logarithm of 1 plus a power of e.
fn softplus(value: f32) -> f32 {
    if value > 20.0 { value } else { value.exp().ln_1p() }
}

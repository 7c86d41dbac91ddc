//! Gated delta nets: heads that learn, token by token, which values follow which keys.

use super::cache::Cache;
use super::chunk::PassChunk;
use super::config::{Activation, DeltaConfig};
use super::elementwise::Gate;
use super::linear::LinearLayer;
use super::loader::Loader;
use super::operations::Operations;
use super::recurrent::MemoryShape;
use crate::error::Result;
use crate::gguf::file::Tensor;

/// The number that is added to the sums of squares of queries and keys, as transformers does.
const EPSILON: f32 = 1e-6;

/// A gated delta net between its two projections.
#[derive(Debug)]
pub(crate) struct GatedDelta {
    /// The heads and their sizes.
    shape: MemoryShape,
    /// The weights of the convolution, the token's own one at the end, `(kernel_size, num_channels)`.
    taps: Vec<f32>,
    /// The numbers that are added to the logits of decays, `(num_heads,)`.
    decay_bias: Vec<f32>,
    /// The factors of the logarithms of decays, `(num_heads,)`.
    decay_factor: Vec<f32>,
    /// The weights of the norm of each head's output, `(head_size,)`.
    norm: Vec<f32>,
}

impl GatedDelta {
    /// Queries, keys and values; gates of outputs; the logits of rates and of decays of each head; and the output.
    pub(crate) fn projections(
        loader: &mut Loader<'_>,
        hidden: usize,
        delta: DeltaConfig,
    ) -> Result<[LinearLayer; 2]> {
        let shape = delta.memory;
        let value_size = shape.num_heads * shape.head_size;
        let mut parts = vec![
            loader.matrix("attn_qkv.weight", shape.num_channels(), hidden)?,
            loader.matrix("attn_gate.weight", value_size, hidden)?,
        ];
        parts.extend(Self::load_rates(loader, hidden, shape)?);
        let projection = loader.pack(&parts, hidden);
        Ok([projection, loader.linear(&[("ssm_out", hidden)], value_size)?])
    }

    /// The matrices of rates and decays, which some files have in one tensor, by key heads.
    fn load_rates(
        loader: &mut Loader<'_>,
        hidden: usize,
        shape: MemoryShape,
    ) -> Result<[Tensor; 2]> {
        let MemoryShape { num_heads, num_key_heads, .. } = shape;
        if !loader.has("ssm_ba.weight") {
            let mut matrix = |name: &str| loader.matrix(name, num_heads, hidden);
            return Ok([matrix("ssm_beta.weight")?, matrix("ssm_alpha.weight")?]);
        }
        let both = loader.matrix("ssm_ba.weight", 2 * num_heads, hidden)?;
        let shared = num_heads / num_key_heads;
        let rows = |first: usize| {
            (0..num_heads).map(move |head| 2 * (head - head % shared) + first + head % shared)
        };
        Ok([both.select(rows(0)), both.select(rows(shared))])
    }

    pub(crate) fn load(loader: &mut Loader<'_>, delta: DeltaConfig) -> Result<Self> {
        let shape @ MemoryShape { num_heads, head_size, .. } = delta.memory;
        Ok(Self {
            taps: loader.taps("ssm_conv1d.weight", delta.kernel_size, shape.num_channels())?,
            decay_bias: loader.vector("ssm_dt.bias", num_heads)?,
            decay_factor: loader.vector("ssm_a", num_heads)?,
            norm: loader.vector("ssm_norm.weight", head_size)?,
            shape,
        })
    }

    /// Writes the gated outputs of all heads, `(num_tokens, num_heads * head_size)`.
    pub(crate) fn mix(
        &self,
        layer: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        projected: &[f32],
        mixed: &mut Vec<f32>,
    ) {
        let ops = chunk.ops;
        let MemoryShape { num_heads, head_size, .. } = self.shape;
        let (width, value_size) = (self.shape.num_channels(), num_heads * head_size);
        mixed.clear();
        let (mut convolved, mut read, mut normed) = (Vec::new(), Vec::new(), Vec::new());
        for (part, row, projected) in chunk.by_row(cache, projected) {
            let tokens = projected.chunks_exact(width + value_size + 2 * num_heads);
            let inputs: Vec<f32> =
                tokens.clone().flat_map(|token| &token[..width]).copied().collect();
            let states = cache.rows[row].recurrent(layer);
            states.convolve(ops.isa, part, &self.taps, &inputs, &mut convolved);
            let gates = convolved.clone();
            ops.isa.run(Gate { gates: &gates, states: &mut convolved });
            let mut steps = Vec::with_capacity(tokens.len() * self.shape.step_size());
            for (token, convolved) in tokens.clone().zip(convolved.chunks_exact(width)) {
                self.put_step(ops, convolved, &token[width + value_size..], &mut steps);
            }
            states.remember(ops.isa, part, &steps, ops.num_threads, &mut read);
            ops.normalize(&read, &self.norm, &mut normed);
            let num_tokens = tokens.len();
            let (mut both, mut gated) = (Vec::with_capacity(2 * value_size), Vec::new());
            for (index, token) in tokens.enumerate() {
                both.clear();
                both.extend_from_slice(&token[width..width + value_size]);
                for head in 0..num_heads {
                    let start = (head * num_tokens + index) * head_size;
                    both.extend_from_slice(&normed[start..][..head_size]);
                }
                ops.gate(Activation::Silu, &both, value_size, &mut gated);
                mixed.extend_from_slice(&gated);
            }
        }
    }

    /// Adds the step of a token: queries and keys of length 1, values, decays and rates.
    fn put_step(&self, ops: Operations, mixed: &[f32], logits: &[f32], steps: &mut Vec<f32>) {
        let MemoryShape { num_heads, num_key_heads, head_size: size, .. } = self.shape;
        let key_size = num_key_heads * size;
        let start = steps.len();
        steps.extend_from_slice(mixed);
        // Norms divide by the root mean square, and not by that of the sum; queries are scaled once more.
        let ops = Operations { epsilon: EPSILON / size as f32, ..ops };
        let mut normed = Vec::new();
        for (first, scale) in [(0, size as f32), (key_size, (size as f32).sqrt())] {
            let states = &mut steps[start + first..][..key_size];
            ops.normalize_in_place(states, &vec![1.0 / scale; size], &mut normed);
        }
        let (rates, decays) = logits.split_at(num_heads);
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

//! Short convolutions: what a token has of the last ones, between two gates.

use super::cache::Cache;
use super::chunk::PassChunk;
use super::config::ConvolutionConfig;
use super::linear::LinearLayer;
use super::loader::Loader;
use crate::error::Result;

/// A convolution of each channel between its two projections.
#[derive(Debug)]
pub(crate) struct ShortConvolution {
    /// The weights of the last inputs, the token's own one at the end, `(kernel_size, hidden_size)`.
    taps: Vec<f32>,
}

impl ShortConvolution {
    /// The gates of inputs, those of outputs, and inputs; and the output.
    pub(crate) fn projections(loader: &mut Loader<'_>, hidden: usize) -> Result<[LinearLayer; 2]> {
        Ok([
            loader.linear(&[("shortconv.in_proj", 3 * hidden)], hidden)?,
            loader.linear(&[("shortconv.out_proj", hidden)], hidden)?,
        ])
    }

    pub(crate) fn load(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: ConvolutionConfig,
    ) -> Result<Self> {
        Ok(Self { taps: loader.taps("shortconv.conv.weight", config.kernel_size, hidden)? })
    }

    /// Writes the gated outputs of the convolution, `(num_tokens, hidden_size)`.
    pub(crate) fn mix(
        &self,
        layer: usize,
        cache: &mut Cache,
        chunk: &PassChunk<'_>,
        projected: &[f32],
        mixed: &mut Vec<f32>,
    ) {
        let size = projected.len() / chunk.tokens.len() / 3;
        mixed.clear();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (part, row, projected) in chunk.by_row(cache, projected) {
            let tokens = projected.chunks_exact(3 * size);
            inputs.clear();
            for token in tokens.clone() {
                inputs.extend((0..size).map(|channel| token[channel] * token[2 * size + channel]));
            }
            let states = cache.rows[row].recurrent(layer);
            states.convolve(chunk.ops.isa, part, &self.taps, &inputs, &mut outputs);
            for (token, outputs) in tokens.zip(outputs.chunks_exact(size)) {
                let gates = &token[size..2 * size];
                mixed.extend(gates.iter().zip(outputs).map(|(gate, output)| gate * output));
            }
        }
    }
}

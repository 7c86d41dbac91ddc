//! Short convolutions: what a token has of the last ones, between two gates.

use super::cache::Cache;
use super::config::ConvolutionConfig;
use super::layer::LinearLayer;
use super::load::{Loader, Model};
use super::pass::{PassChunk, Scratch, apply};
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct ShortConvolution {
    /// The gates of inputs, those of outputs, and inputs.
    projection: LinearLayer,
    /// `(kernel_size, hidden_size)`.
    taps: Vec<f32>,
    output: LinearLayer,
}

impl ShortConvolution {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: ConvolutionConfig,
        number: usize,
    ) -> Result<Self> {
        let of = |part: &str| format!("blk.{number}.shortconv.{part}");
        Ok(Self {
            projection: loader.linear(&[(of("in_proj"), 3 * hidden)], hidden)?,
            taps: loader.taps(&of("conv.weight"), config.kernel_size, hidden)?,
            output: loader.linear(&[(of("out_proj"), hidden)], hidden)?,
        })
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
        let size = self.output.num_inputs;
        attended.clear();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (part, row, projected) in chunk.by_row(cache, projected) {
            let tokens = projected.chunks_exact(3 * size);
            inputs.clear();
            for token in tokens.clone() {
                inputs.extend((0..size).map(|channel| token[channel] * token[2 * size + channel]));
            }
            let states = cache.rows[row].recurrent(number);
            states.convolve(model.with, part, &self.taps, &inputs, &mut outputs);
            for (token, outputs) in tokens.zip(outputs.chunks_exact(size)) {
                let gates = &token[size..2 * size];
                attended.extend(gates.iter().zip(outputs).map(|(gate, output)| gate * output));
            }
        }
        apply(&self.output, attended, chunk.options, prepared, added);
    }
}

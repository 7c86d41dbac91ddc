//! The times of passes before the first request, from a part of the layers and the head.

use std::time::Instant;

use super::cache::CacheType;
use super::load::Model;
use super::pass::{Input, PassOptions};
use crate::error::Result;

/// The seconds of a pass below which it is timed twice, because other load may slow one.
const SHORT_S: f64 = 0.05;

/// The bytes of the layers that are timed: more than processors cache, so that weights are read from memory as in passes.
const TIMED_BYTES: usize = 1 << 27;

impl Model {
    /// Measures the seconds of a pass for each number of tokens, each with its logits, without a context.
    ///
    /// Takes as long as passes over 128 MiB of weights and the head.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn pass_times(&self, sizes: &[usize], options: PassOptions<'_>) -> Result<Vec<f64>> {
        let num_layers = self.blocks.len();
        let layer_bytes = self.num_bytes / num_layers.max(1);
        let timed = (TIMED_BYTES / layer_bytes.max(1)).clamp(1, num_layers.max(1));
        let most = sizes.iter().copied().max().unwrap_or(0);
        let tokens = vec![0; most];
        let mut cache = self.new_cache(1, CacheType::default());
        let mut pass = |num_tokens: usize, num_layers| -> Result<f64> {
            let tokens = &tokens[..num_tokens];
            let input = Input { row: 0, tokens, parents: None, num_logits: num_tokens };
            let options = PassOptions { num_layers: Some(num_layers), ..options };
            let start = Instant::now();
            self.forward(&mut cache, &[input], options)?;
            Ok(start.elapsed().as_secs_f64())
        };
        // The first pass begins threads and takes memory.
        pass(most.min(1), timed)?;
        let mut seconds = |num_tokens, num_layers| -> Result<f64> {
            let first = pass(num_tokens, num_layers)?;
            if first < SHORT_S { Ok(first.min(pass(num_tokens, num_layers)?)) } else { Ok(first) }
        };
        let mut time = |&num_tokens: &usize| {
            let of_timed = seconds(num_tokens, timed)?;
            if timed >= num_layers {
                return Ok(of_timed);
            }
            let of_head = seconds(num_tokens, 0)?;
            let layers = num_layers as f64 / timed as f64;
            Ok(of_head + (of_timed - of_head).max(0.0) * layers)
        };
        sizes.iter().map(&mut time).collect()
    }
}

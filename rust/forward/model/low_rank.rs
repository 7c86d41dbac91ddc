//! Products of low rank that are added where the mixer of a layer is (`LAuReL`, arXiv 2411.07501).

use super::elementwise::add;
use super::linear::LinearLayer;
use super::loader::Loader;
use super::operations::{Operations, Scratch};
use crate::error::Result;

/// The weights of a layer: two matrices whose product has a low rank.
#[derive(Debug)]
pub(crate) struct LowRank {
    /// From states to `rank` numbers.
    left: LinearLayer,
    /// From `rank` numbers to states.
    right: LinearLayer,
    /// The weights of the norm of the product, `(hidden_size,)`.
    norm: Vec<f32>,
}

impl LowRank {
    pub(crate) fn load(loader: &mut Loader<'_>, hidden: usize) -> Result<Self> {
        let rank = loader.num_rows("laurel_l.weight")?;
        Ok(Self {
            left: loader.linear(&[("laurel_l", rank)], hidden)?,
            right: loader.linear(&[("laurel_r", hidden)], rank)?,
            norm: loader.vector("laurel_post_norm.weight", hidden)?,
        })
    }

    /// Returns what is added to the states after the mixer, from `scratch.normed`.
    pub(crate) fn forward(&self, ops: Operations, scratch: &mut Scratch) -> Vec<f32> {
        let Scratch { prepared, normed, gated, down, added, .. } = scratch;
        ops.linear(&self.left, normed, prepared, gated);
        ops.linear(&self.right, gated, prepared, down);
        ops.normalize(down, &self.norm, added);
        add(added, normed);
        added.clone()
    }
}

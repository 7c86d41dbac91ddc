//! Products of low rank that are added where the mixer of a layer is (`LAuReL`, arXiv 2411.07501).

use super::elementwise::add;
use super::layer::LinearLayer;
use super::load::{Loader, Model};
use super::pass::{PassOptions, Scratch, apply};
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct LowRank {
    left: LinearLayer,
    right: LinearLayer,
    norm: Vec<f32>,
}

impl LowRank {
    pub(crate) fn load(loader: &mut Loader<'_>, hidden: usize, number: usize) -> Result<Self> {
        let of = |part: &str| format!("blk.{number}.laurel_{part}");
        let rank = loader.num_rows(&format!("{}.weight", of("l")))?;
        Ok(Self {
            left: loader.linear(&[(of("l"), rank)], hidden)?,
            right: loader.linear(&[(of("r"), hidden)], rank)?,
            norm: loader.vector(&format!("{}.weight", of("post_norm")), hidden)?,
        })
    }

    /// Returns what is added to the states after the mixer, from `scratch.normed`.
    pub(crate) fn forward(
        &self,
        model: &Model,
        options: PassOptions<'_>,
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let Scratch { prepared, normed, gated, down, added, .. } = scratch;
        apply(&self.left, normed, options, prepared, gated);
        apply(&self.right, gated, options, prepared, down);
        model.normalize(down, &self.norm, added);
        add(added, normed);
        added.clone()
    }
}

//! Memory that a model takes, from the header of its file alone.

use std::sync::Arc;

use super::cache::CacheType;
use super::load::Model;
use crate::error::Result;
use crate::gguf::file::Gguf;
use crate::simd::instructions::Instructions;

/// Sizes of a model whose weights need not be loaded.
#[derive(Debug)]
pub struct ModelSizes {
    /// The bytes of the packed weights; floats and single rows of embeddings stay in the file.
    pub packed_bytes: usize,
    /// The model without packed weights.
    model: Model,
}

impl ModelSizes {
    /// Reads the sizes, and checks that the model can be loaded.
    ///
    /// # Errors
    /// As of [`Model::load`], but for memory.
    pub fn read(file: Arc<Gguf>, isa: Instructions) -> Result<Self> {
        let (model, plan) = Model::planned(file, isa)?;
        Ok(Self { packed_bytes: plan.num_bytes, model })
    }

    /// The bytes of the states of a sequence of this many tokens.
    pub fn cache_bytes(&self, num_tokens: usize, kind: CacheType) -> usize {
        self.model.new_cache(0, kind).row_bytes(num_tokens)
    }
}

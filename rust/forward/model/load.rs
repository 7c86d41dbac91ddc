//! Loading of a model from the tensors of a file.

use std::sync::Arc;

use super::cache::{Cache, CacheType};
use super::config::Config;
use super::decoder_block::DecoderBlock;
use super::fields::{ANGLES, FACTORS, LONG_FACTORS, SHORT_FACTORS};
use super::layer_inputs::LayerInputs;
use super::linear::LinearLayer;
use super::loader::Loader;
use super::packing::{LoadOptions, PackingPlan};
use super::store::stored;
use super::streams::Streams;
use crate::error::Result;
use crate::gguf::file::{Gguf, Tensor};
use crate::simd::instructions::Instructions;

/// A model, ready for passes; any number of threads may share it.
#[derive(Debug)]
pub struct Model {
    /// The file, in which embeddings and floats stay.
    pub file: Arc<Gguf>,
    /// The description of its layers.
    pub config: Config,
    /// The instructions of its kernels.
    pub isa: Instructions,
    /// The layers, in the order of a pass.
    pub(crate) blocks: Vec<DecoderBlock>,
    /// The weights of the norm before the head, `(hidden_size,)`.
    pub(crate) norm: Vec<f32>,
    /// The layer whose outputs are logits.
    pub(crate) head: LinearLayer,
    /// The embeddings, `(vocab_size, hidden_size)`.
    pub(crate) embeddings: Tensor,
    /// The weights of the inputs of layers, if the model has them.
    pub(crate) layer_inputs: Option<LayerInputs>,
    /// The weights that spread states to streams and merge them, if the model has several streams.
    pub(crate) streams: Option<Streams>,
    /// The bytes of the packed weights.
    pub num_bytes: usize,
    /// True if they are those of a file of the cache, which processes share.
    pub is_cached: bool,
}

impl Model {
    /// Packs the weights of a file for these instructions; embeddings and floats stay in it.
    ///
    /// # Errors
    /// `Unsupported` for models that are not computed here, `Layout` if tensors do not fit, `OutOfMemory`, and
    /// `Stopped` by the options.
    pub fn load(file: Arc<Gguf>, isa: Instructions, options: LoadOptions<'_>) -> Result<Self> {
        let (mut model, plan) = Self::planned(file, isa)?;
        (model.num_bytes, model.is_cached) = stored(&plan, isa, &model.file, options)?;
        Ok(model)
    }

    /// Returns a cache of empty rows for this model; memory is taken as they grow.
    pub fn new_cache(&self, num_rows: usize, kind: CacheType) -> Cache {
        Cache::new(&self.config, self.isa, num_rows, kind)
    }

    /// Returns a model whose weights are not packed yet.
    pub(crate) fn planned(file: Arc<Gguf>, isa: Instructions) -> Result<(Self, PackingPlan)> {
        let mut config = Config::read(&file)?;
        let mut loader = Loader::new(&file, isa);
        for name in [FACTORS, SHORT_FACTORS, LONG_FACTORS, ANGLES[0], ANGLES[1]] {
            loader.skip(name);
        }
        let embeddings = loader.tensor("token_embd.weight")?;
        config.vocab_size = embeddings.rows;
        let hidden = config.hidden_size;
        if embeddings.columns != hidden || u32::try_from(embeddings.rows).is_err() {
            return Err(file.corrupt("its embeddings are not of the size of its layers"));
        }
        let layer_inputs = config.layer_input_size;
        let layer_inputs = layer_inputs.map(|size| LayerInputs::load(&mut loader, &config, size));
        let streams = config.num_streams.map(|num| Streams::load(&mut loader, hidden, num));
        let (layer_inputs, streams) = (layer_inputs.transpose()?, streams.transpose()?);
        let mut blocks = Vec::new();
        for (number, layer) in config.layers.iter().enumerate() {
            loader.prefix = format!("blk.{number}.");
            blocks.push(DecoderBlock::load(&mut loader, &config, layer)?);
        }
        for number in config.layers.len()..config.layers.len() + config.num_unused_layers {
            loader.prefix = format!("blk.{number}.");
            loader.skip_all();
        }
        loader.prefix.clear();
        let norm = format!("{}.weight", config.norm);
        let norm = if loader.has(&norm) { norm } else { "output_norm.weight".to_owned() };
        let norm = loader.vector(&norm, hidden)?;
        let head = if loader.has("output.weight") { "output" } else { "token_embd" };
        let head = loader.linear(&[(head, config.vocab_size)], hidden)?;
        if let Some(name) = loader.first_remaining() {
            let reason = format!("has the tensor {name}, which is not computed here");
            return Err(file.unsupported(reason));
        }
        let plan = loader.plan;
        let model = Self {
            file,
            config,
            isa,
            blocks,
            norm,
            head,
            embeddings,
            layer_inputs,
            streams,
            num_bytes: 0,
            is_cached: false,
        };
        Ok((model, plan))
    }
}

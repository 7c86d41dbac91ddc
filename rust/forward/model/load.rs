//! Weights of a model, packed from the tensors of a file.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::config::{ANGLES, Config};
use super::layer::LinearLayer;
use super::packing::{LoadOptions, PackingPlan};
use crate::error::Result;
use crate::gguf::file::{Gguf, Tensor};
use crate::simd::instructions::Instructions;

#[derive(Debug)]
pub(crate) struct DecoderBlock {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) qkv: LinearLayer,
    pub(crate) qkv_bias: Option<Vec<f32>>,
    pub(crate) query_norm: Option<Vec<f32>>,
    pub(crate) key_norm: Option<Vec<f32>>,
    pub(crate) output: LinearLayer,
    pub(crate) attention_post_norm: Option<Vec<f32>>,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) gate_up: LinearLayer,
    pub(crate) down: LinearLayer,
    pub(crate) feed_forward_post_norm: Option<Vec<f32>>,
}

/// A model, ready for passes; any number of threads may share it.
#[derive(Debug)]
pub struct Model {
    pub file: Arc<Gguf>,
    pub config: Config,
    pub with: Instructions,
    pub(crate) blocks: Vec<DecoderBlock>,
    pub(crate) norm: Vec<f32>,
    pub(crate) head: LinearLayer,
    pub(crate) embeddings: Tensor,
    /// The bytes of the packed weights.
    pub num_bytes: usize,
}

/// Takes tensors out of a file, and knows which are left.
struct Loader<'a> {
    file: &'a Gguf,
    with: Instructions,
    plan: PackingPlan,
    left: BTreeSet<&'a str>,
}

impl Model {
    /// Packs the weights of a file for these instructions; embeddings and floats stay in it.
    ///
    /// # Errors
    /// `Unsupported` for models that are not computed here, `Corrupt` if tensors do not fit, `OutOfMemory`, and
    /// `Stopped` by the options.
    pub fn load(file: Arc<Gguf>, with: Instructions, options: LoadOptions<'_>) -> Result<Self> {
        let mut config = Config::read(&file)?;
        let left = file.tensor_names().collect();
        let mut loader = Loader { file: &file, with, plan: PackingPlan::default(), left };
        for name in ["rope_freqs.weight", ANGLES[0], ANGLES[1]] {
            loader.left.remove(name);
        }
        let embeddings = loader.tensor("token_embd.weight")?;
        config.vocab_size = embeddings.rows;
        let hidden = config.hidden_size;
        if embeddings.columns != hidden || u32::try_from(embeddings.rows).is_err() {
            return Err(file.corrupt("its embeddings are not of the size of its layers"));
        }
        let blocks: Vec<_> = (0..config.num_layers)
            .map(|layer| loader.block(&config, layer))
            .collect::<Result<_>>()?;
        let norm = loader.vector("output_norm.weight", hidden)?;
        let is_tied = !loader.left.contains("output.weight");
        let head = if is_tied { "token_embd.weight" } else { "output.weight" };
        let head = loader.layer(&[(head, config.vocab_size)], hidden)?;
        if let Some(name) = loader.left.first() {
            let reason = format!("has the tensor {name}, which is not computed here");
            return Err(file.unsupported(reason));
        }
        let num_bytes = loader.plan.pack(with, options, &|bytes| file.release(bytes))?;
        Ok(Self { file, config, with, blocks, norm, head, embeddings, num_bytes })
    }
}

impl Loader<'_> {
    fn tensor(&mut self, name: &str) -> Result<Tensor> {
        self.left.remove(name);
        let tensor = self.file.tensor(name)?;
        tensor.ok_or_else(|| self.file.corrupt(format!("it has no tensor {name}")))
    }

    fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        if tensor.columns != size || tensor.rows != 1 {
            return Err(self.file.corrupt(format!("{name} is not of size {size}")));
        }
        Ok(tensor.numbers())
    }

    fn optional(&mut self, name: &str, size: usize) -> Result<Option<Vec<f32>>> {
        self.left.contains(name).then(|| self.vector(name, size)).transpose()
    }

    fn layer(&mut self, parts: &[(&str, usize)], columns: usize) -> Result<LinearLayer> {
        let mut read = Vec::with_capacity(parts.len());
        for &(name, rows) in parts {
            let tensor = self.tensor(name)?;
            if (tensor.rows, tensor.columns) != (rows, columns) {
                let reason = format!("{name} is not of {rows} rows and {columns} columns");
                return Err(self.file.corrupt(reason));
            }
            if !columns.is_multiple_of(32) {
                return Err(self.file.unsupported(format!("has {name} in part of 32 columns")));
            }
            read.push(tensor);
        }
        Ok(LinearLayer::new(&read, columns, self.with, &mut self.plan))
    }

    fn block(&mut self, config: &Config, layer: usize) -> Result<DecoderBlock> {
        let name = |of: &str| format!("blk.{layer}.{of}");
        let weight = |of: &str| format!("blk.{layer}.{of}.weight");
        let (hidden, size) = (config.hidden_size, config.head_size);
        let (wide, qkv_sizes) = (config.feed_forward_size, config.qkv_sizes());
        let names = ["attn_q", "attn_k", "attn_v"];
        let weights = names.map(weight);
        let qkv = [0, 1, 2].map(|of| (weights[of].as_str(), qkv_sizes[of]));
        let mut bias = Vec::new();
        for (of, size) in names.into_iter().zip(qkv_sizes) {
            let of = self.optional(&name(&format!("{of}.bias")), size)?;
            bias.extend(of.into_iter().flatten());
        }
        if !bias.is_empty() && bias.len() != qkv_sizes.iter().sum() {
            return Err(self.file.corrupt("some of its queries, keys and values have a bias"));
        }
        Ok(DecoderBlock {
            attention_norm: self.vector(&weight("attn_norm"), hidden)?,
            qkv: self.layer(&qkv, hidden)?,
            qkv_bias: (!bias.is_empty()).then_some(bias),
            query_norm: self.optional(&weight("attn_q_norm"), size)?,
            key_norm: self.optional(&weight("attn_k_norm"), size)?,
            output: self.layer(&[(&weight("attn_output"), hidden)], qkv_sizes[0])?,
            attention_post_norm: self.optional(&weight("post_attention_norm"), hidden)?,
            feed_forward_norm: self.vector(&weight("ffn_norm"), hidden)?,
            gate_up: self
                .layer(&[(&weight("ffn_gate"), wide), (&weight("ffn_up"), wide)], hidden)?,
            down: self.layer(&[(&weight("ffn_down"), hidden)], wide)?,
            feed_forward_post_norm: self.optional(&weight("post_ffw_norm"), hidden)?,
        })
    }
}

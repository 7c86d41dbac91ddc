//! Weights of a model, packed from the tensors of a file.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::config::Config;
use super::decoder_block::DecoderBlock;
use super::fields::{ANGLES, FACTORS, LONG_FACTORS, SHORT_FACTORS};
use super::layer::LinearLayer;
use super::layer_inputs::LayerInputs;
use super::packing::{LoadOptions, PackingPlan};
use super::store::stored;
use super::streams::Streams;
use crate::error::Result;
use crate::gguf::file::{Gguf, Tensor};
use crate::simd::instructions::Instructions;

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
    pub(crate) layer_inputs: Option<LayerInputs>,
    pub(crate) streams: Option<Streams>,
    /// The bytes of the packed weights.
    pub num_bytes: usize,
    /// True if they are those of a file of the cache, which processes share.
    pub is_cached: bool,
}

/// Takes tensors out of a file, and knows which are left.
pub(crate) struct Loader<'a> {
    file: &'a Gguf,
    with: Instructions,
    plan: PackingPlan,
    left: BTreeSet<&'a str>,
}

impl Model {
    /// Packs the weights of a file for these instructions; embeddings and floats stay in it.
    ///
    /// # Errors
    /// `Unsupported` for models that are not computed here, `Layout` if tensors do not fit, `OutOfMemory`, and
    /// `Stopped` by the options.
    pub fn load(file: Arc<Gguf>, with: Instructions, options: LoadOptions<'_>) -> Result<Self> {
        let (mut model, plan) = Self::planned(file, with)?;
        (model.num_bytes, model.is_cached) = stored(&plan, with, &model.file, options)?;
        Ok(model)
    }

    /// Returns a model whose weights are not packed yet.
    pub(crate) fn planned(file: Arc<Gguf>, with: Instructions) -> Result<(Self, PackingPlan)> {
        let mut config = Config::read(&file)?;
        let left = file.tensor_names().collect();
        let mut loader = Loader { file: &file, with, plan: PackingPlan::default(), left };
        for name in [FACTORS, SHORT_FACTORS, LONG_FACTORS, ANGLES[0], ANGLES[1]] {
            loader.left.remove(name);
        }
        for number in config.layers.len()..config.layers.len() + config.num_unused_layers {
            let prefix = format!("blk.{number}.");
            loader.left.retain(|name| !name.starts_with(&prefix));
        }
        let embeddings = loader.tensor("token_embd.weight")?;
        config.vocab_size = embeddings.rows;
        let hidden = config.hidden_size;
        if embeddings.columns != hidden || u32::try_from(embeddings.rows).is_err() {
            return Err(file.corrupt("its embeddings are not of the size of its layers"));
        }
        let inputs = config.layer_input_size;
        let layer_inputs = inputs.map(|size| LayerInputs::load(&mut loader, &config, size));
        let layer_inputs = layer_inputs.transpose()?;
        let streams = config.num_streams.map(|of| Streams::load(&mut loader, hidden, of));
        let streams = streams.transpose()?;
        let blocks: Vec<_> = (0..config.layers.len())
            .map(|number| DecoderBlock::load(&mut loader, &config, number))
            .collect::<Result<_>>()?;
        let norm = format!("{}.weight", config.norm);
        let norm = if loader.has(&norm) { norm } else { "output_norm.weight".to_owned() };
        let norm = loader.vector(&norm, hidden)?;
        let is_tied = !loader.left.contains("output.weight");
        let head = if is_tied { "token_embd.weight" } else { "output.weight" };
        let head = loader.layer(&[(head, config.vocab_size)], hidden)?;
        if let Some(name) = loader.left.first() {
            let reason = format!("has the tensor {name}, which is not computed here");
            return Err(file.unsupported(reason));
        }
        let plan = loader.plan;
        let model = Self {
            file,
            config,
            with,
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

impl Loader<'_> {
    /// Returns true for a tensor of the file that is not taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.left.contains(name)
    }

    pub(crate) fn tensor(&mut self, name: &str) -> Result<Tensor> {
        self.left.remove(name);
        let tensor = self.file.tensor(name)?;
        tensor.ok_or_else(|| self.file.lacks(name))
    }

    /// The rows of a tensor that is not taken yet.
    pub(crate) fn num_rows(&self, name: &str) -> Result<usize> {
        let tensor = self.file.tensor(name)?.ok_or_else(|| self.file.lacks(name))?;
        Ok(tensor.rows)
    }

    /// Leaves a tensor out, if the file has it.
    pub(crate) fn skip(&mut self, name: &str) {
        self.left.remove(name);
    }

    /// A tensor of these rows and columns, which stays in the file.
    pub(crate) fn table(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor> {
        let tensor = self.tensor(name)?;
        if (tensor.rows, tensor.columns) != (rows, columns) {
            return Err(self.file.misshapen(name, &tensor, [rows, columns]));
        }
        Ok(tensor)
    }

    pub(crate) fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        if tensor.columns != size || tensor.rows != 1 {
            return Err(self.file.misshapen(name, &tensor, [1, size]));
        }
        Ok(tensor.numbers())
    }

    pub(crate) fn optional(&mut self, name: &str, size: usize) -> Result<Option<Vec<f32>>> {
        self.left.contains(name).then(|| self.vector(name, size)).transpose()
    }

    pub(crate) fn layer(&mut self, parts: &[(&str, usize)], columns: usize) -> Result<LinearLayer> {
        let parts = parts.iter().map(|&(name, rows)| self.matrix(name, rows, columns));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Ok(self.pack(&parts, columns))
    }

    /// The tensor of a matrix.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor> {
        let tensor = self.table(name, rows, columns)?;
        if !columns.is_multiple_of(32) {
            return Err(self.file.unsupported(format!("has {name} in part of 32 columns")));
        }
        Ok(tensor)
    }

    /// Packs matrices whose outputs lie side by side.
    pub(crate) fn pack(&mut self, parts: &[Tensor], columns: usize) -> LinearLayer {
        LinearLayer::new(parts, columns, self.with, &mut self.plan)
    }

    /// Matrices of one shape that lie one after the other in a tensor.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        number: usize,
        [rows, columns]: [usize; 2],
    ) -> Result<Vec<Tensor>> {
        let tensor = self.tensor(name)?;
        if (Some(tensor.rows), tensor.columns) != (rows.checked_mul(number), columns) {
            return Err(self.file.misshapen(name, &tensor, [rows.saturating_mul(number), columns]));
        }
        if !columns.is_multiple_of(32) {
            return Err(self.file.unsupported(format!("has {name} in part of 32 columns")));
        }
        let part = |place: usize| tensor.part(place * rows..(place + 1) * rows);
        let parts: Option<Vec<_>> = (0..number).map(part).collect();
        parts.ok_or_else(|| self.file.corrupt(format!("{name} is not all in the file")))
    }

    /// Matrices whose outputs lie side by side, by their names without `.weight`.
    pub(crate) fn linear(
        &mut self,
        parts: &[(String, usize)],
        columns: usize,
    ) -> Result<LinearLayer> {
        let names: Vec<_> =
            parts.iter().map(|(name, rows)| (format!("{name}.weight"), *rows)).collect();
        let parts: Vec<_> = names.iter().map(|(name, rows)| (name.as_str(), *rows)).collect();
        self.layer(&parts, columns)
    }

    /// The bias of such matrices, if the file has one.
    pub(crate) fn bias(&mut self, parts: &[(String, usize)]) -> Result<Option<Vec<f32>>> {
        let mut bias = Vec::new();
        for (name, rows) in parts {
            let of = self.optional(&format!("{name}.bias"), *rows)?;
            bias.extend(of.into_iter().flatten());
        }
        if !bias.is_empty() && bias.len() != parts.iter().map(|(_, rows)| rows).sum() {
            return Err(self.file.unsupported("has a bias of some queries, keys and values"));
        }
        Ok((!bias.is_empty()).then_some(bias))
    }

    /// Vectors of one size that lie one after the other in a tensor, if the file has it.
    pub(crate) fn biases(
        &mut self,
        name: &str,
        number: usize,
        size: usize,
    ) -> Result<Option<Vec<Vec<f32>>>> {
        if !self.has(name) {
            return Ok(None);
        }
        let tensor = self.tensor(name)?;
        if (tensor.rows, tensor.columns) != (number, size) {
            return Err(self.file.misshapen(name, &tensor, [number, size]));
        }
        Ok(Some(tensor.numbers().chunks(size.max(1)).map(<[f32]>::to_vec).collect()))
    }

    /// The weights of a convolution of each channel, `(kernel_size, num_channels)`, which a file has channel by channel.
    pub(crate) fn taps(
        &mut self,
        name: &str,
        kernel_size: usize,
        num_channels: usize,
    ) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        if (tensor.rows, tensor.columns) != (num_channels, kernel_size) {
            return Err(self.file.misshapen(name, &tensor, [num_channels, kernel_size]));
        }
        let of_channels = tensor.numbers();
        let tap = |place: usize| of_channels.iter().skip(place).step_by(kernel_size);
        Ok((0..kernel_size).flat_map(tap).copied().collect())
    }
}

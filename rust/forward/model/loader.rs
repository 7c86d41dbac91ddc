//! Reading of the tensors of a model out of its file.

use std::collections::BTreeSet;

use super::linear::LinearLayer;
use super::packing::PackingPlan;
use crate::error::Result;
use crate::gguf::file::{Gguf, Tensor};
use crate::simd::instructions::Instructions;

/// Takes tensors out of a file, and knows which remain.
///
/// Names are those of the file without [`prefix`](Self::prefix); those of linear layers are also without `.weight`.
pub(crate) struct Loader<'a> {
    file: &'a Gguf,
    isa: Instructions,
    /// The matrices that are to be packed.
    pub(crate) plan: PackingPlan,
    /// The names of the tensors that were not taken yet.
    remaining: BTreeSet<&'a str>,
    /// The prefix of all names: `blk.3.` while the layer 3 is loaded.
    pub(crate) prefix: String,
}

impl<'a> Loader<'a> {
    /// Begins with all tensors of a file.
    pub(crate) fn new(file: &'a Gguf, isa: Instructions) -> Self {
        let (plan, prefix) = (PackingPlan::default(), String::new());
        Self { file, isa, plan, remaining: file.tensor_names().collect(), prefix }
    }

    /// The name in the file of a tensor.
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns true for a tensor of the file that was not taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.remaining.contains(self.full_name(name).as_str())
    }

    /// The first name in the file that was not taken.
    pub(crate) fn first_remaining(&self) -> Option<&str> {
        self.remaining.first().copied()
    }

    /// Takes a tensor.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<Tensor> {
        let name = self.full_name(name);
        self.remaining.remove(name.as_str());
        self.file.tensor(&name)?.ok_or_else(|| self.file.lacks(&name))
    }

    /// The rows of a tensor, which is not taken by this.
    pub(crate) fn num_rows(&self, name: &str) -> Result<usize> {
        let name = self.full_name(name);
        let tensor = self.file.tensor(&name)?.ok_or_else(|| self.file.lacks(&name))?;
        Ok(tensor.rows)
    }

    /// Leaves a tensor out, if the file has it.
    pub(crate) fn skip(&mut self, name: &str) {
        let name = self.full_name(name);
        self.remaining.remove(name.as_str());
    }

    /// Leaves all tensors out whose names begin with the prefix.
    pub(crate) fn skip_all(&mut self) {
        self.remaining.retain(|name| !name.starts_with(&self.prefix));
    }

    /// Takes a tensor of these rows and columns, which stays in the file.
    pub(crate) fn table(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor> {
        let tensor = self.tensor(name)?;
        if (tensor.rows, tensor.columns) != (rows, columns) {
            return Err(self.file.misshapen(&self.full_name(name), &tensor, [rows, columns]));
        }
        Ok(tensor)
    }

    /// Takes a vector, as floats.
    pub(crate) fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        Ok(self.table(name, 1, size)?.numbers())
    }

    /// Takes a vector, `None` where the file has none.
    pub(crate) fn optional(&mut self, name: &str, size: usize) -> Result<Option<Vec<f32>>> {
        self.has(name).then(|| self.vector(name, size)).transpose()
    }

    /// Takes the tensor of a matrix, by its name with `.weight`.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor> {
        let tensor = self.table(name, rows, columns)?;
        self.require_whole_blocks(name, columns)?;
        Ok(tensor)
    }

    /// Kernels take 32 columns at a time.
    fn require_whole_blocks(&self, name: &str, columns: usize) -> Result<()> {
        if columns.is_multiple_of(32) {
            return Ok(());
        }
        let name = self.full_name(name);
        let reason = format!("has {name} with {columns} columns, not a multiple of 32");
        Err(self.file.unsupported(reason))
    }

    /// Packs matrices whose outputs lie side by side.
    pub(crate) fn pack(&mut self, parts: &[Tensor], columns: usize) -> LinearLayer {
        LinearLayer::new(parts, columns, self.isa, &mut self.plan)
    }

    /// Takes matrices whose outputs lie side by side, by names and numbers of rows, with their biases where the file
    /// has them.
    pub(crate) fn linear(
        &mut self,
        parts: &[(&str, usize)],
        columns: usize,
    ) -> Result<LinearLayer> {
        let matrix = |&(name, rows): &(&str, usize)| {
            let name = format!("{name}.weight");
            self.matrix(&name, rows, columns)
        };
        let tensors = parts.iter().map(matrix).collect::<Result<Vec<_>>>()?;
        let mut layer = self.pack(&tensors, columns);
        layer.bias = self.bias(parts)?;
        Ok(layer)
    }

    /// Takes the biases of matrices whose outputs lie side by side.
    fn bias(&mut self, parts: &[(&str, usize)]) -> Result<Option<Vec<f32>>> {
        let mut bias = Vec::new();
        for &(name, rows) in parts {
            let part = self.optional(&format!("{name}.bias"), rows)?;
            bias.extend(part.into_iter().flatten());
        }
        if !bias.is_empty() && bias.len() != parts.iter().map(|part| part.1).sum() {
            let names: Vec<_> = parts.iter().map(|part| part.0).collect();
            let reason = format!("has a bias of some of {}{}", self.prefix, names.join(", "));
            return Err(self.file.unsupported(reason));
        }
        Ok((!bias.is_empty()).then_some(bias))
    }

    /// Takes matrices of one shape, `(rows, columns)`, that lie one after the other in a tensor.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        number: usize,
        [rows, columns]: [usize; 2],
    ) -> Result<Vec<Tensor>> {
        let all_rows = rows.saturating_mul(number);
        let tensor = self.table(name, all_rows, columns)?;
        self.require_whole_blocks(name, columns)?;
        let part = |index: usize| tensor.part(index * rows..(index + 1) * rows);
        let parts: Option<Vec<_>> = (0..number).map(part).collect();
        let name = self.full_name(name);
        parts.ok_or_else(|| self.file.corrupt(format!("{name} is not all in the file")))
    }

    /// Takes vectors of one size that lie one after the other in a tensor, if the file has it.
    pub(crate) fn biases(
        &mut self,
        name: &str,
        number: usize,
        size: usize,
    ) -> Result<Option<Vec<Vec<f32>>>> {
        if !self.has(name) {
            return Ok(None);
        }
        let numbers = self.table(name, number, size)?.numbers();
        Ok(Some(numbers.chunks(size.max(1)).map(<[f32]>::to_vec).collect()))
    }

    /// Takes the weights of a convolution of each channel, `(kernel_size, num_channels)`; a file has them channel by
    /// channel.
    pub(crate) fn taps(
        &mut self,
        name: &str,
        kernel_size: usize,
        num_channels: usize,
    ) -> Result<Vec<f32>> {
        let by_channel = self.table(name, num_channels, kernel_size)?.numbers();
        let tap = |index: usize| by_channel.iter().skip(index).step_by(kernel_size);
        Ok((0..kernel_size).flat_map(tap).copied().collect())
    }
}

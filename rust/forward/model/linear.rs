//! Linear layers: matrices of the file, by threads.

use super::elementwise::add;
use super::packing::{LoadOptions, PackingPlan};
use crate::error::{Error, Result};
use crate::gguf::file::Tensor;
use crate::kernel::packed::PackedMatrix;
use crate::kernel::rows::multiply_rows;
use crate::kernel::states::{Activations, TokenTiles};
use crate::kernel::tile::{RowGroups, multiply};
use crate::parallel;
use crate::simd::instructions::Instructions;

/// The least multiplications of a thread: fewer take less time than a thread needs to begin.
const MIN_THREAD_PRODUCTS: usize = 1 << 16;

/// Matrices whose outputs lie side by side.
#[derive(Debug)]
pub struct LinearLayer {
    /// The matrices, each with rows of one type.
    pub(crate) parts: Vec<PackedMatrix>,
    /// The number that each output starts from, `(num_outputs,)`; `None` for zeros.
    pub(crate) bias: Option<Vec<f32>>,
    /// The columns of all matrices.
    pub(crate) num_inputs: usize,
    /// The rows of all matrices together.
    pub(crate) num_outputs: usize,
    /// The instructions that the matrices are packed for.
    isa: Instructions,
}

impl LinearLayer {
    /// Plans matrices of as many columns; those of one type that follow each other become one.
    pub(crate) fn new(
        parts: &[Tensor],
        columns: usize,
        isa: Instructions,
        plan: &mut PackingPlan,
    ) -> Self {
        let is_joined = |a: &Tensor, b: &Tensor| a.kind == b.kind && a.kind.block_size() > 1;
        let joined = parts.chunk_by(is_joined);
        let parts: Vec<_> = joined.filter_map(|parts| plan.add(parts, isa.lanes())).collect();
        let num_outputs = parts.iter().map(|part| part.rows).sum();
        Self { parts, bias: None, num_inputs: columns, num_outputs, isa }
    }

    /// Packs rows of whole blocks; floats stay where they are.
    ///
    /// # Errors
    /// [`Error::Invalid`] if rows are not whole blocks, and [`Error::OutOfMemory`].
    pub fn of(tensor: Tensor, isa: Instructions) -> Result<Self> {
        let Tensor { kind, rows, columns, ref bytes } = tensor;
        let size = kind.row_bytes(columns).filter(|&row| row > 0 && columns.is_multiple_of(32));
        if size.and_then(|row| row.checked_mul(rows)) != Some(bytes.len()) {
            return Err(Error::invalid("columns", "must be whole blocks, and a multiple of 32"));
        }
        let mut plan = PackingPlan::default();
        let layer = Self::new(&[tensor], columns, isa, &mut plan);
        plan.in_memory(isa, LoadOptions::default(), &|_| ())?;
        Ok(layer)
    }

    /// The packed bytes of each matrix, of floats the rows where they lie.
    pub fn packed(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(PackedMatrix::bytes)
    }

    /// Returns the products of each row with the states of each token, token after token.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the states are not whole tokens.
    pub fn product(
        &self,
        states: &[f32],
        activations: Activations,
        num_threads: usize,
    ) -> Result<Vec<f32>> {
        if !states.len().is_multiple_of(self.num_inputs) {
            return Err(Error::invalid("states", "must be as many as columns, for each token"));
        }
        let mut outputs = vec![0.0; states.len() / self.num_inputs * self.num_outputs];
        self.multiply(states, activations, num_threads, &mut TokenTiles::default(), &mut outputs);
        Ok(outputs)
    }

    /// Writes the products of each row with the states of each token, token after token.
    pub(crate) fn multiply(
        &self,
        states: &[f32],
        activations: Activations,
        num_threads: usize,
        prepared: &mut TokenTiles,
        outputs: &mut [f32],
    ) {
        prepared.clear();
        let mut start = 0;
        for part in &self.parts {
            prepared.fill(self.isa, states, part, activations);
            let rows = start..start + part.rows;
            start = rows.end;
            let tokens = outputs.chunks_exact_mut(self.num_outputs.max(1));
            let tokens = tokens.map(|outputs| &mut outputs[rows.clone()]);
            let num_products = rows.len() * self.num_inputs * prepared.num_tokens;
            let num_shares = num_threads.min(num_products / MIN_THREAD_PRODUCTS).max(1);
            let shares = shares(rows.len(), part.lanes, tokens.collect(), num_shares);
            let prepared = &*prepared;
            let multiply = if part.bits > 0 { multiply } else { multiply_rows };
            parallel::each(shares, |(groups, mut outputs)| {
                multiply(self.isa, part, prepared, RowGroups { groups, outputs: &mut outputs });
            });
        }
        if let Some(bias) = &self.bias {
            outputs.chunks_exact_mut(bias.len()).for_each(|outputs| add(outputs, bias));
        }
    }
}

/// The groups of rows of a thread, and the outputs of these rows, a slice for each token.
type Share<'a> = (std::ops::Range<usize>, Vec<&'a mut [f32]>);

/// Divides groups of rows, and the outputs of each token, evenly.
fn shares(
    num_rows: usize,
    group_rows: usize,
    mut outputs: Vec<&mut [f32]>,
    num_shares: usize,
) -> Vec<Share<'_>> {
    let mut shares = Vec::with_capacity(num_shares);
    let mut from = 0;
    for num_remaining in (1..=num_shares).rev() {
        let to = from + (num_rows.div_ceil(group_rows) - from).div_ceil(num_remaining);
        let length = (to * group_rows).min(num_rows) - (from * group_rows).min(num_rows);
        let halves = outputs.into_iter().map(|outputs| outputs.split_at_mut(length));
        let (first, remaining) = halves.unzip();
        outputs = remaining;
        shares.push((from..to, first));
        from = to;
    }
    shares
}

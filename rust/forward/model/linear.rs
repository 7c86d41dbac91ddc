//! Linear layers: matrices of the file, by threads.

use super::packing::{LoadOptions, PackingPlan};
use crate::error::{Error, Result};
use crate::gguf::file::Tensor;
use crate::kernel::packed::Packed;
use crate::kernel::rows::multiply_rows;
use crate::kernel::states::{Activations, States};
use crate::kernel::tile::{Range, multiply};
use crate::parallel;
use crate::simd::instructions::Instructions;

/// Fewer products take less time than a thread needs to begin.
const LEAST_PART: usize = 1 << 16;

/// Matrices whose outputs lie side by side.
#[derive(Debug)]
pub struct LinearLayer {
    pub(crate) parts: Vec<Packed>,
    pub(crate) num_inputs: usize,
    pub(crate) num_outputs: usize,
    with: Instructions,
}

impl LinearLayer {
    /// Plans matrices of as many columns; those of one type that follow each other become one.
    pub(crate) fn new(
        parts: &[Tensor],
        columns: usize,
        with: Instructions,
        plan: &mut PackingPlan,
    ) -> Self {
        let is_alike =
            |of: &Tensor, next: &Tensor| of.kind == next.kind && of.kind.block_size() > 1;
        let alike = parts.chunk_by(is_alike);
        let parts: Vec<_> = alike.filter_map(|alike| plan.add(alike, with.lanes())).collect();
        let num_outputs = parts.iter().map(|of| of.rows).sum();
        Self { parts, num_inputs: columns, num_outputs, with }
    }

    /// Packs rows of whole blocks; floats stay where they are.
    ///
    /// # Errors
    /// [`Error::Invalid`] if rows are not whole blocks, and [`Error::OutOfMemory`].
    pub fn of(tensor: Tensor, with: Instructions) -> Result<Self> {
        let Tensor { kind, rows, columns, ref bytes } = tensor;
        let size = kind.row_bytes(columns).filter(|&row| row > 0 && columns.is_multiple_of(32));
        if size.and_then(|row| row.checked_mul(rows)) != Some(bytes.len()) {
            return Err(Error::invalid("columns", "must be whole blocks, and a multiple of 32"));
        }
        let mut plan = PackingPlan::default();
        let layer = Self::new(&[tensor], columns, with, &mut plan);
        plan.in_memory(with, LoadOptions::default(), &|_| ())?;
        Ok(layer)
    }

    /// The packed bytes of each matrix, of floats the rows where they lie.
    pub fn packed(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(Packed::bytes)
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
        self.multiply(states, activations, num_threads, &mut States::default(), &mut outputs);
        Ok(outputs)
    }

    /// Writes the products of each row with the states of each token, token after token.
    pub(crate) fn multiply(
        &self,
        states: &[f32],
        activations: Activations,
        num_threads: usize,
        prepared: &mut States,
        outputs: &mut [f32],
    ) {
        prepared.clear();
        let mut start = 0;
        for part in &self.parts {
            prepared.fill(self.with, states, part, activations);
            let places = start..start + part.rows;
            start = places.end;
            let rows = outputs.chunks_exact_mut(self.num_outputs.max(1));
            let rows = rows.map(|of_token| &mut of_token[places.clone()]);
            let work = places.len() * self.num_inputs * prepared.num_tokens;
            let number = num_threads.min(work / LEAST_PART).max(1);
            let shares = shares(places.len(), part.lanes, rows.collect(), number);
            let prepared = &*prepared;
            let multiply = if part.bits > 0 { multiply } else { multiply_rows };
            parallel::each(shares, |(groups, mut outputs)| {
                multiply(self.with, part, prepared, Range { groups, outputs: &mut outputs });
            });
        }
    }
}

type Share<'a> = (std::ops::Range<usize>, Vec<&'a mut [f32]>);

/// Divides the groups of rows, and the outputs of each token, evenly.
fn shares(
    rows: usize,
    group: usize,
    mut outputs: Vec<&mut [f32]>,
    number: usize,
) -> Vec<Share<'_>> {
    let mut shares = Vec::with_capacity(number);
    let mut from = 0;
    for left in (1..=number).rev() {
        let to = from + (rows.div_ceil(group) - from).div_ceil(left);
        let length = (to * group).min(rows) - (from * group).min(rows);
        let halves = outputs.into_iter().map(|of_token| of_token.split_at_mut(length));
        let (first, rest) = halves.unzip();
        outputs = rest;
        shares.push((from..to, first));
        from = to;
    }
    shares
}

//! Linear layers: matrices of the file, by threads.

use super::pack::{Arena, Packed};
use crate::error::{Error, Result};
use crate::gguf::Tensor;
use crate::kernel::{Activations, Range, States, multiply, multiply_rows};
use crate::parallel;
use crate::simd::Instructions;

/// Fewer products take less time than a thread needs to begin.
const LEAST_PART: usize = 1 << 16;

#[derive(Debug)]
enum Matrix {
    Packed(Packed),
    /// Rows of floats, where they lie.
    Floats(Tensor),
}

/// Matrices whose outputs lie side by side.
#[derive(Debug)]
pub struct Layer {
    parts: Vec<Matrix>,
    num_inputs: usize,
    num_outputs: usize,
    with: Instructions,
}

impl Matrix {
    fn num_rows(&self) -> usize {
        match self {
            Self::Packed(of) => of.rows,
            Self::Floats(of) => of.rows,
        }
    }

    /// The rows of a group, which are not divided.
    fn group(&self) -> usize {
        match self {
            Self::Packed(of) => of.lanes,
            Self::Floats(_) => 1,
        }
    }
}

impl Layer {
    /// Packs matrices of as many columns; those of one type that follow each other become one.
    ///
    /// `release` is called with bytes of the parts that are not read again.
    pub(crate) fn new(
        parts: &[Tensor],
        columns: usize,
        with: Instructions,
        arena: &mut Arena,
        release: impl Fn(&[u8]),
    ) -> Self {
        let mut matrices = Vec::new();
        for alike in parts.chunk_by(|one, other| one.kind == other.kind) {
            let kind = alike[0].kind;
            if kind.block_size() == 1 {
                matrices.extend(alike.iter().cloned().map(Matrix::Floats));
                continue;
            }
            let packed = if let [one] = alike {
                Packed::new(kind, &one.bytes, columns, with.lanes(), arena, &release)
            } else {
                let mut joined = Vec::new();
                for part in alike {
                    joined.extend_from_slice(&part.bytes);
                    release(&part.bytes);
                }
                Packed::new(kind, &joined, columns, with.lanes(), arena, |_| ())
            };
            matrices.extend(packed.map(Matrix::Packed));
        }
        let num_outputs = matrices.iter().map(Matrix::num_rows).sum();
        Self { parts: matrices, num_inputs: columns, num_outputs, with }
    }

    /// Packs rows of whole blocks; floats stay where they are.
    pub fn of(tensor: Tensor, with: Instructions) -> Result<Self> {
        let Tensor { kind, rows, columns, ref bytes } = tensor;
        let size = kind.row_bytes(columns).filter(|&row| row > 0 && columns.is_multiple_of(32));
        if size.and_then(|row| row.checked_mul(rows)) != Some(bytes.len()) {
            return Err(Error::invalid("columns", "must be whole blocks, and a multiple of 32"));
        }
        let mut arena = Arena::new(Packed::size(&tensor, with.lanes()))?;
        let mut layer = Self::new(&[tensor], columns, with, &mut arena, |_| ());
        arena.settle(layer.packed());
        Ok(layer)
    }

    /// Returns the products of each row with the states of each token, token after token.
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

    pub(crate) fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    pub(crate) fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    pub(crate) fn packed(&mut self) -> impl Iterator<Item = &mut Packed> {
        self.parts.iter_mut().filter_map(|part| match part {
            Matrix::Packed(of) => Some(of),
            Matrix::Floats(_) => None,
        })
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
            let bits = match part {
                Matrix::Packed(of) => of.bits,
                Matrix::Floats(_) => 0,
            };
            prepared.fill(self.with, states, self.num_inputs, bits, activations);
            let places = start..start + part.num_rows();
            start = places.end;
            let rows = outputs.chunks_exact_mut(self.num_outputs);
            let rows = rows.map(|of_token| &mut of_token[places.clone()]);
            let work = places.len() * self.num_inputs * prepared.num_tokens;
            let number = num_threads.min(work / LEAST_PART).max(1);
            let shares = shares(places.len(), part.group(), rows.collect(), number);
            let prepared = &*prepared;
            parallel::each(shares, |(groups, mut outputs)| {
                let range = Range { groups, outputs: &mut outputs };
                match part {
                    Matrix::Packed(of) => multiply(self.with, of, prepared, range),
                    Matrix::Floats(of) => multiply_rows(self.with, of, prepared, range),
                }
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

//! Linear layers: matrices of the file, by threads.

use super::blocks::BlockType;
use super::pack::{Arena, Packed};
use crate::error::{Error, Result};
use crate::gguf::Bytes;
use crate::kernel::{Activations, Range, States, multiply, multiply_rows};
use crate::parallel;
use crate::simd::Instructions;

/// Fewer products take less time than a thread needs to begin.
const LEAST_PART: usize = 1 << 16;

/// Some rows of weights of one type.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) kind: BlockType,
    pub(crate) bytes: Bytes,
}

/// Rows of floats, where they lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floats<B> {
    pub(crate) kind: BlockType,
    pub(crate) bytes: B,
    pub(crate) columns: usize,
}

#[derive(Debug)]
enum Matrix {
    Packed(Packed),
    Floats(Floats<Bytes>),
}

/// Matrices whose outputs lie side by side.
#[derive(Debug)]
pub(crate) struct Layer {
    parts: Vec<Matrix>,
    num_inputs: usize,
    num_outputs: usize,
    with: Instructions,
}

impl Matrix {
    fn num_rows(&self) -> usize {
        match self {
            Self::Packed(of) => of.rows,
            Self::Floats(of) => of.bytes.len() / (of.columns * of.kind.block_bytes()).max(1),
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
        parts: &[Part],
        columns: usize,
        with: Instructions,
        arena: &mut Arena,
        release: impl Fn(&[u8]),
    ) -> Self {
        let mut matrices = Vec::new();
        for alike in parts.chunk_by(|one, other| one.kind == other.kind) {
            let kind = alike[0].kind;
            if kind.block_size() == 1 {
                let floats = |part: &Part| Floats { kind, bytes: part.bytes.clone(), columns };
                matrices.extend(alike.iter().map(floats).map(Matrix::Floats));
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
            let plane = match part {
                Matrix::Packed(of) => Some(of.plane),
                Matrix::Floats(_) => None,
            };
            prepared.fill(self.with, states, self.num_inputs, plane, activations);
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
                    Matrix::Floats(Floats { kind, bytes, columns }) => {
                        let rows = Floats { kind: *kind, bytes: &**bytes, columns: *columns };
                        multiply_rows(self.with, rows, prepared, range);
                    }
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

/// Returns the products of each row of floats with the states of each token, token after token.
///
/// # Errors
///
/// `columns` is not a multiple of 32, or the weights or states are not whole rows of them.
pub fn product_of_floats(
    kind: BlockType,
    bytes: &[u8],
    columns: usize,
    states: &[f32],
    num_threads: usize,
) -> Result<Vec<f32>> {
    let row = columns * kind.block_bytes();
    if columns == 0 || !columns.is_multiple_of(32) || kind.block_size() > 1 {
        return Err(Error::invalid("columns", "must be a multiple of 32, of floats"));
    }
    if !bytes.len().is_multiple_of(row) || !states.len().is_multiple_of(columns) {
        return Err(Error::invalid("states", "must be as many as columns, for each token"));
    }
    let (num_rows, with) = (bytes.len() / row, Instructions::available()[0]);
    let mut prepared = States::default();
    prepared.fill(with, states, columns, None, Activations::Float32);
    let mut outputs = vec![0.0; prepared.num_tokens * num_rows];
    let rows = outputs.chunks_exact_mut(num_rows.max(1)).collect();
    let number = num_threads.min(num_rows * columns / LEAST_PART).max(1);
    parallel::each(shares(num_rows, 1, rows, number), |(groups, mut outputs)| {
        let range = Range { groups, outputs: &mut outputs };
        multiply_rows(with, Floats { kind, bytes, columns }, &prepared, range);
    });
    Ok(outputs)
}

/// A linear layer by itself.
#[derive(Debug)]
pub struct Linear(Layer);

impl Linear {
    /// Packs rows of whole blocks for these instructions; floats stay where they are.
    ///
    /// # Errors
    ///
    /// `columns` is not a multiple of 32 and of a block, or the bytes are not whole rows.
    pub fn new(
        kind: BlockType,
        bytes: Bytes,
        columns: usize,
        instructions: Instructions,
    ) -> Result<Self> {
        let row = kind.row_bytes(columns).filter(|&row| row > 0 && columns.is_multiple_of(32));
        if row.is_none_or(|row| !bytes.len().is_multiple_of(row)) {
            return Err(Error::invalid("columns", "must be whole blocks, and a multiple of 32"));
        }
        let rows = row.map_or(0, |row| bytes.len() / row);
        let mut arena = Arena::new(Packed::size(kind, rows, columns, instructions.lanes()))?;
        let parts = [Part { kind, bytes }];
        let mut layer = Layer::new(&parts, columns, instructions, &mut arena, |_| ());
        arena.settle(layer.packed());
        Ok(Self(layer))
    }

    /// Returns the products of each row with the states of each token, token after token.
    ///
    /// # Errors
    ///
    /// The states are not those of whole tokens.
    pub fn product(
        &self,
        states: &[f32],
        activations: Activations,
        num_threads: usize,
    ) -> Result<Vec<f32>> {
        let columns = self.0.num_inputs();
        if !states.len().is_multiple_of(columns) {
            return Err(Error::invalid("states", "must be as many as columns, for each token"));
        }
        let mut outputs = vec![0.0; states.len() / columns * self.0.num_outputs];
        let mut prepared = States::default();
        self.0.multiply(states, activations, num_threads, &mut prepared, &mut outputs);
        Ok(outputs)
    }
}

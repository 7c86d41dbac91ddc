//! Linear layers: matrices of the file, by threads.

use std::borrow::Cow;

use super::blocks::BlockType;
use super::pack::Packed;
use crate::error::{Error, Result};
use crate::kernel::{Activations, Range, States, multiply};
use crate::parallel;
use crate::simd::Instructions;

/// Fewer products take less time than a thread needs to begin.
const LEAST_PART: usize = 1 << 16;

/// Some rows of weights of one type, before they are packed.
#[derive(Debug, Clone)]
pub(crate) struct Part<'a> {
    pub(crate) kind: BlockType,
    pub(crate) bytes: Cow<'a, [u8]>,
}

/// Matrices whose outputs lie side by side.
#[derive(Debug)]
pub(crate) struct Layer {
    parts: Vec<Packed>,
    num_outputs: usize,
    with: Instructions,
}

impl Layer {
    /// Packs matrices of as many columns; those of one type that follow each other become one.
    ///
    /// `release` is called with bytes of the parts that are not read again.
    pub(crate) fn new(
        parts: Vec<Part<'_>>,
        columns: usize,
        with: Instructions,
        release: impl Fn(&[u8]),
    ) -> Self {
        let mut joined: Vec<Part> = Vec::new();
        for part in parts {
            match joined.last_mut() {
                Some(last) if last.kind == part.kind => {
                    if let Cow::Borrowed(bytes) = last.bytes {
                        last.bytes = Cow::Owned(bytes.to_vec());
                        release(bytes);
                    }
                    last.bytes.to_mut().extend_from_slice(&part.bytes);
                    release(&part.bytes);
                }
                _ => joined.push(part),
            }
        }
        let pack = |part: Part<'_>| {
            let is_of_file = matches!(part.bytes, Cow::Borrowed(_));
            let release = |bytes: &[u8]| {
                if is_of_file {
                    release(bytes);
                }
            };
            Packed::new(part.kind, &part.bytes, columns, with.lanes(), release)
        };
        let parts: Vec<_> = joined.into_iter().map(pack).collect();
        let num_outputs = parts.iter().map(|part| part.rows).sum();
        Self { parts, num_outputs, with }
    }

    pub(crate) fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    pub(crate) fn num_inputs(&self) -> usize {
        self.parts.first().map_or(1, |part| part.columns)
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
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
            let rows = outputs.chunks_exact_mut(self.num_outputs);
            let rows = rows.map(|of_token| &mut of_token[places.clone()]);
            let work = part.rows * part.columns * prepared.num_tokens;
            let shares = shares(part, rows.collect(), num_threads.min(work / LEAST_PART).max(1));
            let prepared = &*prepared;
            parallel::each(shares, |(groups, mut outputs)| {
                multiply(self.with, part, prepared, Range { groups, outputs: &mut outputs });
            });
        }
    }
}

type Share<'a> = (std::ops::Range<usize>, Vec<&'a mut [f32]>);

/// Divides the groups of rows, and the outputs of each token, evenly.
fn shares<'a>(weights: &Packed, mut outputs: Vec<&'a mut [f32]>, number: usize) -> Vec<Share<'a>> {
    let mut shares = Vec::with_capacity(number);
    let mut from = 0;
    for left in (1..=number).rev() {
        let to = from + (weights.num_groups() - from).div_ceil(left);
        let length =
            (to * weights.lanes).min(weights.rows) - (from * weights.lanes).min(weights.rows);
        let halves = outputs.into_iter().map(|of_token| of_token.split_at_mut(length));
        let (first, rest) = halves.unzip();
        outputs = rest;
        shares.push((from..to, first));
        from = to;
    }
    shares
}

/// A matrix by itself.
#[derive(Debug)]
pub struct PackedMatrix(Layer);

impl PackedMatrix {
    /// Packs rows of whole blocks for these instructions.
    ///
    /// # Errors
    ///
    /// `columns` is not a multiple of 32 and of a block, or the bytes are not whole rows.
    pub fn new(
        kind: BlockType,
        bytes: &[u8],
        columns: usize,
        instructions: Instructions,
    ) -> Result<Self> {
        let row = kind.row_bytes(columns).filter(|&row| row > 0 && columns.is_multiple_of(32));
        if row.is_none_or(|row| !bytes.len().is_multiple_of(row)) {
            return Err(Error::invalid("columns", "must be whole blocks, and a multiple of 32"));
        }
        let part = Part { kind, bytes: bytes.into() };
        Ok(Self(Layer::new(vec![part], columns, instructions, |_| ())))
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

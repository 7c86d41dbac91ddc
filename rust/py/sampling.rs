//! Draws of tokens, and the likeliest ones.

use std::borrow::Cow;

use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::{Matrix, shaped};
use crate::error::Result;

/// The place of the largest ``p / t``, t the exponential time -ln(1 - u) of a uniform number in [0, 1).
///
/// It is what `torch.multinomial` draws from `probs`, which need not sum to one, where its random numbers are
/// these. None where two are closer than rounding can tell, and where there is nothing to draw from: a
/// probability is infinite, or none is above 0.
#[pyfunction]
pub(crate) fn draw(
    probs: PyReadonlyArray1<'_, f32>,
    uniforms: PyReadonlyArray1<'_, f64>,
) -> Result<Option<usize>> {
    let (probs, uniforms) = (probs.as_slice()?, uniforms.as_slice()?);
    if probs.len() == uniforms.len() {
        return Ok(specds::draft::multinomial(probs, uniforms));
    }
    let lengths = format!("{} and {}", probs.len(), uniforms.len());
    let message = format!("probs and uniforms must be as many as each other, got {lengths}");
    Err(PyValueError::new_err(message).into())
}

/// The places of the `k` largest scores of each row, or of all, the largest first, of equal ones the first.
///
/// Some µs a row of some thousand scores, where `torch.topk` takes some 20 on a CPU.
#[pyfunction]
pub(crate) fn likeliest(scores: PyReadonlyArray2<'_, f32>, k: usize) -> Result<Matrix> {
    let scores = scores.as_array();
    let (num_rows, num_scores) = scores.dim();
    let mut places = Vec::with_capacity(num_rows * k.min(num_scores));
    for row in scores.rows() {
        let row = row.to_slice().map_or_else(|| row.to_vec().into(), Cow::Borrowed);
        places.extend(specds::draft::top_k(&row, k).into_iter().map(i64::from));
    }
    shaped((num_rows, k.min(num_scores)), places)
}

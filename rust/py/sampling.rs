//! Sampling of tokens, and top-k.

use std::borrow::Cow;

use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::{Matrix, shaped};
use crate::error::Result;

/// Draws the index that `torch.multinomial` draws from `probs` if its random numbers are `uniforms`.
///
/// It is the index of the largest ``p / t``, where t = -ln(1 - u) is the exponential time of a uniform number in
/// [0, 1). `probs` need not sum to one. The result is None if the two largest are too close for the rounding, if a
/// probability is infinite, or if none is above 0.
#[pyfunction]
pub(crate) fn draw(
    probs: PyReadonlyArray1<'_, f32>,
    uniforms: PyReadonlyArray1<'_, f64>,
) -> Result<Option<usize>> {
    let (probs, uniforms) = (probs.as_slice()?, uniforms.as_slice()?);
    if probs.len() == uniforms.len() {
        return Ok(specds_core::verify::multinomial(probs, uniforms));
    }
    let lengths = format!("{} and {}", probs.len(), uniforms.len());
    let message = format!("probs and uniforms must have the same length, got {lengths}");
    Err(PyValueError::new_err(message).into())
}

/// Returns the indices of the `k` largest scores of each row: score descending, then index ascending.
///
/// It takes a few µs for a row of some thousand scores; `torch.topk` takes about 20 on a CPU.
#[pyfunction]
pub(crate) fn likeliest(scores: PyReadonlyArray2<'_, f32>, k: usize) -> Result<Matrix> {
    let scores = scores.as_array();
    let (num_rows, num_scores) = scores.dim();
    let mut places = Vec::with_capacity(num_rows * k.min(num_scores));
    for row in scores.rows() {
        let row = row.to_slice().map_or_else(|| row.to_vec().into(), Cow::Borrowed);
        places.extend(specds_core::verify::top_k(&row, k).into_iter().map(i64::from));
    }
    shaped((num_rows, k.min(num_scores)), places)
}

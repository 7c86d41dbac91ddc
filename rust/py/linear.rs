//! `specds._core.linear_product`, a linear layer for few tokens.

use numpy::PyReadonlyArray2;
use pyo3::prelude::*;
use specds_forward::model::LinearLayer;
use specds_forward::{Activations, Error, Instructions};

use crate::arrays::{Matrix, shaped};
use crate::error::Result;
use crate::forward::ArrayWeights;

/// Multiplies each token's states by each row of the weights.
///
/// Each weight is read once. The rounding of a product does not depend on the number of tokens.
///
/// Args:
///     weights: float32 or uint16 bits of bfloat16, shape `(num_outputs, size)`; `size` is a multiple
///         of 32.
///     states: float32, shape `(num_tokens, size)`.
///     num_threads: Number of threads.
///
/// Returns:
///     The products, float32, shape `(num_tokens, num_outputs)`.
///
/// Raises:
///     ValueError: The shapes do not match.
#[pyfunction]
pub(crate) fn linear_product(
    py: Python<'_>,
    weights: ArrayWeights<'_>,
    states: PyReadonlyArray2<'_, f32>,
    num_threads: usize,
) -> Result<Matrix<f32>> {
    let weights = weights.tensor()?;
    let ([num_tokens, columns], num_outputs) = (states.as_array().dim().into(), weights.rows);
    if columns != weights.columns {
        let reason = format!("must have {} columns, as the weights", weights.columns);
        return Err(Error::invalid("states", reason).into());
    }
    let states = states.as_slice()?;
    let layer = LinearLayer::of(weights, Instructions::available()[0])?;
    let made = py.detach(|| layer.product(states, Activations::Float32, num_threads));
    shaped([num_tokens, num_outputs], made?)
}

/// Returns whether this processor has the vector instructions that make `linear_product` fast.
#[pyfunction]
pub(crate) fn has_linear_product() -> bool {
    Instructions::available().len() > 1
}

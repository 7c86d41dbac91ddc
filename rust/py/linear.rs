//! `specds._core.linear_product`, a linear layer for few tokens.

use numpy::{PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use specds::linear::{self, LayerWeights};

use crate::error::Result;

/// The weights of a layer, in 32 or 16 bits.
#[derive(FromPyObject)]
pub(crate) enum Array<'py> {
    F32(PyReadonlyArray2<'py, f32>),
    BF16(PyReadonlyArray2<'py, u16>),
}

/// Multiplies each token's states by each row of the weights.
///
/// Each weight is read once. The rounding of a product does not depend on the number of tokens.
///
/// Args:
///     weights: float32, or uint16 bits of bfloat16, shape `(num_outputs, size)`; `size` is a multiple of 16.
///     states: float32, shape `(num_tokens, size)`.
///     num_threads: Number of threads.
///
/// Returns:
///     The products, float32, shape `(num_tokens, num_outputs)`.
///
/// Raises:
///     ValueError: The shapes do not match, or this processor lacks the vector instructions.
#[pyfunction]
pub(crate) fn linear_product<'py>(
    py: Python<'py>,
    weights: Array<'py>,
    states: PyReadonlyArray2<'py, f32>,
    num_threads: usize,
) -> Result<Bound<'py, PyArray2<f32>>> {
    let num_tokens = states.as_array().nrows();
    let size = states.as_array().ncols();
    let (num_outputs, weights) = match &weights {
        Array::F32(of) => (of.as_array().nrows(), LayerWeights::F32(of.as_slice()?)),
        Array::BF16(of) => (of.as_array().nrows(), LayerWeights::BF16(of.as_slice()?)),
    };
    let made = PyArray2::zeros(py, (num_tokens, num_outputs), false);
    let mut outputs = made.readwrite();
    let (states, outputs) = (states.as_slice()?, outputs.as_slice_mut()?);
    py.detach(|| linear::product(weights, states, size, num_threads, outputs))?;
    Ok(made)
}

/// Returns whether this processor has the vector instructions of `linear_product`.
#[pyfunction]
pub(crate) fn has_linear_product() -> bool {
    linear::is_fast()
}

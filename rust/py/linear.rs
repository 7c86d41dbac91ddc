//! `specds._core.linear_product`, a linear layer for few tokens.

use bytemuck::cast_slice;
use numpy::PyReadonlyArray2;
use pyo3::prelude::*;
use specds_forward::weights::{BlockType, product_of_floats};
use specds_forward::{Error, Instructions};

use crate::arrays::{Matrix, shaped};
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
    weights: Array<'_>,
    states: PyReadonlyArray2<'_, f32>,
    num_threads: usize,
) -> Result<Matrix<f32>> {
    let (shape, kind, bytes) = match &weights {
        Array::F32(of) => (of.as_array().dim(), BlockType::F32, cast_slice(of.as_slice()?)),
        Array::BF16(of) => (of.as_array().dim(), BlockType::BF16, cast_slice(of.as_slice()?)),
    };
    let (num_tokens, columns) = states.as_array().dim();
    let states = states.as_slice()?;
    if columns != shape.1 {
        let reason = format!("must have {} columns, as the weights", shape.1);
        return Err(Error::Invalid { name: "states", reason }.into());
    }
    let made = py.detach(|| product_of_floats(kind, bytes, columns, states, num_threads))?;
    shaped([num_tokens, shape.0], made)
}

/// Returns whether this processor has the vector instructions that make `linear_product` fast.
#[pyfunction]
pub(crate) fn has_linear_product() -> bool {
    Instructions::available().len() > 1
}

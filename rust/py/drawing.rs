//! `specds._core.draw`: the token that a draw chooses, given its random numbers.

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The place that a draw by `probs` chooses; nothing where rounding might decide.
#[pyfunction]
pub(crate) fn draw(
    probs: PyReadonlyArray1<'_, f32>,
    uniforms: PyReadonlyArray1<'_, f64>,
) -> PyResult<Option<usize>> {
    let (probs, uniforms) = (probs.as_slice()?, uniforms.as_slice()?);
    if probs.len() == uniforms.len() {
        Ok(specds::draft::multinomial(probs, uniforms))
    } else {
        let lengths = format!("{} and {}", probs.len(), uniforms.len());
        let message = format!("probs and uniforms must be as many as each other, got {lengths}");
        Err(PyValueError::new_err(message))
    }
}

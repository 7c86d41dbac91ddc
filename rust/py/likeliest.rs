//! `specds._core.likeliest`: the likeliest tokens of each row of scores.

use std::borrow::Cow;

use numpy::{IntoPyArray, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use specds::draft as of_core;

/// The places of the `k` largest scores of each row.
#[pyfunction]
pub(crate) fn likeliest<'py>(
    py: Python<'py>,
    scores: PyReadonlyArray2<'py, f32>,
    k: usize,
) -> PyResult<Bound<'py, PyArray2<i64>>> {
    let scores = scores.as_array();
    let (num_rows, num_scores) = scores.dim();
    let mut places = Vec::with_capacity(num_rows * k.min(num_scores));
    for row in scores.rows() {
        let row = row
            .to_slice()
            .map_or_else(|| row.to_vec().into(), Cow::Borrowed);
        places.extend(of_core::top_k(&row, k).into_iter().map(i64::from));
    }
    places
        .into_pyarray(py)
        .reshape([num_rows, k.min(num_scores)])
}

//! `specds.ModelTables`: a model's unigram and bigrams, copied in once and shared by sessions.

use std::sync::Arc;

use numpy::{
    AllowTypeChange, IntoPyArray, PyArray1, PyArray2, PyArrayLike2, PyArrayMethods,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds::papers::model_tables;

use crate::arrays::integers;
use crate::error::py_err;

/// What a model predicts without a context, or after a single token.
#[pyclass(frozen, module = "specds")]
pub(crate) struct ModelTables(pub(crate) Arc<model_tables::ModelTables>);

#[pymethods]
impl ModelTables {
    #[new]
    fn new(
        bigram: &Bound<'_, PyAny>,
        bigram_probs: PyArrayLike2<'_, f32, AllowTypeChange>,
        unigram: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let numpy = bigram.py().import("numpy")?;
        let unigram: Vec<u32> = integers(unigram, "unigram")?;
        let shape: Vec<usize> = numpy.call_method1("shape", (bigram,))?.extract()?;
        if shape != bigram_probs.shape() || shape.first() != Some(&unigram.len()) {
            return Err(PyValueError::new_err(format!(
                "`bigram` and `bigram_probs` must have a row for each of {} tokens, their shapes \
                 are {shape:?} and {:?}",
                unigram.len(),
                bigram_probs.shape()
            )));
        }
        let bigram = integers(&numpy.call_method1("ravel", (bigram,))?, "bigram")?;
        let bigram_probs = bigram_probs.as_array().iter().copied().collect();
        model_tables::ModelTables::new(bigram, bigram_probs, unigram)
            .map(|tables| Self(Arc::new(tables)))
            .map_err(py_err)
    }

    fn __repr__(&self) -> String {
        let (vocab_size, k) = (self.0.vocab_size(), self.0.k());
        format!("ModelTables({vocab_size} tokens, {k} after each)")
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.vocab_size()
    }

    #[getter]
    fn k(&self) -> usize {
        self.0.k()
    }

    #[getter]
    fn bigram<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i64>>> {
        let tokens = PyArray1::from_iter(py, self.0.bigram().iter().map(|&token| token.into()));
        self.in_rows(tokens)
    }

    #[getter]
    fn bigram_probs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.in_rows(PyArray1::from_slice(py, self.0.bigram_probs()))
    }

    #[getter]
    fn unigram<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let tokens = self.0.unigram().iter().map(|&token| token.into());
        tokens.collect::<Vec<i64>>().into_pyarray(py)
    }
}

impl ModelTables {
    fn in_rows<'py, T: numpy::Element>(
        &self,
        array: Bound<'py, PyArray1<T>>,
    ) -> PyResult<Bound<'py, PyArray2<T>>> {
        let shape = [array.len() / self.0.k(), self.0.k()];
        array.reshape(shape)
    }
}

//! `specds.TokenTree`: the tree of the core with numpy views.

use numpy::ndarray::Array2;
use numpy::{AllowTypeChange, IntoPyArray, PyArray1, PyArray2, PyArrayLike1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds::draft;

use crate::arrays::integers;
use crate::error::py_err;

/// A draft: likely continuations of a context as a tree, best nodes first.
#[pyclass(frozen, module = "specds")]
pub(crate) struct TokenTree(pub(crate) draft::TokenTree);

#[pymethods]
impl TokenTree {
    #[new]
    #[pyo3(signature = (token_ids, parents, probs = None))]
    fn new(
        token_ids: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        probs: Option<PyArrayLike1<'_, f32, AllowTypeChange>>,
    ) -> PyResult<Self> {
        let token_ids: Vec<u32> = integers(token_ids, "token_ids")?;
        let parents: Vec<i32> = integers(parents, "parents")?;
        let probs = match probs {
            Some(probs) => probs.as_array().to_vec(),
            None => vec![0.0; token_ids.len()],
        };
        draft::TokenTree::new(token_ids, parents, probs)
            .map(Self)
            .map_err(py_err)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("TokenTree({} nodes)", self.0.len())
    }

    #[getter]
    fn token_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        int64(py, self.0.token_ids())
    }

    #[getter]
    fn parents<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        int64(py, self.0.parents())
    }

    #[getter]
    fn probs<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f32>> {
        PyArray1::from_slice(py, self.0.probs())
    }

    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u8>> {
        PyArray1::from_iter(py, self.0.sources().iter().map(|&source| source as u8))
    }

    /// Distance of each node from the last token of the context, at least 1.
    fn depths<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        int64(py, &self.0.depths())
    }

    /// Whether column j is row i or an ancestor of it.
    fn mask<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<bool>>> {
        let n = self.0.len();
        let mask = Array2::from_shape_vec((n, n), self.0.mask())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(mask.into_pyarray(py))
    }

    /// The node indices from a root to each leaf, in the order of the leaves.
    fn paths<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyArray1<i64>>>> {
        let paths = self.0.paths().into_iter();
        paths.map(|path| indices(py, path)).collect()
    }

    /// The tree of the first `max_nodes` nodes.
    fn prefix(&self, max_nodes: usize) -> Self {
        Self(self.0.prefix(max_nodes))
    }

    /// The tree without the nodes deeper than `max_depth`.
    fn up_to_depth(&self, max_depth: usize) -> Self {
        Self(self.0.up_to_depth(max_depth))
    }
}

fn int64<'py, T: Copy + Into<i64>>(py: Python<'py>, values: &[T]) -> Bound<'py, PyArray1<i64>> {
    PyArray1::from_iter(py, values.iter().map(|&value| value.into()))
}

fn indices(py: Python<'_>, path: Vec<usize>) -> PyResult<Bound<'_, PyArray1<i64>>> {
    let path: Result<Vec<i64>, _> = path.into_iter().map(i64::try_from).collect();
    Ok(PyArray1::from_vec(py, path?))
}

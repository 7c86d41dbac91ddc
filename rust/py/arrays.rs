//! Conversion of arrays, and range checks of numbers.

use std::convert::Infallible;

use numpy::ndarray::{Array, Dimension, IntoDimension, Ix1, Ix2};
use numpy::{
    AllowTypeChange, IntoPyArray, PyArray, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayLike1,
    PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList};

use crate::error::Result;

/// Reads a one-dimensional array-like of integers; `name` is the argument in error messages.
///
/// Every value is checked: numpy's own conversions would turn -1 into 4294967295 and 1.5 into 1.
pub(crate) fn integers<T>(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>>
where
    T: TryFrom<i64>,
{
    if let Some(tokens) = short_list(value) {
        return checked(tokens.into_iter(), name);
    }
    let array = as_array(value)?;
    if array.ndim() != 1 {
        let shape = array.shape();
        return Err(PyValueError::new_err(format!(
            "`{name}` must have one dimension, its shape is {shape:?}"
        )));
    }
    if array.len() == 0 {
        return Ok(Vec::new()); // any dtype is valid: numpy reads an empty list as float64
    }
    let kind = array.dtype().kind();
    if !matches!(kind, b'i' | b'u') {
        let dtype = array.dtype();
        return Err(PyTypeError::new_err(format!(
            "`{name}` must hold integers, its dtype is {dtype}"
        )));
    }
    // Common dtypes are read without a conversion, so that millions of tokens are copied once.
    if let Ok(array) = array.cast::<PyArray1<u16>>() {
        return checked(array.readonly().as_array().iter().copied(), name);
    }
    if let Ok(array) = array.cast::<PyArray1<u32>>() {
        return checked(array.readonly().as_array().iter().copied(), name);
    }
    let array: PyArrayLike1<'_, i64, AllowTypeChange> = array.extract()?;
    checked(array.as_array().iter().copied(), name)
}

/// Reads a short list of ints, for which numpy takes ten times as long; `None` for anything else.
fn short_list(value: &Bound<'_, PyAny>) -> Option<Vec<i64>> {
    let list = value.cast_exact::<PyList>().ok()?;
    let is_int = |item: Bound<'_, PyAny>| item.is_exact_instance_of::<PyInt>();
    let is_read = list.len() < 64 && list.iter().all(is_int);
    is_read.then(|| list.extract().ok()).flatten()
}

/// Reads a two-dimensional array-like as [`integers`] does. Returns the length of a row and all values, row by row.
pub(crate) fn rows_of_integers<T>(value: &Bound<'_, PyAny>, name: &str) -> PyResult<(usize, Vec<T>)>
where
    T: TryFrom<i64>,
{
    let array = as_array(value)?;
    if let Ok(array) = array.cast::<PyArray2<i64>>() {
        let array = array.readonly();
        let array = array.as_array();
        return Ok((array.ncols(), checked(array.iter().copied(), name)?));
    }
    let &[_, length] = array.shape() else {
        let shape = array.shape();
        return Err(PyValueError::new_err(format!(
            "`{name}` must have two dimensions, its shape is {shape:?}"
        )));
    };
    Ok((length, integers(&array.call_method0("ravel")?, name)?))
}

/// Reads a sequence of array-likes, or a two-dimensional array, as [`integers`] does.
pub(crate) fn lists_of_integers(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Vec<u32>>> {
    if value.hasattr("ndim")? {
        let (length, numbers) = rows_of_integers(value, name)?;
        let rows = numbers.chunks_exact(length.max(1)).map(<[u32]>::to_vec);
        return Ok(rows.collect());
    }
    value.try_iter()?.map(|row| integers(&row?, name)).collect()
}

/// An array that becomes a numpy array without a copy.
pub(crate) struct Made<T, D = Ix1>(Array<T, D>);

pub(crate) type Matrix<T = i64> = Made<T, Ix2>;

impl<'py, T: numpy::Element, D: Dimension> IntoPyObject<'py> for Made<T, D> {
    type Target = PyArray<T, D>;
    type Output = Bound<'py, Self::Target>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(self.0.into_pyarray(py))
    }
}

impl<T> From<Vec<T>> for Made<T> {
    fn from(values: Vec<T>) -> Self {
        Self(values.into())
    }
}

/// Returns an int64 array of shape `(n,)`.
pub(crate) fn int64<T: TryInto<i64>>(values: impl IntoIterator<Item = T>) -> Result<Made<i64>>
where
    PyErr: From<T::Error>,
{
    let values: Result<Vec<i64>, _> = values.into_iter().map(T::try_into).collect();
    Ok(values.map_err(PyErr::from)?.into())
}

/// Returns an array of this shape from its values, row by row.
pub(crate) fn shaped<T, D: IntoDimension>(shape: D, values: Vec<T>) -> Result<Made<T, D::Dim>> {
    let array = Array::from_shape_vec(shape.into_dimension(), values);
    let array = array.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(Made(array))
}

/// Checks that a probability, a time or a gain is finite and at least 0.
pub(crate) fn from_zero<T: Copy + Into<f64>>(value: T, name: &str) -> PyResult<T> {
    let number = value.into();
    if number.is_finite() && number >= 0.0 {
        return Ok(value);
    }
    let message = format!("`{name}` must be a finite number of at least 0, not {number}");
    Err(PyValueError::new_err(message))
}

/// Reads the argument `max_nodes`.
pub(crate) fn max_nodes(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let number: i64 = value.extract()?;
    usize::try_from(number).map_err(|_| {
        let message = format!("`max_nodes` must be at least 0, not {number}");
        PyValueError::new_err(message)
    })
}

/// Checks a number of nodes or rows that determines the size of arrays.
pub(crate) fn width(nodes: usize, name: &str) -> PyResult<usize> {
    const MOST: usize = 4096;
    if nodes <= MOST {
        return Ok(nodes);
    }
    let message = format!("`{name}` must be at most {MOST}, not {nodes}");
    Err(PyValueError::new_err(message))
}

fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let asarray = ASARRAY.import(value.py(), "numpy", "asarray")?;
    Ok(asarray.call1((value,))?.cast_into::<PyUntypedArray>()?)
}

fn checked<T, S>(values: impl Iterator<Item = S>, name: &str) -> PyResult<Vec<T>>
where
    T: TryFrom<i64>,
    S: Into<i64>,
{
    let check = |value: S| {
        let value = value.into();
        T::try_from(value).map_err(|_| {
            PyValueError::new_err(format!("`{name}` holds {value}, which is out of range"))
        })
    };
    let mut checked = Vec::new();
    let reserved = checked.try_reserve_exact(values.size_hint().0);
    reserved.map_err(|_| PyMemoryError::new_err(format!("no memory for a copy of `{name}`")))?;
    for value in values {
        checked.push(check(value)?);
    }
    Ok(checked)
}

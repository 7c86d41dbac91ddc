//! The one way in for integer arrays: anything that numpy reads as integers, each value checked.

use numpy::{
    AllowTypeChange, PyArray1, PyArrayDescrMethods, PyArrayLike1, PyArrayMethods, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Reads a one-dimensional array-like of integers; `name` is the argument in error messages.
///
/// numpy's own conversions would turn -1 into 4294967295 and 1.5 into 1: here both are errors.
pub(crate) fn integers<T>(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>>
where
    T: TryFrom<i64>,
{
    let array = as_array(value)?;
    if array.ndim() != 1 {
        let shape = array.shape();
        return Err(PyValueError::new_err(format!(
            "`{name}` must have one dimension, its shape is {shape:?}"
        )));
    }
    if array.len() == 0 {
        return Ok(Vec::new()); // of any dtype: numpy makes an empty list float64
    }
    let kind = array.dtype().kind();
    if !matches!(kind, b'i' | b'u') {
        let dtype = array.dtype();
        return Err(PyTypeError::new_err(format!(
            "`{name}` must hold integers, its dtype is {dtype}"
        )));
    }
    // As they are stored where that is common, so that millions of tokens are copied once.
    if let Ok(array) = array.cast::<PyArray1<u16>>() {
        return checked(array.readonly().as_array().iter().copied(), name);
    }
    if let Ok(array) = array.cast::<PyArray1<u32>>() {
        return checked(array.readonly().as_array().iter().copied(), name);
    }
    let array: PyArrayLike1<'_, i64, AllowTypeChange> = array.extract()?;
    checked(array.as_array().iter().copied(), name)
}

/// Reads a two-dimensional array-like of integers as [`integers`] does, row after row; gives the length
/// of a row as well.
pub(crate) fn rows_of_integers<T>(value: &Bound<'_, PyAny>, name: &str) -> PyResult<(usize, Vec<T>)>
where
    T: TryFrom<i64>,
{
    let array = as_array(value)?;
    let &[_, length] = array.shape() else {
        let shape = array.shape();
        return Err(PyValueError::new_err(format!(
            "`{name}` must have two dimensions, its shape is {shape:?}"
        )));
    };
    Ok((length, integers(&array.call_method0("ravel")?, name)?))
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
            PyValueError::new_err(format!(
                "`{name}` holds {value}, which is no token id or length"
            ))
        })
    };
    values.map(check).collect()
}

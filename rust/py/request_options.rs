//! Per-request options in a dict.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PySlice, PyString};

use specds_core::engine::{OptionValue, RequestOptions};

/// Reads the options of a request, of a longer list or array the first `most` items.
pub(crate) fn options(given: &Bound<'_, PyDict>, most: usize) -> RequestOptions {
    let mut options = RequestOptions::default();
    for (name, value) in given {
        let value = value_of(&value, most).unwrap_or(OptionValue::Other);
        options.set(&name.to_string(), value);
    }
    options
}

fn value_of(value: &Bound<'_, PyAny>, most: usize) -> PyResult<OptionValue> {
    if value.is_none() {
        Ok(OptionValue::Absent)
    } else if value.is_instance_of::<PyBool>() {
        value.extract().map(OptionValue::Switch)
    } else if value.is_instance_of::<PyInt>() {
        value.extract().map(OptionValue::Integer)
    } else if value.is_instance_of::<PyString>() {
        value.extract().map(OptionValue::Text)
    } else if value.len()? > most {
        let first = PySlice::new(value.py(), 0, most.cast_signed(), 1);
        value.get_item(first)?.extract().map(OptionValue::Tokens)
    } else {
        value.extract().map(OptionValue::Tokens)
    }
}

/// Return whether a request's options disable its drafts.
///
/// Args:
///     options: The options, as `EngineDrafter.sync` takes them.
#[pyfunction]
pub(crate) fn is_off(options: &Bound<'_, PyDict>) -> bool {
    self::options(options, 0).is_off
}

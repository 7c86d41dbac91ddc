//! Conversion of keyword arguments to option records of the core, which define names, types and defaults.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use specds_core::engine::EngineConfig;
use specds_core::fused::FusedConfig;
use specds_core::papers::aded::{AdedConfig, TrigramOptions};
use specds_core::papers::n_grammys::NGrammysConfig;
use specds_core::papers::prompt_lookup::PromptLookupConfig;
use specds_core::papers::rest::RestConfig;
use specds_index::{CompactOptions, DatastoreOptions};

/// Reads keyword arguments as a record of the core. None stands for the default.
pub(crate) fn read<T: DeserializeOwned>(given: Option<&Bound<'_, PyDict>>) -> PyResult<T> {
    let mut options = Map::new();
    for (name, given) in given.into_iter().flatten() {
        if given.is_none() {
            continue;
        }
        let name: String = name.extract()?;
        let value = value_of(&given, &name, DEEPEST)?;
        // Each option is read alone, because serde's error does not name the option.
        record::<T>(Map::from_iter([(name.clone(), value.clone())]), &name)?;
        options.insert(name, value);
    }
    record(options, "options")
}

fn record<T: DeserializeOwned>(options: Map<String, Value>, name: &str) -> PyResult<T> {
    serde_json::from_value(options.into()).map_err(|error| wrong(name, error))
}

/// Maximum depth of nested lists. Without a limit, a list that contains itself would not end.
const DEEPEST: usize = 2;

fn value_of(given: &Bound<'_, PyAny>, name: &str, depth: usize) -> PyResult<Value> {
    if let Ok(flag) = given.cast::<PyBool>() {
        return Ok(flag.is_true().into());
    }
    if let Ok(number) = given.extract::<u64>() {
        return Ok(number.into());
    }
    if let Ok(number) = given.extract::<i64>() {
        return Ok(number.into());
    }
    if let Ok(number) = given.extract::<f64>() {
        let number = Number::from_f64(number).ok_or_else(|| not_finite(name, number))?;
        return Ok(number.into());
    }
    if let Ok(path) = given.extract::<PathBuf>() {
        return serde_json::to_value(path).map_err(|error| wrong(name, error));
    }
    if depth == 0 {
        return Err(wrong(name, "unsupported type"));
    }
    let items = given.try_iter()?;
    let items = items.map(|item| value_of(&item?, name, depth - 1));
    items.collect::<PyResult<Vec<_>>>().map(Value::Array)
}

fn not_finite(name: &str, number: f64) -> PyErr {
    PyValueError::new_err(format!("`{name}` must be a finite number, not {number}"))
}

fn wrong(name: &str, error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("`{name}` is invalid: {error}"))
}

/// Returns the default options of each record.
pub(crate) fn defaults(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let records = serde_json::json!({
        "aded": AdedConfig::default(),
        "build": DatastoreOptions::default(),
        "compact": CompactOptions::default(),
        "engine": EngineConfig::default(),
        "fused": FusedConfig::default(),
        "n_grammys": NGrammysConfig::default(),
        "prompt_lookup": PromptLookupConfig::default(),
        "rest": RestConfig::default(),
        "trigrams": TrigramOptions::default(),
    });
    to_dict(py, &records)
}

/// Converts a record to a dictionary.
pub(crate) fn to_dict<'py>(
    py: Python<'py>,
    record: &impl Serialize,
) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(record).map_err(|error| wrong("record", error))?;
    py.import("json")?.call_method1("loads", (text,))
}

//! The options of an engine's request.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice};

/// The options of a request.
#[derive(Default)]
pub(crate) struct RequestOptions {
    pub(crate) tenant: String,
    pub(crate) group: Option<String>,
    pub(crate) predicted_output: Vec<u32>,
    /// A message for each option of a wrong type.
    pub(crate) unreadable: Vec<String>,
}

const OPTIONS: [&str; 3] = ["tenant", "group", "predicted_output"];

impl RequestOptions {
    pub(crate) fn read(given: &Bound<'_, PyDict>, max_predicted_output: usize) -> Self {
        let unknown = given.keys().iter().filter_map(|key| {
            let name = key.to_string();
            (!OPTIONS.contains(&name.as_str()))
                .then(|| format!("`{name}` is unknown or has a wrong type"))
        });
        let mut unreadable = unknown.collect();
        let whole = usize::MAX;
        Self {
            tenant: option(given, "tenant", whole, &mut unreadable).unwrap_or_default(),
            group: option(given, "group", whole, &mut unreadable),
            predicted_output: option(
                given,
                "predicted_output",
                max_predicted_output,
                &mut unreadable,
            )
            .unwrap_or_default(),
            unreadable,
        }
    }
}

/// Reads an option, of a longer one the first `most` items, or adds a message where it has a wrong type. None
/// stands for an absent option.
fn option<'py, T: for<'a> FromPyObject<'a, 'py>>(
    given: &Bound<'py, PyDict>,
    name: &str,
    most: usize,
    unreadable: &mut Vec<String>,
) -> Option<T> {
    let mut value = given.get_item(name).ok().flatten().filter(|value| !value.is_none())?;
    if value.len().is_ok_and(|length| length > most) {
        let first = PySlice::new(given.py(), 0, most.cast_signed(), 1);
        value = value.get_item(first).unwrap_or(value);
    }
    let read = value.extract().ok();
    if read.is_none() {
        unreadable.push(format!("`{name}` has a wrong type"));
    }
    read
}

//! Where a datastore lies, and what its manifest says before its other files are there.

use std::path::PathBuf;

use pyo3::prelude::*;
use specds_index::Manifest;

use crate::error::Result;

/// The text of a datastore's manifest, once it is known not to contradict itself.
///
/// A JSON object; what it says of names and numbers can be relied on. Reads no other file: the shards need not
/// be there. Raises `FormatError` where it is none, is damaged, or contradicts itself.
#[pyfunction]
pub(crate) fn read_manifest(py: Python<'_>, path: PathBuf) -> Result<String> {
    Ok(py.detach(|| Manifest::read(&path))?.to_json())
}

/// The folder of a datastore: what is at the path, or else what the hub has under that name.
pub(crate) fn located(py: Python<'_>, path: PathBuf) -> PyResult<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    let hub = py.import("specds.hub")?;
    hub.call_method1("locate", (path,))?.extract()
}

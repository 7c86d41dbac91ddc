//! Locations and manifests of datastores.

use std::path::PathBuf;

use pyo3::prelude::*;
use specds_index::Manifest;

use crate::error::Result;

/// Returns the manifest of a datastore as JSON text, after checks of its checksum, names and numbers.
///
/// It reads no other file, so the shards may be missing.
///
/// Raises:
///     FormatError: The file is not a manifest, is damaged or inconsistent.
#[pyfunction]
pub(crate) fn read_manifest(py: Python<'_>, path: PathBuf) -> Result<String> {
    Ok(py.detach(|| Manifest::read(&path))?.to_json())
}

/// Returns the folder of a datastore: the path if it exists, else that of the hub's datastore of this name.
pub(crate) fn located(py: Python<'_>, path: PathBuf) -> PyResult<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    let hub = py.import("specds.hub")?;
    hub.call_method1("locate", (path,))?.extract()
}

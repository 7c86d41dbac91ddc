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

/// Returns the paths of all files that the manifest of a datastore names, itself first, and whether each must exist.
///
/// Raises:
///     FormatError: The file is not a manifest, is damaged or inconsistent.
#[pyfunction]
pub(crate) fn datastore_files(py: Python<'_>, path: PathBuf) -> Result<Vec<(String, bool)>> {
    Ok(py.detach(|| Manifest::read(&path))?.files())
}

/// Returns true if a build was killed after it had published its datastore at `path`.
#[pyfunction]
pub(crate) fn was_killed_after_publishing(path: PathBuf) -> bool {
    specds_index::was_killed_after_publishing(&path)
}

/// Returns the folder of a datastore: the path if it exists, else that of the hub's datastore of this name.
pub(crate) fn located(py: Python<'_>, path: PathBuf) -> PyResult<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    let hub = py.import("specds.hub")?;
    hub.call_method1("locate", (path,))?.extract()
}

//! The one map from errors of the core to Python exceptions.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{
    PyBlockingIOError, PyFileExistsError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError,
};
use specds::Error;

create_exception!(
    specds,
    FormatError,
    PyValueError,
    "Files of a datastore or a memory are truncated, corrupt, foreign, or of a newer format."
);

pub(crate) fn py_err(error: Error) -> PyErr {
    let mut message = error.to_string();
    if matches!(error, Error::NotADatastore(_) | Error::Version { .. }) {
        message += " (`specds build`)"; // the core does not know this program
    }
    match error {
        // With its number and path, OSError becomes FileNotFoundError, PermissionError, ...
        Error::Io { path, source } => match source.raw_os_error() {
            Some(number) => {
                // Python writes the number itself, and the path as text.
                let reason = source.to_string();
                let reason = reason.split(" (os error").next().map(str::to_owned);
                PyOSError::new_err((number, reason, path.into_os_string()))
            }
            None => PyOSError::new_err(message),
        },
        Error::Locked(_) => PyBlockingIOError::new_err(message),
        Error::Exists(_) | Error::Foreign(_) => PyFileExistsError::new_err(message),
        Error::NotADatastore(_)
        | Error::Version { .. }
        | Error::Truncated { .. }
        | Error::Corrupt { .. }
        | Error::Checksum(_)
        | Error::Snapshot { .. } => FormatError::new_err(message),
        Error::OutOfMemory(_) => PyMemoryError::new_err(message),
        Error::BuildFailed => PyRuntimeError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}

//! Mapping of errors and panics to Python exceptions, and locks.

use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::AsSliceError;
use pyo3::create_exception;
use pyo3::exceptions::{
    PyBlockingIOError, PyConnectionError, PyFileExistsError, PyFileNotFoundError, PyMemoryError,
    PyOSError, PyPermissionError, PyRuntimeError, PyValueError,
};
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::types::PyType;
use specds_core::Error;
use specds_index::base::forks::NoFork;

create_exception!(
    specds,
    FormatError,
    PyValueError,
    "Files of a datastore or a memory are truncated, corrupt, foreign, or of a newer format."
);

create_exception!(
    specds,
    UnsupportedFileError,
    FormatError,
    "A whole GGUF file has an architecture, a type of weights or a tensor that is not computed here."
);

/// Turns each panic of a call into an `InternalError`, which `except Exception` catches.
///
/// pyo3 catches panics at every entry from Python, also those of the core's threads, and raises a subclass of
/// `BaseException` that would end a server. A change of this class, which belongs to this extension alone, covers
/// all entries, present and future.
pub(crate) fn internal_error(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let panic = py.get_type::<PanicException>();
    let scope = PyDict::new(py);
    scope.set_item("advice", ADVICE)?;
    let text = py.eval(
        c"lambda error: advice + BaseException.__str__(error).removeprefix(advice)",
        Some(&scope),
        None,
    )?;
    panic.setattr("__bases__", (py.get_type::<PyRuntimeError>(),))?;
    panic.setattr("__str__", text)?;
    panic.setattr(
        "__doc__",
        "A call failed by a defect of specds; other calls continue. Please report it.",
    )?;
    for (name, value) in [("__name__", NAME), ("__qualname__", NAME), ("__module__", "specds")] {
        panic.setattr(name, value)?;
    }
    Ok(panic)
}

const NAME: &str = "InternalError";
const ADVICE: &str = concat!(
    "a defect of specds ",
    env!("CARGO_PKG_VERSION"),
    ", please report it with the lines about a panic on standard error: ",
);

/// An error of the core or of Python.
pub(crate) struct Failure(PyErr);

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<AsSliceError> for Failure {
    fn from(error: AsSliceError) -> Self {
        Self(error.into())
    }
}

impl From<specds_forward::Error> for Failure {
    fn from(error: specds_forward::Error) -> Self {
        use specds_forward::Error as Of;
        Self(match error {
            Of::Io { path, source } => exception(Error::Io { path, source }),
            Of::NotGguf(_) | Of::Corrupt { .. } | Of::Split { .. } => {
                FormatError::new_err(error.to_string())
            }
            Of::Unsupported { .. } | Of::Layout { .. } => {
                UnsupportedFileError::new_err(error.to_string())
            }
            Of::OutOfMemory(_) => PyMemoryError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(exception(error))
    }
}

/// Releases the interpreter for short work that takes locks; no thread forks meanwhile.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _held = NoFork::begin();
        work()
    })
}

/// Locks shared state, also after a panic, which does not leave it inconsistent.
pub(crate) fn lock<T: ?Sized>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exception(error: Error) -> PyErr {
    let mut message = error.to_string();
    if matches!(error, Error::NotADatastore(_) | Error::Version { .. }) {
        message += " (`specds build`)"; // the core does not know this command
    }
    match error {
        // With a number and a path, Python makes FileNotFoundError, PermissionError and others of it.
        Error::Io { path, source } => match source.raw_os_error() {
            Some(number) => {
                // Python adds the number to the message itself.
                let reason = source.to_string();
                let reason = reason.split(" (os error").next().map(str::to_owned);
                PyOSError::new_err((number, reason, path.into_os_string()))
            }
            None if source.kind() == ErrorKind::PermissionDenied => {
                PyPermissionError::new_err(message)
            }
            None if source.kind() == ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
            None if source.kind() == ErrorKind::NotConnected => PyConnectionError::new_err(message),
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
        Error::OutOfMemory(_) | Error::TextOutOfMemory(_) => PyMemoryError::new_err(message),
        Error::BuildFailed => PyRuntimeError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}

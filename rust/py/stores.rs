//! Stores of request caches that Python's clients reach.

use std::io::{self, ErrorKind};
use std::time::Duration;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyConnectionError, PyFileNotFoundError, PyPermissionError};
use pyo3::prelude::*;
use specds_core::memory::{FoundHead, ObjectStore};
use specds_core::{Error, Result};

/// A client of `specds.stores`.
struct PythonStore {
    store: Py<PyAny>,
    name: String,
}

/// Opens the store at a URL; `name` is the URL without credentials.
pub(crate) fn open(url: &str, name: &str) -> Result<Box<dyn ObjectStore>> {
    let store = attached(name, |py| {
        let opened = py.import("specds.stores")?.call_method1("open_store", (url,));
        let invalid = |error: PyErr| Error::invalid("path", format!("{name} {}", error.value(py)));
        Ok(opened.map(Bound::unbind).map_err(invalid))
    })??;
    Ok(Box::new(PythonStore { store, name: name.to_owned() }))
}

/// Calls Python, unless the interpreter is ending.
fn attached<R>(name: &str, call: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R> {
    let failed = |kind, reason: String| Error::Io {
        path: name.into(),
        source: io::Error::new(kind, reason),
    };
    let called = Python::try_attach(|py| {
        call(py).map_err(|error| {
            let stores = py.import("specds.stores");
            let error = stores.and_then(|it| it.call_method1("failure", (error.value(py),)));
            let error = error.map_or_else(|error| error, PyErr::from_value);
            let kinds = [
                (py.get_type::<PyPermissionError>(), ErrorKind::PermissionDenied),
                (py.get_type::<PyFileNotFoundError>(), ErrorKind::NotFound),
                (py.get_type::<PyConnectionError>(), ErrorKind::NotConnected),
            ];
            let kind = kinds.iter().find(|(class, _)| error.is_instance(py, class));
            failed(kind.map_or(ErrorKind::Other, |(_, kind)| *kind), error.value(py).to_string())
        })
    });
    let is_ending = || failed(ErrorKind::NotConnected, "the interpreter is ending".to_owned());
    called.unwrap_or_else(|| Err(is_ending()))
}

fn bytes(found: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
    Ok(found.extract::<Option<&[u8]>>()?.map(<[u8]>::to_vec))
}

impl PythonStore {
    fn call<R>(
        &self,
        method: &str,
        arguments: impl for<'py> PyCallArgs<'py>,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Result<R> {
        attached(&self.name, |py| read(&self.store.bind(py).call_method1(method, arguments)?))
    }
}

impl ObjectStore for PythonStore {
    fn head(&self, known: Option<&str>) -> Result<FoundHead> {
        self.call("head", (known,), |found| {
            let found: Option<(Bound<'_, PyAny>, String)> = found.extract()?;
            let Some((head, version)) = found else { return Ok(FoundHead::Missing) };
            let changed = |head| FoundHead::Changed(head, version);
            Ok(bytes(&head)?.map_or(FoundHead::Unchanged, changed))
        })
    }

    fn replace_head(&self, head: &[u8], before: Option<&str>) -> Result<Option<String>> {
        self.call("replace_head", (head, before), |version| version.extract())
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.call("get", (name,), bytes)
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<()> {
        self.call("put", (name, content), |_| Ok(()))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.call("delete", (name,), |_| Ok(()))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.call("list", (), |names| names.extract())
    }

    fn below(&self, name: &str) -> Result<Box<dyn ObjectStore + '_>> {
        let store = self.call("below", (name,), |store| Ok(store.clone().unbind()))?;
        Ok(Box::new(Self { store, name: format!("{}/{name}", self.name) }))
    }

    fn stores(&self) -> Result<Vec<String>> {
        self.call("stores", (), |names| names.extract())
    }

    fn latency(&self) -> Duration {
        Duration::from_millis(100)
    }
}

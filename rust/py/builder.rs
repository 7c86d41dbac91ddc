//! `specds.DatastoreBuilder`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use specds::datastore;

use crate::arrays::integers;
use crate::datastore::Datastore;
use crate::error::py_err;

/// Writes a datastore beside its target and moves it there when it is complete.
#[pyclass(frozen, module = "specds")]
pub(crate) struct DatastoreBuilder(Mutex<Option<datastore::DatastoreBuilder>>);

impl DatastoreBuilder {
    fn lock(&self) -> MutexGuard<'_, Option<datastore::DatastoreBuilder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut datastore::DatastoreBuilder) -> Result<T, specds::error::Error>,
    ) -> PyResult<T> {
        let mut builder = self.lock();
        work(builder.as_mut().ok_or_else(ended)?).map_err(py_err)
    }
}

#[pymethods]
impl DatastoreBuilder {
    #[new]
    #[pyo3(signature = (
        path, *, vocab_size, separator, tokenizer_name = String::new(),
        tokenizer_fingerprint = String::new(), corpus = Vec::new(),
        max_shard_tokens = datastore::MAX_SHARD_TOKENS, overwrite = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        path: PathBuf,
        vocab_size: u32,
        separator: u32,
        tokenizer_name: String,
        tokenizer_fingerprint: String,
        corpus: Vec<String>,
        max_shard_tokens: u64,
        overwrite: bool,
    ) -> PyResult<Self> {
        let options = datastore::DatastoreOptions {
            vocab_size,
            separator,
            tokenizer_name,
            tokenizer_fingerprint,
            corpus,
            max_shard_tokens,
            overwrite,
        };
        let builder = datastore::DatastoreBuilder::create(&path, options).map_err(py_err)?;
        Ok(Self(Mutex::new(Some(builder))))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        _exc_type: &Bound<'_, PyAny>,
        _exc_value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.lock().take();
    }

    /// Appends documents: all their tokens, and how many tokens each has.
    fn add_documents(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let tokens: Vec<u32> = integers(tokens, "tokens")?;
        let lengths: Vec<usize> = integers(lengths, "lengths")?;
        py.detach(|| self.with(|builder| builder.add_documents(&tokens, &lengths)))
    }

    /// Sorts and writes the index, moves the datastore to its path and opens it.
    #[pyo3(signature = (progress = None))]
    fn finish(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<Datastore> {
        let builder = self.lock().take().ok_or_else(ended)?;
        let mut stopped = None;
        let mut report = |stage: datastore::Stage, done: u64, total: u64| {
            let told = Python::attach(|py| {
                py.check_signals()?;
                match &progress {
                    Some(progress) => progress.call1(py, (stage.name(), done, total)).map(drop),
                    None => Ok(()),
                }
            });
            match told {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    stopped = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let finished = py.detach(|| builder.finish(&mut report));
        match stopped {
            Some(error) => Err(error),
            None => Ok(Datastore(Arc::new(finished.map_err(py_err)?))),
        }
    }

    #[getter]
    fn num_tokens(&self) -> PyResult<u64> {
        self.with(|builder| Ok(builder.num_tokens()))
    }

    #[getter]
    fn num_documents(&self) -> PyResult<u64> {
        self.with(|builder| Ok(builder.num_documents()))
    }
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("this build has ended: make a new DatastoreBuilder")
}

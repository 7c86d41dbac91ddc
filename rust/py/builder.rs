//! `specds.DatastoreBuilder`, and what else writes datastores.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use specds::Error;
use specds::build::{self, DatastoreOptions, Existing};
use specds::fused;
use specds::index::Stage;
use specds::storage;

use crate::arrays::integers;
use crate::error::py_err;
use crate::lookup::Datastore;

/// Writes a datastore beside its target and publishes it when it is complete.
#[pyclass(frozen, module = "specds")]
pub(crate) struct DatastoreBuilder {
    builder: Mutex<Option<build::DatastoreBuilder>>,
    prior_tokens: u64,
}

impl DatastoreBuilder {
    fn lock(&self) -> MutexGuard<'_, Option<build::DatastoreBuilder>> {
        self.builder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut build::DatastoreBuilder) -> Result<T, Error>,
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
        max_shard_tokens = storage::MAX_SHARD_TOKENS, max_memory = u64::MAX,
        drop_duplicates = false, max_documents = u64::MAX, max_tokens = u64::MAX,
        prior_tokens = fused::DEFAULT_PRIOR_TOKENS, overwrite = false, append = false, plan = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        vocab_size: u32,
        separator: u32,
        tokenizer_name: String,
        tokenizer_fingerprint: String,
        corpus: Vec<String>,
        max_shard_tokens: u64,
        max_memory: u64,
        drop_duplicates: bool,
        max_documents: u64,
        max_tokens: u64,
        prior_tokens: u64,
        overwrite: bool,
        append: bool,
        plan: Option<String>,
    ) -> PyResult<Self> {
        let existing = match (overwrite, append) {
            (false, false) => Existing::Refuse,
            (true, false) => Existing::Replace,
            (false, true) => Existing::Append,
            (true, true) => {
                let message = "`overwrite` and `append` exclude each other";
                return Err(PyValueError::new_err(message));
            }
        };
        let options = DatastoreOptions {
            tokenizer_name,
            tokenizer_fingerprint,
            corpus,
            max_shard_tokens,
            max_memory,
            drop_duplicates,
            max_documents,
            max_tokens,
            existing,
            plan,
            ..DatastoreOptions::new(vocab_size, separator)
        };
        let builder = py.detach(|| build::DatastoreBuilder::create(&path, options));
        let builder = Mutex::new(Some(builder.map_err(py_err)?));
        Ok(Self {
            builder,
            prior_tokens,
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _exc_type: &Bound<'_, PyAny>,
        _exc_value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        py.detach(|| drop(self.lock().take()));
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

    /// Waits until every shard is indexed, publishes the datastore, fits its prior and opens it.
    #[pyo3(signature = (progress = None))]
    fn finish(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<Datastore> {
        let builder = self.lock().take().ok_or_else(ended)?;
        let finish = |report: &mut Report| {
            let datastore = builder.finish(report)?;
            fused::fit_missing(datastore, self.prior_tokens, report)
        };
        report_to(py, progress, finish).map(Datastore::from)
    }

    #[getter]
    fn staging_folder(&self) -> PyResult<PathBuf> {
        self.with(|builder| Ok(builder.staging_folder()?.to_owned()))
    }

    #[getter]
    fn num_tokens(&self) -> PyResult<u64> {
        self.with(|builder| Ok(builder.num_tokens()))
    }

    #[getter]
    fn num_documents(&self) -> PyResult<u64> {
        self.with(|builder| Ok(builder.num_documents()))
    }

    #[getter]
    fn num_duplicates(&self) -> PyResult<u64> {
        self.with(|builder| Ok(builder.num_duplicates()))
    }

    #[getter]
    fn is_full(&self) -> PyResult<bool> {
        self.with(|builder| Ok(builder.is_full()))
    }

    #[getter]
    fn num_given(&self) -> PyResult<u64> {
        self.with(|builder| Ok(builder.num_given()))
    }
}

/// Joins datastores of one tokenizer into a new one.
#[pyfunction]
#[pyo3(signature = (
    sources, path, *, overwrite = false, prior_tokens = fused::DEFAULT_PRIOR_TOKENS,
    progress = None
))]
pub(crate) fn merge(
    py: Python<'_>,
    sources: Vec<PathBuf>,
    path: PathBuf,
    overwrite: bool,
    prior_tokens: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Datastore> {
    let merge = |report: &mut Report| {
        let datastore = build::merge(&sources, &path, overwrite)?;
        fused::fit_missing(datastore, prior_tokens, report)
    };
    report_to(py, progress, merge).map(Datastore::from)
}

/// Fits the prior of a datastore again.
#[pyfunction]
#[pyo3(signature = (path, *, prior_tokens = fused::DEFAULT_PRIOR_TOKENS, progress = None))]
pub(crate) fn refit(
    py: Python<'_>,
    path: PathBuf,
    prior_tokens: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Datastore> {
    let refit = |report: &mut Report| fused::refit(&path, prior_tokens, report);
    report_to(py, progress, refit).map(Datastore::from)
}

/// Rebuilds the shards of a datastore into as few as possible.
#[pyfunction]
#[pyo3(signature = (
    path, *, max_shard_tokens = storage::MAX_SHARD_TOKENS, max_memory = u64::MAX,
    drop_duplicates = false, prior_tokens = fused::DEFAULT_PRIOR_TOKENS, progress = None
))]
pub(crate) fn compact(
    py: Python<'_>,
    path: PathBuf,
    max_shard_tokens: u64,
    max_memory: u64,
    drop_duplicates: bool,
    prior_tokens: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Datastore> {
    let options = build::CompactOptions {
        max_shard_tokens,
        max_memory,
        drop_duplicates,
    };
    let compact = |report: &mut Report| {
        let datastore = build::compact(&path, options, report)?;
        fused::fit_missing(datastore, prior_tokens, report)
    };
    report_to(py, progress, compact).map(Datastore::from)
}

pub(crate) type Report<'a> = dyn FnMut(Stage, u64, u64) -> ControlFlow<()> + 'a;

/// Does the work with the interpreter released. It reports to a function of Python: what that raises,
/// or a signal, stops the work.
pub(crate) fn report_to<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl Send + FnOnce(&mut Report) -> Result<T, Error>,
) -> PyResult<T> {
    let mut stopped = None;
    let mut report = |stage: Stage, done: u64, total: u64| {
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
    let worked = py.detach(|| work(&mut report));
    match stopped {
        Some(error) => Err(error),
        None => worked.map_err(py_err),
    }
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("this build has ended: make a new DatastoreBuilder")
}

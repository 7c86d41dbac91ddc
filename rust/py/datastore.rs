//! `specds.Datastore`, `specds.DatastoreBuilder` and `specds.Match`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::PyArray1;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use specds::datastore;

use crate::arrays::integers;
use crate::error::py_err;

/// The longest suffix of a context that occurs in a datastore.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Match(datastore::Match);

#[pymethods]
impl Match {
    #[getter]
    fn length(&self) -> usize {
        self.0.length
    }

    #[getter]
    fn count(&self) -> u64 {
        self.0.count()
    }

    fn __repr__(&self) -> String {
        format!("Match(length={}, count={})", self.length(), self.count())
    }
}

/// An index over the tokens of a corpus: built once, memory-mapped, never modified.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Datastore(pub(crate) Arc<datastore::Datastore>);

#[pymethods]
impl Datastore {
    /// Opens a datastore by mapping its files.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py
            .detach(|| datastore::Datastore::open(&path))
            .map_err(py_err)?;
        Ok(Self(Arc::new(opened)))
    }

    /// Reads everything and checks every checksum and the order of the index.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.verify()).map_err(py_err)
    }

    /// Finds the longest suffix of `context` that occurs in the corpus.
    #[pyo3(signature = (context, *, max_match = 16, min_match = 1))]
    fn lookup(
        &self,
        py: Python<'_>,
        context: &Bound<'_, PyAny>,
        max_match: usize,
        min_match: usize,
    ) -> PyResult<Match> {
        let context: Vec<u32> = integers(context, "context")?;
        py.detach(|| self.0.lookup(&context, max_match, min_match))
            .map(Match)
            .map_err(py_err)
    }

    /// The most frequent tokens after a match, and their exact counts.
    fn next_tokens<'py>(
        &self,
        py: Python<'py>,
        r#match: &Bound<'py, Match>,
        top_k: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let found = &r#match.get().0;
        let next = py.detach(|| self.0.next_tokens(found, top_k));
        let tokens = PyArray1::from_iter(py, next.iter().map(|&(token, _)| i64::from(token)));
        let counts: Result<Vec<i64>, _> = next.iter().map(|&(_, count)| count.try_into()).collect();
        (tokens, PyArray1::from_vec(py, counts?)).into_pyobject(py)
    }

    #[getter]
    fn path(&self) -> &Path {
        self.0.path()
    }

    #[getter]
    fn num_tokens(&self) -> u64 {
        self.0.num_tokens()
    }

    #[getter]
    fn num_documents(&self) -> u64 {
        self.0.num_documents()
    }

    #[getter]
    fn num_shards(&self) -> usize {
        self.0.manifest().shards.len()
    }

    #[getter]
    fn num_bytes(&self) -> u64 {
        self.0.num_bytes()
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.vocab_size()
    }

    #[getter]
    fn separator(&self) -> u32 {
        self.0.separator()
    }

    #[getter]
    fn tokenizer_name(&self) -> &str {
        &self.0.manifest().tokenizer_name
    }

    #[getter]
    fn tokenizer_fingerprint(&self) -> &str {
        &self.0.manifest().tokenizer_fingerprint
    }

    #[getter]
    fn corpus(&self) -> Vec<String> {
        self.0.manifest().corpus.clone()
    }

    fn __repr__(&self) -> String {
        format!(
            "Datastore({}, {} tokens)",
            self.0.path().display(),
            self.0.num_tokens()
        )
    }
}

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

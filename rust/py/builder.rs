//! `specds.DatastoreBuilder`, `specds.merge` and `specds.compact`.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use specds_core::Error;
use specds_index::{DatastoreOptions, Report, Stage};

use crate::arrays::integers;
use crate::datastore::Datastore;
use crate::error::{Failure, Result, lock};
use crate::options;
use crate::storage::located;

/// Writes a datastore to a staging folder and publishes it when it is complete.
///
/// It is a context manager. Leaving it without `finish` removes everything that it wrote. With a `plan`, the documents
/// up to the last checkpoint are retained for the next build of the same plan; Ctrl-C writes a checkpoint.
///
/// Args:
///     path: The folder to create, or the datastore to append to.
///     vocab_size: Token ids are below this.
///     separator: The token that ends each document; `vocab_size` if the tokenizer has none.
///     tokenizer_name: The tokenizer's name, for readers.
///     tokenizer_fingerprint: The tokenizer's fingerprint, which programs compare.
///     corpus: The origins of the documents, one line a source.
///     commands: The commands that make the datastore, one a line.
///     max_shard_tokens: Maximum number of tokens of a shard; 2,147,483,647 by default.
///     max_memory: Maximum private memory of sorting in bytes, which also bounds the size of shards;
///         unlimited by default.
///     drop_duplicates: Ignore copies of earlier documents, and count them.
///     max_documents: Maximum number of documents; further ones are ignored.
///     max_tokens: Maximum number of tokens, separators included; further documents are ignored.
///     overwrite: Replace the datastore at `path` when the new one is complete.
///     append: Add the documents to the datastore at `path`.
///     plan: A description of the build. The next build with the same plan and options resumes one that
///         was killed.
///
/// Raises:
///     FileExistsError: Something is at `path`, and neither `overwrite` nor `append` is set.
///     FormatError: `path` is not a datastore.
///     ValueError: An option is out of range, or the datastore to append to is of another tokenizer.
///     BlockingIOError: Another process builds at `path`.
#[pyclass(frozen, module = "specds")]
pub(crate) struct DatastoreBuilder(Mutex<Option<specds_index::DatastoreBuilder>>);

impl DatastoreBuilder {
    fn with<T>(
        &self,
        work: impl FnOnce(&mut specds_index::DatastoreBuilder) -> specds_core::Result<T>,
    ) -> Result<T> {
        Ok(work(lock(&self.0).as_mut().ok_or_else(ended)?)?)
    }
}

#[pymethods]
impl DatastoreBuilder {
    #[new]
    #[pyo3(signature = (path, *, vocab_size, separator, **options))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        vocab_size: u32,
        separator: u32,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Self> {
        let options = DatastoreOptions { vocab_size, separator, ..options::read(options)? };
        let builder = py.detach(|| specds_index::DatastoreBuilder::create(&path, options))?;
        Ok(Self(Mutex::new(Some(builder))))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) {
        let interrupt = py.get_type::<PyKeyboardInterrupt>();
        let is_interrupt = error.get_item(0).is_ok_and(|kind| kind.is(interrupt));
        py.detach(|| {
            let mut builder = lock(&self.0).take();
            if let (true, Some(builder)) = (is_interrupt, &mut builder) {
                builder.keep();
            }
        });
    }

    /// Appends documents. Complete shards are indexed in the background.
    ///
    /// Args:
    ///     tokens: The concatenated token ids of the documents, any integer dtype, shape `(num_tokens,)`.
    ///     lengths: The number of tokens of each document, any integer dtype, shape `(num_documents,)`.
    ///     sources: The name of the place of each document, such as its file; by default none has one.
    ///
    /// Raises:
    ///     ValueError: An id is outside the vocabulary, or the lengths do not add up. Nothing is added.
    #[pyo3(signature = (tokens, lengths, sources = None))]
    fn add_documents(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        sources: Option<Vec<String>>,
    ) -> Result<()> {
        let tokens: Vec<u32> = integers(tokens, "tokens")?;
        let lengths: Vec<usize> = integers(lengths, "lengths")?;
        let sources = sources.unwrap_or_default();
        py.detach(|| self.with(|builder| builder.add_documents(&tokens, &lengths, &sources)))
    }

    /// Waits until every shard is indexed, publishes the datastore and opens it.
    ///
    /// Args:
    ///     progress: Called with the name of a stage, the work done and the total work. An exception that it
    ///         raises stops the build.
    ///
    /// Raises:
    ///     ValueError: No tokens were added.
    #[pyo3(signature = (progress = None))]
    fn finish(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> Result<Datastore> {
        let builder = lock(&self.0).take().ok_or_else(ended)?;
        report_to(py, progress, |report| builder.finish_with(report)).map(Datastore::from)
    }

    /// The folder in which the datastore is written before it is published.
    #[getter]
    fn staging_folder(&self) -> Result<PathBuf> {
        self.with(|builder| Ok(builder.staging_folder().to_owned()))
    }

    /// Number of added tokens, separators included.
    #[getter]
    fn num_tokens(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_tokens()))
    }

    /// Number of added documents.
    #[getter]
    fn num_documents(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_documents()))
    }

    /// Number of ignored copies of earlier documents.
    #[getter]
    fn num_duplicates(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_duplicates()))
    }

    /// True if a limit is reached, so that further documents are ignored.
    #[getter]
    fn is_full(&self) -> Result<bool> {
        self.with(|builder| Ok(builder.is_full()))
    }

    /// Number of documents that were passed so far, including those before a kill: skip these when you resume.
    #[getter]
    fn num_given(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_given()))
    }
}

/// Merges datastores of one tokenizer: the new one has all their shards in order, each once.
///
/// Documents are not compared.
///
/// Args:
///     sources: Paths of the datastores, or names on the hub.
///     path: The folder to create.
///     overwrite: Replace a datastore at `path`.
///
/// Raises:
///     ValueError: There are no sources, or they are of different tokenizers.
///     FileExistsError: Something is at `path` and `overwrite` is false.
#[pyfunction]
#[pyo3(signature = (sources, path, *, overwrite = false))]
pub(crate) fn merge(
    py: Python<'_>,
    sources: Vec<PathBuf>,
    path: PathBuf,
    overwrite: bool,
) -> Result<Datastore> {
    let sources = sources.into_iter().map(|path| located(py, path));
    let sources = sources.collect::<PyResult<Vec<_>>>()?;
    let merged = py.detach(|| specds_index::merge(&sources, &path, overwrite))?;
    Ok(merged.into())
}

/// Rebuilds a datastore with as few shards as possible, as one build of all its documents would have made it.
///
/// Open readers keep the old shards. If a call is killed, the next one resumes it.
///
/// Args:
///     path: The folder of the datastore.
///     max_shard_tokens: As for `DatastoreBuilder`.
///     max_memory: As for `DatastoreBuilder`.
///     drop_duplicates: As for `DatastoreBuilder`.
///     progress: As for `DatastoreBuilder.finish`.
#[pyfunction]
#[pyo3(signature = (path, *, progress = None, **options))]
pub(crate) fn compact(
    py: Python<'_>,
    path: PathBuf,
    progress: Option<Py<PyAny>>,
    options: Option<&Bound<'_, PyDict>>,
) -> Result<Datastore> {
    let options = options::read(options)?;
    let compact = |report: &mut Report<'_>| specds_index::compact_with(&path, options, report);
    report_to(py, progress, compact).map(Datastore::from)
}

/// Runs `work` without the interpreter. An exception of `progress`, or a signal, stops it.
pub(crate) fn report_to<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl Send + FnOnce(&mut Report<'_>) -> specds_core::Result<T>,
) -> Result<T> {
    let mut stopped = None;
    let mut report = |stage: Stage, done: u64, total: u64| {
        let reported = Python::attach(|py| {
            py.check_signals()?;
            match &progress {
                Some(progress) => progress.call1(py, (stage.name(), done, total)).map(drop),
                None => Ok(()),
            }
        });
        reported.map_err(|error| {
            stopped = Some(error);
            Error::Stopped
        })
    };
    let worked = py.detach(|| work(&mut report));
    match stopped {
        Some(error) => Err(Failure::from(error)),
        None => Ok(worked?),
    }
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("this build has ended: make a new DatastoreBuilder")
}

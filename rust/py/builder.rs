//! `specds.DatastoreBuilder`, and what else writes datastores.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use specds::Error;
use specds_index::{DatastoreOptions, Report, Stage};

use crate::arrays::integers;
use crate::datastore::Datastore;
use crate::error::{Failure, Result, lock};
use crate::options;
use crate::storage::located;

/// Writes a datastore beside its target and publishes it when it is complete.
///
/// A context manager: leaving it without `finish` removes everything it wrote; or keeps it for the
/// next build of the same `plan`, by a Ctrl-C all of it, else what was safely on the disk.
///
/// Args:
///     path: The folder to make, or to add to.
///     vocab_size: Token ids are below this.
///     separator: The token that ends each document; `vocab_size` where the tokenizer has none.
///     tokenizer_name: For people.
///     tokenizer_fingerprint: For programs.
///     corpus: Where the documents come from, one line a source.
///     commands: What asks for this build, for its readers, one line each.
///     max_shard_tokens: The most tokens of a shard; 2,147,483,647 by default.
///     max_memory: The most private memory that sorting takes, in bytes; it bounds the shards too.
///         No bound by default.
///     drop_duplicates: Leave out documents that were added before, and count them.
///     max_documents: The most documents to add; those beyond are ignored.
///     max_tokens: The most tokens to add, separators included.
///     overwrite: Replace the datastore at `path` once the new one is complete.
///     append: Add to the datastore at `path`.
///     plan: What is built, in words. A build that was killed is taken up where it was by the next
///         one with the same words and options.
///
/// Raises:
///     FileExistsError: Something is at `path`, and neither `overwrite` nor `append` is set.
///     FormatError: What is at `path` is not a datastore.
///     ValueError: An option is out of its bounds, or the datastore to add to is of another
///         tokenizer.
///     BlockingIOError: Another process builds there.
#[pyclass(frozen, module = "specds")]
pub(crate) struct DatastoreBuilder(Mutex<Option<specds_index::DatastoreBuilder>>);

impl DatastoreBuilder {
    fn with<T>(
        &self,
        work: impl FnOnce(&mut specds_index::DatastoreBuilder) -> specds::Result<T>,
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

    /// Appends documents. Shards that are complete are indexed in the background.
    ///
    /// Args:
    ///     tokens: The token ids of all of them, shape `(num_tokens,)`.
    ///     lengths: The number of tokens of each, shape `(num_documents,)`.
    ///
    /// Raises:
    ///     ValueError: An id is outside the vocabulary, or the lengths do not add up; nothing is
    ///         added.
    fn add_documents(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> Result<()> {
        let tokens: Vec<u32> = integers(tokens, "tokens")?;
        let lengths: Vec<usize> = integers(lengths, "lengths")?;
        py.detach(|| self.with(|builder| builder.add_documents(&tokens, &lengths)))
    }

    /// Waits until every shard is indexed, and publishes the datastore.
    ///
    /// Args:
    ///     progress: Called with a stage, how far it has come, and how far it has to go. What it
    ///         raises stops the build.
    ///
    /// Raises:
    ///     ValueError: No tokens were added.
    #[pyo3(signature = (progress = None))]
    fn finish(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> Result<Datastore> {
        let builder = lock(&self.0).take().ok_or_else(ended)?;
        report_to(py, progress, |report| builder.finish_with(report)).map(Datastore::from)
    }

    /// Where the datastore grows before it is published.
    #[getter]
    fn staging_folder(&self) -> Result<PathBuf> {
        self.with(|builder| Ok(builder.staging_folder().to_owned()))
    }

    /// Tokens added so far, separators included.
    #[getter]
    fn num_tokens(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_tokens()))
    }

    /// Documents added so far.
    #[getter]
    fn num_documents(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_documents()))
    }

    /// Documents left out as they had come before.
    #[getter]
    fn num_duplicates(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_duplicates()))
    }

    /// Whether a limit is reached, so that no more documents are taken.
    #[getter]
    fn is_full(&self) -> Result<bool> {
        self.with(|builder| Ok(builder.is_full()))
    }

    /// All documents that were given so far; a build that goes on skips these.
    #[getter]
    fn num_given(&self) -> Result<u64> {
        self.with(|builder| Ok(builder.num_given()))
    }
}

/// Joins datastores of one tokenizer: the new one has all their shards, in order.
///
/// Shards that several of them have count once; documents are not compared.
///
/// Args:
///     sources: The datastores.
///     path: The folder to make.
///     overwrite: Replace what is there.
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

/// Rebuilds the shards of a datastore into as few as possible.
///
/// It is then what one build of all its documents would have made. Readers go on with the old shards.
///
/// Args:
///     path: The datastore.
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

/// Works with the interpreter released. What `progress` raises, or a signal, stops the work.
pub(crate) fn report_to<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl Send + FnOnce(&mut Report<'_>) -> specds::Result<T>,
) -> Result<T> {
    let mut stopped = None;
    let mut report = |stage: Stage, done: u64, total: u64| {
        let told = Python::attach(|py| {
            py.check_signals()?;
            match &progress {
                Some(progress) => progress.call1(py, (stage.name(), done, total)).map(drop),
                None => Ok(()),
            }
        });
        told.map_err(|error| {
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

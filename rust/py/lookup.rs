//! `specds.Datastore` and `specds.Match`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use specds::lookup;

use crate::arrays::integers;
use crate::error::py_err;
use crate::storage::located;

/// The longest suffix of a context that occurs in a datastore.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Match(lookup::Match);

#[pymethods]
impl Match {
    /// How many tokens matched; 0 where nothing did.
    #[getter]
    fn length(&self) -> usize {
        self.0.length
    }

    /// How often they occur in the corpus.
    #[getter]
    fn count(&self) -> u64 {
        self.0.count()
    }

    fn __repr__(&self) -> String {
        format!("Match(length={}, count={})", self.length(), self.count())
    }
}

/// A document of a corpus.
#[pyclass(frozen, module = "specds")]
pub(crate) struct StoredDocument(lookup::StoredDocument);

#[pymethods]
impl StoredDocument {
    /// How many documents come before it.
    #[getter]
    fn index(&self) -> u64 {
        self.0.index
    }

    /// How many tokens come before it, separators included.
    #[getter]
    fn start(&self) -> u64 {
        self.0.start
    }

    /// Its tokens without the separator after it, shape `(n,)`.
    #[getter]
    fn token_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_iter(py, self.0.tokens.iter().map(|&token| token.into()))
    }

    fn __repr__(&self) -> String {
        let lookup::StoredDocument {
            index,
            start,
            tokens,
        } = &self.0;
        format!(
            "StoredDocument(index={index}, start={start}, {} tokens)",
            tokens.len()
        )
    }
}

/// An index over the tokens of a corpus: built once, memory-mapped, never modified.
///
/// Safe to share by threads. Opening takes milliseconds whatever the size.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Datastore(pub(crate) Arc<lookup::Datastore>);

impl From<lookup::Datastore> for Datastore {
    fn from(opened: lookup::Datastore) -> Self {
        Self(Arc::new(opened))
    }
}

#[pymethods]
impl Datastore {
    /// Opens a datastore by mapping its files.
    ///
    /// Args:
    ///     path: Its folder; or, where nothing is there, its name on the hub: ``org/name``,
    ///         ``hf://org/name@revision``. It is downloaded and checked once.
    ///
    /// Raises:
    ///     FileNotFoundError: There is nothing at `path`.
    ///     FormatError: What is there is not a datastore, is damaged, or is of a newer format.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let path = located(py, path)?;
        let opened = py
            .detach(|| lookup::Datastore::open(&path))
            .map_err(py_err)?;
        Ok(opened.into())
    }

    /// Reads everything and checks every checksum and the order of the index.
    ///
    /// Args:
    ///     checksums_only: Check the checksums alone: enough to find damage, in a fraction of the
    ///         time.
    ///
    /// Raises:
    ///     FormatError: The first thing found wrong.
    #[pyo3(signature = (*, checksums_only = false))]
    fn verify(&self, py: Python<'_>, checksums_only: bool) -> PyResult<()> {
        py.detach(|| {
            if checksums_only {
                self.0.verify_checksums()
            } else {
                self.0.verify()
            }
        })
        .map_err(py_err)
    }

    /// Reads the whole datastore into memory, as far as there is room.
    ///
    /// No lookup waits for the disk then, and no draft for what follows a token that is met first:
    /// that is looked up for the whole vocabulary.
    ///
    /// Raises:
    ///     OSError: The system refuses.
    fn warm(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.warm()).map_err(py_err)
    }

    /// Finds the longest suffix of `context` that occurs in the corpus.
    ///
    /// Args:
    ///     context: Token ids, any integer dtype, shape `(n,)`, n >= 1.
    ///     max_match: The longest suffix tried.
    ///     min_match: A shorter one counts as no match.
    ///
    /// Raises:
    ///     ValueError: `context` is empty or holds an id outside the vocabulary.
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

    /// How often `pattern` occurs within a document: never where it holds the separator.
    ///
    /// Args:
    ///     pattern: Token ids, any integer dtype, shape `(n,)`, n >= 1.
    ///
    /// Raises:
    ///     ValueError: `pattern` is empty or holds an id outside the vocabulary.
    fn count(&self, py: Python<'_>, pattern: &Bound<'_, PyAny>) -> PyResult<u64> {
        let pattern: Vec<u32> = integers(pattern, "pattern")?;
        py.detach(|| self.0.count(&pattern)).map_err(py_err)
    }

    /// The most frequent tokens after a match, and their exact counts.
    ///
    /// Returns:
    ///     Token ids and counts, both of shape `(at most top_k,)`; count descending, then id
    ///     ascending. The end of a document counts as its separator where that is a token of the
    ///     vocabulary, and not at all where it is not.
    fn continuations<'py>(
        &self,
        py: Python<'py>,
        r#match: &Bound<'py, Match>,
        top_k: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let found = &r#match.get().0;
        let counts = py.detach(|| self.0.continuations(found, top_k));
        let tokens = PyArray1::from_iter(py, counts.iter().map(|&(token, _)| i64::from(token)));
        let counts: Result<Vec<i64>, _> =
            counts.iter().map(|&(_, count)| count.try_into()).collect();
        (tokens, PyArray1::from_vec(py, counts?)).into_pyobject(py)
    }

    /// Where the first `limit` occurrences of a match begin in the corpus.
    ///
    /// Returns:
    ///     How many tokens come before each, separators included; ascending, shape
    ///     `(at most limit,)`.
    #[pyo3(signature = (r#match, limit = 10))]
    fn positions<'py>(
        &self,
        py: Python<'py>,
        r#match: &Bound<'py, Match>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let found = &r#match.get().0;
        let positions = py.detach(|| self.0.positions(found, limit));
        let positions: Result<Vec<i64>, _> = positions.into_iter().map(i64::try_from).collect();
        Ok(PyArray1::from_vec(py, positions?))
    }

    /// The document that the token at `position` of the corpus belongs to.
    ///
    /// A separator belongs to the document before it.
    ///
    /// Raises:
    ///     ValueError: The corpus is not that long.
    fn document(&self, py: Python<'_>, position: u64) -> PyResult<StoredDocument> {
        let document = py.detach(|| self.0.document(position));
        document.map(StoredDocument).map_err(py_err)
    }

    /// The folder that it was opened from.
    #[getter]
    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Tokens in the corpus, separators included.
    #[getter]
    fn num_tokens(&self) -> u64 {
        self.0.num_tokens()
    }

    /// The weights that fused drafters with it start from, fitted when it was built.
    ///
    /// None where there are none, or another version of specds has fitted them: `specds.refit`
    /// fits them again.
    #[getter]
    fn prior<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let prior = specds::fused::prior_of(&self.0);
        prior.map(|weights| PyBytes::new(py, &weights.to_bytes()))
    }

    /// Documents in the corpus.
    #[getter]
    fn num_documents(&self) -> u64 {
        self.0.num_documents()
    }

    /// Shards, each with an index of its own.
    #[getter]
    fn num_shards(&self) -> usize {
        self.0.manifest().shards.len()
    }

    /// Size on disk.
    #[getter]
    fn num_bytes(&self) -> u64 {
        self.0.num_bytes()
    }

    /// Token ids are below this.
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.vocab_size()
    }

    /// The token that ends each document; equal to `vocab_size` where the tokenizer has none.
    #[getter]
    fn separator(&self) -> u32 {
        self.0.separator()
    }

    /// The tokenizer's name, for people; empty where the builder gave none.
    #[getter]
    fn tokenizer_name(&self) -> &str {
        &self.0.manifest().tokenizer_name
    }

    /// What tells the tokenizer from others, for programs; empty where the builder gave none.
    #[getter]
    fn tokenizer_fingerprint(&self) -> &str {
        &self.0.manifest().tokenizer_fingerprint
    }

    /// The commands that built it, where they are known.
    #[getter]
    fn commands(&self) -> Vec<String> {
        self.0.manifest().commands.clone()
    }

    /// What the datastore was built from.
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

//! Methods of `specds.Datastore`.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arrays::{Made, Matrix, int64, integers, lists_of_integers, shaped};
use crate::datastore::Datastore;
use crate::error::Result;
use crate::found::{Match, StoredDocument};
use crate::storage::located;

#[pymethods]
impl Datastore {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> Result<Self> {
        let path = located(py, path)?;
        Ok(py.detach(|| specds_index::Datastore::open(&path))?.into())
    }

    /// Closes the files. Methods that read the corpus raise ValueError after that; drafters can still use it.
    fn close(&self) {
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        *opened = None;
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.close();
    }

    /// Reads everything, and checks every checksum and the order of the index.
    ///
    /// Args:
    ///     checksums_only: Check only the checksums, which finds damage in a fraction of the time.
    ///
    /// Raises:
    ///     FormatError: A file is damaged or inconsistent; the message names the first.
    #[pyo3(signature = (*, checksums_only = false))]
    fn verify(&self, py: Python<'_>, checksums_only: bool) -> Result<()> {
        let datastore = self.opened()?;
        // Forks need not wait: it takes no locks.
        let verify =
            || if checksums_only { datastore.verify_checksums() } else { datastore.verify() };
        Ok(py.detach(verify)?)
    }

    /// Reads the whole datastore into memory, as far as there is room.
    ///
    /// Later lookups do not wait for the disk.
    ///
    /// Args:
    ///     next_tokens: Cache the most frequent continuations of each token too, which takes most of the time.
    #[pyo3(signature = (*, next_tokens = true))]
    fn warm(&self, py: Python<'_>, next_tokens: bool) -> Result<()> {
        self.work(py, |datastore| datastore.warm(next_tokens))
    }

    /// Finds the longest suffix of `context` that occurs in the corpus.
    ///
    /// Args:
    ///     context: Token ids, any integer dtype, shape `(n,)`, n >= 1.
    ///     max_match: Maximum length of the suffix.
    ///     min_match: Minimum length of the suffix; a shorter one counts as no match.
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
    ) -> Result<Match> {
        let context: Vec<u32> = integers(context, "context")?;
        let found = self.work(py, |of| of.lookup(&context, max_match, min_match))?;
        Ok(self.matched(found))
    }

    /// Finds the occurrences of the whole `pattern` within documents.
    ///
    /// Args:
    ///     pattern: Token ids, any integer dtype, shape `(n,)`. An empty pattern occurs everywhere, one with the
    ///         separator nowhere.
    ///
    /// Raises:
    ///     ValueError: `pattern` holds an id outside the vocabulary.
    fn find(&self, py: Python<'_>, pattern: &Bound<'_, PyAny>) -> Result<Match> {
        let pattern: Vec<u32> = integers(pattern, "pattern")?;
        let found = self.work(py, |datastore| datastore.find(&pattern))?;
        Ok(self.matched(found))
    }

    /// Counts the occurrences of `pattern`, as `find` does.
    fn count(&self, py: Python<'_>, pattern: &Bound<'_, PyAny>) -> Result<u64> {
        let pattern: Vec<u32> = integers(pattern, "pattern")?;
        self.work(py, |datastore| Ok(datastore.find(&pattern)?.count()))
    }

    /// Counts the occurrences of each of many patterns, in parallel.
    ///
    /// Args:
    ///     patterns: A sequence of patterns as for `find`, or an array of shape `(m, n)`.
    ///
    /// Returns:
    ///     Counts, int64, shape `(m,)`.
    fn count_batch(&self, py: Python<'_>, patterns: &Bound<'_, PyAny>) -> Result<Made<i64>> {
        let patterns = lists_of_integers(patterns, "patterns")?;
        let found = self.work(py, |datastore| datastore.find_batch(&patterns))?;
        int64(found.iter().map(specds_index::Match::count))
    }

    /// Returns the most frequent tokens after a match or a pattern, with their exact counts.
    ///
    /// Divided by the count of the match, a count is the token's n-gram probability after a pattern, and its
    /// infinity-gram probability after a match of `lookup`.
    ///
    /// Args:
    ///     of: A `Match` in this datastore, or a pattern as for `find`.
    ///     top_k: Maximum number of tokens; all by default.
    ///
    /// Returns:
    ///     Token ids and counts, both int64 of shape `(at most top_k,)`; count descending, then id ascending.
    ///     The end of a document counts as the separator if that is in the vocabulary; otherwise it is not
    ///     counted.
    ///
    /// Raises:
    ///     ValueError: The match is from another datastore, or an id is outside the vocabulary.
    #[pyo3(signature = (of, top_k = None))]
    fn continuations(
        &self,
        py: Python<'_>,
        of: &Bound<'_, PyAny>,
        top_k: Option<usize>,
    ) -> Result<(Made<i64>, Made<i64>)> {
        let (found, top_k) = (self.found(py, of)?, top_k.unwrap_or(usize::MAX));
        let counts = self.work(py, |datastore| Ok(datastore.continuations(&found, top_k)))?;
        let (tokens, counts): (Vec<_>, Vec<_>) = counts.into_iter().unzip();
        Ok((int64(tokens)?, int64(counts)?))
    }

    /// Counts each token of the vocabulary after a match or a pattern.
    ///
    /// Args:
    ///     of: A `Match` in this datastore, or a pattern as for `find`.
    ///
    /// Returns:
    ///     Counts, int64, shape `(vocab_size,)`.
    fn count_next(&self, py: Python<'_>, of: &Bound<'_, PyAny>) -> Result<Made<i64>> {
        let found = self.found(py, of)?;
        let row = self.work(py, |datastore| Ok(datastore.count_next_batch(&[found])))?;
        int64(row)
    }

    /// Counts each token of the vocabulary after each of many patterns, in parallel.
    ///
    /// Args:
    ///     patterns: A sequence of patterns as for `find`, or an array of shape `(m, n)`.
    ///
    /// Returns:
    ///     Counts, int64, shape `(m, vocab_size)`.
    fn count_next_batch(&self, py: Python<'_>, patterns: &Bound<'_, PyAny>) -> Result<Matrix> {
        let patterns = lists_of_integers(patterns, "patterns")?;
        let rows = self.work(py, |datastore| {
            Ok(datastore.count_next_batch(&datastore.find_batch(&patterns)?))
        })?;
        let width = self.opened()?.vocab_size() as usize;
        let rows: Result<Vec<i64>, _> = rows.into_iter().map(i64::try_from).collect();
        shaped((patterns.len(), width), rows.map_err(PyErr::from)?)
    }

    /// Returns the infinity-gram probability of each token of a text (Liu et al. 2024, section 2).
    ///
    /// The context of a token is the longest suffix of the text before it that occurs in the corpus. The
    /// probability is the share of its occurrences that the token follows. A context does not extend across a
    /// separator; the end of a document counts as the separator.
    ///
    /// Args:
    ///     token_ids: Any integer dtype, shape `(n,)`.
    ///     max_match: Maximum length of a context; unlimited by default.
    ///
    /// Returns:
    ///     Probabilities, float64, and lengths of the contexts in tokens, int64, both of shape `(n,)`.
    ///
    /// Raises:
    ///     ValueError: A token is neither in the vocabulary nor the separator.
    #[pyo3(signature = (token_ids, *, max_match = None))]
    fn infinity_gram(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        max_match: Option<usize>,
    ) -> Result<(Made<f64>, Made<i64>)> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        let max_match = max_match.unwrap_or(usize::MAX);
        let scored = self.work(py, |datastore| datastore.infinity_gram(&tokens, max_match))?;
        let (probs, lengths): (Vec<_>, Vec<_>) = scored.into_iter().unzip();
        Ok((probs.into(), int64(lengths)?))
    }

    /// Returns the natural logarithm of each token's smoothed n-gram probability.
    ///
    /// `numpy.exp(-scores.mean())` is the perplexity of the text. The counts of each context length are smoothed
    /// with the next shorter one by a Dirichlet prior (MacKay and Peto 1995):
    /// `p(t | c) = (#(c t) + concentration * p(t | c')) / (#c + concentration)`, where `c'` is the context `c`
    /// without its first token. Without context, all tokens and the end of a document are equally likely. A
    /// context does not extend across a separator.
    ///
    /// Args:
    ///     token_ids: Any integer dtype, shape `(n,)`.
    ///     max_match: Maximum length of a context.
    ///     concentration: Weight of the shorter context, in occurrences; finite and above 0.
    ///
    /// Returns:
    ///     Log probabilities, float64, shape `(n,)`, all finite and at most 0.
    ///
    /// Raises:
    ///     ValueError: A token is neither in the vocabulary nor the separator, or `concentration` is out of range.
    #[pyo3(signature = (token_ids, *, max_match = 8, concentration = 4.0))]
    fn score(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        max_match: usize,
        concentration: f64,
    ) -> Result<Made<f64>> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        let scores = self.work(py, |of| of.score(&tokens, max_match, concentration))?;
        Ok(scores.into())
    }

    /// Returns the positions of the first `limit` occurrences of a match or a pattern.
    ///
    /// Args:
    ///     of: A `Match` in this datastore, or a pattern as for `find`.
    ///     limit: Maximum number of occurrences.
    ///
    /// Returns:
    ///     The number of tokens of the corpus before each occurrence, separators included; int64, ascending,
    ///     shape `(at most limit,)`.
    #[pyo3(signature = (of, limit = 10))]
    fn positions(&self, py: Python<'_>, of: &Bound<'_, PyAny>, limit: usize) -> Result<Made<i64>> {
        let found = self.found(py, of)?;
        int64(self.work(py, |datastore| Ok(datastore.positions(&found, limit)))?)
    }

    /// Returns the document of this index in the corpus, starting at 0.
    ///
    /// Raises:
    ///     ValueError: There are fewer documents.
    fn document(&self, py: Python<'_>, index: u64) -> Result<StoredDocument> {
        let document = self.work(py, |datastore| datastore.document(index))?;
        Ok(StoredDocument(document))
    }

    /// Returns the name of the place that a document came from, such as `a/b.py` or `answers.jsonl:17`; an empty string
    /// if the document has none.
    ///
    /// Raises:
    ///     ValueError: There are fewer documents.
    fn source(&self, py: Python<'_>, index: u64) -> Result<String> {
        self.work(py, |datastore| datastore.source(index))
    }

    /// Returns the document that contains `position` of the corpus; a separator belongs to the document before it.
    ///
    /// Raises:
    ///     ValueError: The corpus has fewer tokens.
    fn document_at(&self, py: Python<'_>, position: u64) -> Result<StoredDocument> {
        let document = self.work(py, |datastore| datastore.document_at(position))?;
        Ok(StoredDocument(document))
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let builtins = slf.py().import("builtins")?;
        let numbers = builtins.call_method1("range", (slf.get().num_documents()?,))?;
        builtins.call_method1("map", (slf.getattr("document")?, numbers))
    }

    /// The folder of the datastore.
    #[getter]
    fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tokens in the corpus, separators included.
    #[getter]
    fn num_tokens(&self) -> PyResult<u64> {
        Ok(self.opened()?.num_tokens())
    }

    /// Number of documents in the corpus.
    #[getter]
    fn num_documents(&self) -> PyResult<u64> {
        Ok(self.opened()?.num_documents())
    }

    /// Number of shards, each of which has its own index.
    #[getter]
    fn num_shards(&self) -> PyResult<usize> {
        Ok(self.opened()?.manifest().shards.len())
    }

    /// Size on disk in bytes.
    #[getter]
    fn num_bytes(&self) -> PyResult<u64> {
        Ok(self.opened()?.num_bytes())
    }

    /// Token ids are below this.
    #[getter]
    fn vocab_size(&self) -> PyResult<u32> {
        Ok(self.opened()?.vocab_size())
    }

    /// The token that ends each document; equal to `vocab_size` if the tokenizer has none.
    #[getter]
    fn separator(&self) -> PyResult<u32> {
        Ok(self.opened()?.separator())
    }

    /// The tokenizer's name, for readers; empty if the builder specified none.
    #[getter]
    fn tokenizer_name(&self) -> PyResult<String> {
        Ok(self.opened()?.manifest().tokenizer_name.clone())
    }

    /// The tokenizer's fingerprint, which programs compare; empty if the builder specified none.
    #[getter]
    fn tokenizer_fingerprint(&self) -> PyResult<String> {
        Ok(self.opened()?.manifest().tokenizer_fingerprint.clone())
    }

    /// The commands that made the datastore, if they are known.
    #[getter]
    fn commands(&self) -> PyResult<Vec<String>> {
        Ok(self.opened()?.manifest().commands.clone())
    }

    /// The origins of the documents, one line a source.
    #[getter]
    fn corpus(&self) -> PyResult<Vec<String>> {
        Ok(self.opened()?.manifest().corpus.clone())
    }

    fn __repr__(&self) -> String {
        let tokens = self
            .opened()
            .map_or("closed".to_owned(), |datastore| format!("{} tokens", datastore.num_tokens()));
        format!("Datastore({}, {tokens})", self.path.display())
    }
}

//! `specds.Match` and `specds.StoredDocument`.

use pyo3::prelude::*;

use crate::arrays::{Made, int64};
use crate::error::Result;

/// The occurrences of a token sequence in a datastore, which `Datastore.lookup` and `Datastore.find` return.
///
/// Matches of the same tokens in the same datastore are equal, also if it was opened twice.
#[pyclass(frozen, eq, module = "specds")]
#[derive(PartialEq)]
pub(crate) struct Match {
    pub(crate) found: specds_index::Match,
    pub(crate) build_id: u128,
}

#[pymethods]
impl Match {
    /// Number of matched tokens; 0 for no match.
    #[getter]
    fn length(&self) -> usize {
        self.found.length
    }

    /// Number of occurrences in the corpus.
    #[getter]
    fn count(&self) -> u64 {
        self.found.count()
    }

    fn __repr__(&self) -> String {
        format!("Match(length={}, count={})", self.length(), self.count())
    }
}

/// A document of a corpus.
#[pyclass(frozen, module = "specds")]
pub(crate) struct StoredDocument(pub(crate) specds_index::StoredDocument);

#[pymethods]
impl StoredDocument {
    /// Index of the document in the corpus, starting at 0.
    #[getter]
    fn index(&self) -> u64 {
        self.0.index
    }

    /// Number of tokens of the corpus before the document, separators included.
    #[getter]
    fn start(&self) -> u64 {
        self.0.start
    }

    /// The tokens without the separator, int64, shape `(n,)`.
    #[getter]
    fn token_ids(&self) -> Result<Made<i64>> {
        int64(self.0.tokens.iter().copied())
    }

    fn __repr__(&self) -> String {
        let (index, start, length) = (self.0.index, self.0.start, self.0.tokens.len());
        format!("StoredDocument(index={index}, start={start}, {length} tokens)")
    }
}

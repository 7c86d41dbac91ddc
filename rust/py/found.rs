//! What a datastore is asked for: `specds.Match`, `specds.StoredDocument`.

use pyo3::prelude::*;

use crate::arrays::{Made, int64};
use crate::error::Result;

/// Where tokens occur in a datastore, of `Datastore.lookup` or `Datastore.find`.
///
/// Equal to another one of the same tokens in the same datastore, however often that is opened.
#[pyclass(frozen, eq, module = "specds")]
#[derive(PartialEq)]
pub(crate) struct Match {
    pub(crate) found: specds_index::Match,
    pub(crate) build_id: u128,
}

#[pymethods]
impl Match {
    /// How many tokens matched; 0 where nothing did.
    #[getter]
    fn length(&self) -> usize {
        self.found.length
    }

    /// How often they occur in the corpus.
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
    fn token_ids(&self) -> Result<Made<i64>> {
        int64(self.0.tokens.iter().copied())
    }

    fn __repr__(&self) -> String {
        let (index, start, length) = (self.0.index, self.0.start, self.0.tokens.len());
        format!("StoredDocument(index={index}, start={start}, {length} tokens)")
    }
}

//! What a datastore is asked for: `specds.Match`, `specds.StoredDocument`, its documents in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The documents of a datastore, in order; it stays open for them.
#[pyclass(frozen)]
pub(crate) struct Documents {
    pub(crate) datastore: Arc<specds_index::Datastore>,
    pub(crate) next: AtomicU64,
}

#[pymethods]
impl Documents {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> Result<Option<StoredDocument>> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index >= self.datastore.num_documents() {
            return Ok(None);
        }
        let document = py.detach(|| self.datastore.document(index))?;
        Ok(Some(StoredDocument(document)))
    }
}

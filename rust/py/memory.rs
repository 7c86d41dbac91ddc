//! `specds.Memory`: what earlier requests said.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use specds::memory::{self, MemoryOptions};

use crate::arrays::integers;
use crate::error::py_err;

/// Texts of earlier requests by tenant, within a number of bytes.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Memory(pub(crate) Arc<memory::Memory>);

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (vocab_size, *, max_bytes = 1 << 28, tokenizer = String::new()))]
    fn new(vocab_size: u32, max_bytes: usize, tokenizer: String) -> PyResult<Self> {
        let options = MemoryOptions {
            vocab_size,
            max_bytes,
            tokenizer,
        };
        let memory = memory::Memory::new(options).map_err(py_err)?;
        Ok(Self(Arc::new(memory)))
    }

    /// Reads what `save` has written: a memory, and the caller's own bytes.
    #[staticmethod]
    #[pyo3(signature = (path, vocab_size, *, max_bytes = 1 << 28, tokenizer = String::new()))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        vocab_size: u32,
        max_bytes: usize,
        tokenizer: String,
    ) -> PyResult<(Self, Bound<'_, PyBytes>)> {
        let options = MemoryOptions {
            vocab_size,
            max_bytes,
            tokenizer,
        };
        let opened = py.detach(|| memory::Memory::open(&path, options));
        let (memory, weights) = opened.map_err(py_err)?;
        Ok((Self(Arc::new(memory)), PyBytes::new(py, &weights)))
    }

    /// Adds a text that is complete.
    fn insert(&self, py: Python<'_>, tenant: &str, token_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        py.detach(|| self.0.insert(tenant, &tokens)).map_err(py_err)
    }

    /// Removes all texts of a tenant.
    fn forget(&self, py: Python<'_>, tenant: &str) {
        py.detach(|| self.0.forget(tenant));
    }

    /// Removes all texts of all tenants.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.0.clear());
    }

    /// Writes all texts to a file, and some bytes of the caller's with them.
    #[pyo3(signature = (path, *, weights = &[][..]))]
    fn save(&self, py: Python<'_>, path: PathBuf, weights: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.save(&path, weights)).map_err(py_err)
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.options().vocab_size
    }

    #[getter]
    fn max_bytes(&self) -> usize {
        self.0.max_bytes()
    }

    #[getter]
    fn num_bytes(&self) -> usize {
        self.0.num_bytes()
    }

    #[getter]
    fn num_tokens(&self) -> usize {
        self.0.num_tokens()
    }

    #[getter]
    fn num_tenants(&self) -> usize {
        self.0.num_tenants()
    }

    fn __repr__(&self) -> String {
        format!(
            "Memory(num_tenants={}, num_tokens={}, num_bytes={}, max_bytes={})",
            self.num_tenants(),
            self.num_tokens(),
            self.num_bytes(),
            self.max_bytes()
        )
    }
}

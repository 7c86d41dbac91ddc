//! `specds.Memory`: what earlier requests said and taught.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds::memory::{MemoryOptions, Sharing};

use crate::arrays::{Made, integers};
use crate::datastore::{Datastore, opened};
use crate::error::{Result, lock};

/// What earlier requests said and taught, by tenant, within a number of bytes.
///
/// No tenant's texts or weights reach another's drafts. When it is full, tenants with more than three
/// quarters of an equal share lose their oldest third of texts, the least recently used tenant first. Safe
/// to share by threads: many read while one writes.
///
/// Args:
///     vocab_size: Token ids are below this.
///     max_bytes: The most bytes, at least 16,384: a token of text takes at most 16, and what a
///         tenant's requests taught a fixed number (docs/RELIABILITY.md).
///     tokenizer: In the caller's words: a snapshot of another one is not opened.
///
/// Raises:
///     ValueError: An argument is out of its bounds.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Memory {
    pub(crate) memory: Arc<specds::memory::Memory>,
    sharing: Mutex<Option<Sharing>>,
}

impl From<specds::memory::Memory> for Memory {
    fn from(memory: specds::memory::Memory) -> Self {
        Self { memory: Arc::new(memory), sharing: Mutex::default() }
    }
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (vocab_size, *, max_bytes = 268_435_456, tokenizer = ""))]
    fn new(vocab_size: u32, max_bytes: usize, tokenizer: &str) -> Result<Self> {
        let options = options(vocab_size, max_bytes, tokenizer);
        Ok(specds::memory::Memory::new(options)?.into())
    }

    /// Reads what `save` has written.
    ///
    /// Args:
    ///     path: The file.
    ///     vocab_size: As it was.
    ///     max_bytes: May be less than it was: texts are then evicted.
    ///     tokenizer: As it was.
    ///
    /// Raises:
    ///     FileNotFoundError: There is nothing at `path`.
    ///     FormatError: It is no snapshot of a memory, damaged, or of another format.
    ///     ValueError: It is of another vocabulary or tokenizer.
    #[staticmethod]
    #[pyo3(signature = (path, vocab_size, *, max_bytes = 268_435_456, tokenizer = ""))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        vocab_size: u32,
        max_bytes: usize,
        tokenizer: &str,
    ) -> Result<Self> {
        let options = options(vocab_size, max_bytes, tokenizer);
        let opened = py.detach(|| specds::memory::Memory::open(&path, options))?;
        Ok(opened.into())
    }

    /// Adds a text that is complete, unless the tenant has it already.
    ///
    /// Of a text that does not fit into the whole memory, the end is kept.
    ///
    /// Args:
    ///     tenant: Whose it is, at most 1024 bytes of UTF-8.
    ///     token_ids: The text, any integer dtype, shape `(n,)`.
    ///
    /// Raises:
    ///     ValueError: An id is outside the vocabulary, or the name is too long; nothing is added.
    fn insert(&self, py: Python<'_>, tenant: &str, token_ids: &Bound<'_, PyAny>) -> Result<()> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        Ok(py.detach(|| self.memory.insert(tenant, &tokens))?)
    }

    /// Removes a tenant's texts and what they taught: here now, from the file at the next `save` or turn of
    /// `share`, and from every process that shares the file when it next does so.
    ///
    /// Requests of the tenant that are still open bring nothing back. Later ones begin anew.
    fn forget(&self, py: Python<'_>, tenant: &str) {
        py.detach(|| self.memory.forget(tenant));
    }

    /// Forgets tenants in a file that `save` or `share` wrote, and so in every process that shares it, when
    /// it next does so.
    ///
    /// Args:
    ///     path: The file.
    ///     tenants: Their names. Those of whom the file has nothing are forgotten too: a process may
    ///         have what it has not written yet.
    ///
    /// Returns:
    ///     How many texts the file had of them.
    ///
    /// Raises:
    ///     FileNotFoundError: There is nothing at `path`.
    ///     FormatError: What is there is no snapshot of a memory, damaged, or of another format.
    ///     OSError: The file cannot be written; it is as it was.
    #[staticmethod]
    fn forget_in(py: Python<'_>, path: PathBuf, tenants: Vec<String>) -> Result<usize> {
        let tenants: Vec<_> = tenants.iter().map(String::as_str).collect();
        Ok(py.detach(|| specds::memory::Memory::forget_in(&path, &tenants))?)
    }

    /// Forgets all tenants, also those whom other processes that share the file have.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.memory.clear());
    }

    /// Writes all of it to a file, for its owner alone; threads go on reading.
    ///
    /// What is at `path` is replaced in one step.
    ///
    /// Args:
    ///     path: The file.
    ///     merge: First take in what others have written there, except tenants that were forgotten
    ///         here. With it or not, those that were forgotten there are forgotten here. Of a tenant whom two processes taught, the last one's weights stay.
    ///     known: With `merge`: a datastore. Texts that it has, each whole in a document, are
    ///         removed, here and from the file.
    ///
    /// Raises:
    ///     FormatError: With `merge`, what is there is no snapshot, or is damaged.
    ///     OSError: The file cannot be written; what was at `path` is still there.
    ///     ValueError: With `merge`, what is there or `known` is of another vocabulary or
    ///         tokenizer.
    #[pyo3(signature = (path, *, merge = false, known = None))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        merge: bool,
        known: Option<&Bound<'_, Datastore>>,
    ) -> Result<()> {
        let known = opened(known)?;
        if merge {
            py.detach(|| self.memory.merge_into(&path, known.as_deref()))?;
        } else {
            py.detach(|| self.memory.save(&path))?;
        }
        Ok(())
    }

    /// Shares the memory with other processes by a file: at this interval, and once more at the end, a
    /// thread merges it as `save` does. A process that is killed leaves the file as it was.
    ///
    /// Args:
    ///     path: The file.
    ///     every: Seconds, at least 0.001 and at most a day.
    ///
    /// Raises:
    ///     FormatError: What is there is no snapshot, or is damaged; it stays.
    ///     OSError: The file cannot be written.
    ///     ValueError: It is of another vocabulary or tokenizer, or `every` is out of its bounds.
    #[pyo3(signature = (path, *, every = 60.0))]
    fn share(&self, py: Python<'_>, path: PathBuf, every: f64) -> Result<()> {
        if !(0.001..=86_400.0).contains(&every) {
            let message = format!("`every` must lie in 0.001..=86400, not {every}");
            return Err(PyValueError::new_err(message).into());
        }
        let (memory, every) = (Arc::clone(&self.memory), Duration::from_secs_f64(every));
        let before = lock(&self.sharing).take();
        let sharing = py.detach(|| {
            drop(before);
            Sharing::start(memory, path, every, None, || ())
        });
        *lock(&self.sharing) = Some(sharing?);
        Ok(())
    }

    /// Why the memory could not be shared the last time; None where it could, or is not.
    #[getter]
    fn failure(&self) -> Option<String> {
        lock(&self.sharing).as_ref().and_then(Sharing::failure)
    }

    /// The texts of a tenant, the first one first: uint32 arrays of shape `(n,)`.
    fn texts(&self, py: Python<'_>, tenant: &str) -> Vec<Made<u32>> {
        let texts = py.detach(|| self.memory.texts(tenant));
        texts.into_iter().map(Made::from).collect()
    }

    /// Token ids are below this.
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.memory.options().vocab_size
    }

    /// The most bytes that all of it takes.
    #[getter]
    fn max_bytes(&self) -> usize {
        self.memory.max_bytes()
    }

    /// Bytes of all texts, their indexes, what they taught, and the marks of who was forgotten.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.memory.num_bytes()
    }

    /// Tokens of all texts.
    #[getter]
    fn num_tokens(&self) -> usize {
        self.memory.num_tokens()
    }

    /// Tenants of whom something is kept, or whose requests are open.
    #[getter]
    fn num_tenants(&self) -> usize {
        self.memory.num_tenants()
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

fn options(vocab_size: u32, max_bytes: usize, tokenizer: &str) -> MemoryOptions {
    MemoryOptions { vocab_size, max_bytes, tokenizer: tokenizer.to_owned() }
}

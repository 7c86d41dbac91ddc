//! `specds.Memory`, the request cache.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use specds_core::memory::{MemoryOptions, Sharing, Transfer, Unstored};
use specds_index::DatastoreOptions;

use crate::arrays::{Made, integers};
use crate::builder::report_to;
use crate::datastore::{Datastore, opened};
use crate::error::{Result, detached, lock};
use crate::options;

/// The request cache: texts of earlier requests and the weights adapted to them, per tenant.
///
/// Drafts for a tenant never depend on the texts of another. When the memory is full, tenants with more than
/// three quarters of an equal share lose the least useful third of their texts, the least recently used tenant first:
/// those of which drafts were accepted least, the oldest if none was.
/// Threads may share it: many read while one writes.
///
/// Args:
///     vocab_size: Token ids are below this.
///     max_bytes: Size limit in bytes, at least 16,384. A token takes at most 16 bytes, and the adapted weights
///         of a tenant a fixed number (docs/RELIABILITY.md).
///     tokenizer: Name or fingerprint of the tokenizer. A snapshot of another tokenizer is rejected.
///     max_tenant_bytes: Size limit of one tenant in bytes, of which the least useful texts go first; by default none.
///     max_age: Seconds after which a text leaves the memory and, at the next exchange, the store; by default none.
///
/// Raises:
///     ValueError: An argument is out of range.
#[pyclass(frozen, weakref, module = "specds")]
pub(crate) struct Memory {
    pub(crate) memory: Arc<specds_core::memory::Memory>,
    sharing: Arc<Mutex<Option<Sharing>>>,
}

impl From<specds_core::memory::Memory> for Memory {
    fn from(memory: specds_core::memory::Memory) -> Self {
        Self { memory: Arc::new(memory), sharing: Arc::default() }
    }
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (
        vocab_size, *, max_bytes = 268_435_456, tokenizer = "", max_tenant_bytes = None, max_age = None
    ))]
    fn new(
        vocab_size: u32,
        max_bytes: usize,
        tokenizer: &str,
        max_tenant_bytes: Option<usize>,
        max_age: Option<f64>,
    ) -> Result<Self> {
        let mut options = memory_options(vocab_size, max_bytes, tokenizer);
        options.max_tenant_bytes = max_tenant_bytes.unwrap_or(options.max_tenant_bytes);
        options.max_age = max_age.map(age).transpose()?;
        Ok(specds_core::memory::Memory::new(options)?.into())
    }

    /// Opens a request cache that `save` or `share` wrote.
    ///
    /// Args:
    ///     path: The folder or URL.
    ///     vocab_size: The vocabulary size of the saved memory.
    ///     max_bytes: Size limit in bytes. If it is less than before, texts may be evicted.
    ///     tokenizer: The tokenizer of the saved memory.
    ///
    /// Raises:
    ///     FileNotFoundError: There is nothing at `path`.
    ///     FormatError: It is damaged, or has another format version.
    ///     ValueError: It has another vocabulary or tokenizer.
    #[staticmethod]
    #[pyo3(signature = (path, vocab_size, *, max_bytes = 268_435_456, tokenizer = ""))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        vocab_size: u32,
        max_bytes: usize,
        tokenizer: &str,
    ) -> Result<Self> {
        let options = memory_options(vocab_size, max_bytes, tokenizer);
        let opened = py.detach(|| specds_core::memory::Memory::open(&path, options))?;
        Ok(opened.into())
    }

    /// Adds a complete text, unless the tenant has it.
    ///
    /// If a text does not fit into the whole memory, its end is stored.
    ///
    /// Args:
    ///     tenant: The name of the tenant, at most 1024 bytes of UTF-8.
    ///     token_ids: The text, any integer dtype, shape `(n,)`.
    ///
    /// Raises:
    ///     ValueError: An id is outside the vocabulary, or the name is too long. Nothing is added.
    fn insert(&self, py: Python<'_>, tenant: &str, token_ids: &Bound<'_, PyAny>) -> Result<()> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        Ok(detached(py, || self.memory.insert(tenant, &tokens))?)
    }

    /// Deletes a tenant's texts and adapted weights from this memory, and with the next `save` or exchange of
    /// `share` from the store.
    ///
    /// Processes that share the store delete the tenant at their next exchange. Open requests of the tenant store
    /// nothing any more, and later ones belong to a new tenant.
    fn forget(&self, py: Python<'_>, tenant: &str) {
        detached(py, || self.memory.forget(tenant));
    }

    /// Returns when a tenant may have been deleted last, in seconds since 1970, as far as this process knows: 0 if it
    /// never was, infinity since a `forget` that is in no file yet.
    fn deleted_at(&self, tenant: &str) -> f64 {
        self.memory.deleted_at(tenant)
    }

    /// Deletes tenants from a store that `save` or `share` wrote, and from all stores below it.
    ///
    /// Processes that share the store delete them at their next exchange.
    ///
    /// Args:
    ///     path: The folder or URL.
    ///     tenants: The names of the tenants. Tenants without texts in the store are deleted too, because a process
    ///         may have texts of them that it has not written yet.
    ///
    /// Returns:
    ///     For each tenant, the number of its texts in the store; None if the store had no data of it.
    ///
    /// Raises:
    ///     FileNotFoundError: There is nothing at `path`.
    ///     FormatError: The store is damaged, or has another format version.
    ///     PermissionError: The folder has another owner, and this process may not keep that. It does not
    ///         change. Or the tenants are deleted, but texts that a killed `add_from_memory` has left
    ///         belong to another user.
    ///     OSError: The store cannot be written. It does not change.
    #[staticmethod]
    fn forget_in(
        py: Python<'_>,
        path: PathBuf,
        tenants: Vec<String>,
    ) -> Result<Vec<Option<usize>>> {
        let tenants: Vec<_> = tenants.iter().map(String::as_str).collect();
        Ok(py.detach(|| specds_core::memory::Memory::forget_in(&path, &tenants))?)
    }

    /// Returns the request caches at a folder or URL: itself, if it is one, and all below it.
    ///
    /// Args:
    ///     path: The folder or URL.
    ///     tenants: If given, only caches that may have requests of these tenants.
    ///
    /// Raises:
    ///     FileNotFoundError: There is none.
    #[staticmethod]
    #[pyo3(signature = (path, tenants = None))]
    fn stores_at(
        py: Python<'_>,
        path: PathBuf,
        tenants: Option<Vec<String>>,
    ) -> Result<Vec<OsString>> {
        let tenants: Option<Vec<&str>> =
            tenants.as_ref().map(|them| them.iter().map(String::as_str).collect());
        let stores =
            py.detach(|| specds_core::memory::Memory::stores_at(&path, tenants.as_deref()))?;
        Ok(stores.into_iter().map(PathBuf::into_os_string).collect())
    }

    /// Returns what a request cache at a folder or URL has: its tokenizer, numbers of segments, tenants, groups, texts,
    /// tokens and deletions, the size of its segments in bytes, and the seconds since its last change, by the clocks of
    /// two processes.
    ///
    /// Raises:
    ///     FileNotFoundError: There is none.
    ///     FormatError: It is damaged, or has another format version.
    #[staticmethod]
    fn info(py: Python<'_>, path: PathBuf) -> Result<Bound<'_, PyDict>> {
        let info = py.detach(|| specds_core::memory::Memory::info(&path))?;
        let values = PyDict::new(py);
        values.set_item("tokenizer", info.tokenizer)?;
        let numbers = [
            ("vocab_size", info.vocab_size.into()),
            ("num_bytes", info.num_bytes),
            ("num_segments", info.num_segments as u64),
            ("num_tenants", info.num_tenants as u64),
            ("num_groups", info.num_groups as u64),
            ("num_texts", info.num_texts as u64),
            ("num_tokens", info.num_tokens as u64),
            ("num_deletions", info.num_tombstones as u64),
            ("age_s", info.age),
        ];
        numbers.iter().try_for_each(|(name, number)| values.set_item(name, number))?;
        Ok(values)
    }

    /// Joins all segments of a request cache at a folder or URL, and removes what killed processes left.
    ///
    /// Raises:
    ///     FileNotFoundError: There is none.
    ///     FormatError: It is damaged, or has another format version.
    ///     OSError: It cannot be read or written.
    #[staticmethod]
    fn compact(py: Python<'_>, path: PathBuf) -> Result<()> {
        Ok(py.detach(|| specds_core::memory::Memory::compact(&path))?)
    }

    /// Moves a tenant's texts from a store to a datastore, which is made if there is none.
    ///
    /// Args:
    ///     path: The folder or URL.
    ///     tenant: The owner of the texts.
    ///     datastore: The folder.
    ///     vocab_size: As for `DatastoreBuilder`.
    ///     separator: As for `DatastoreBuilder`.
    ///     progress: As for `DatastoreBuilder.finish`.
    ///     options: Those of `DatastoreBuilder`.
    ///
    /// Returns:
    ///     The datastore, if there is one; and the numbers of texts, added documents, added tokens,
    ///     and of the tokens that all tenants still have in the store.
    ///
    /// Raises:
    ///     ValueError: The tenant was deleted from the store meanwhile, or an argument is out of its
    ///         bounds; nothing is added.
    #[staticmethod]
    #[pyo3(signature = (path, tenant, datastore, *, vocab_size, separator, progress = None, **options))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn move_to(
        py: Python<'_>,
        path: PathBuf,
        tenant: &str,
        datastore: PathBuf,
        vocab_size: u32,
        separator: u32,
        progress: Option<Py<PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<(Option<Datastore>, [u64; 4])> {
        let options = DatastoreOptions { vocab_size, separator, ..options::read(options)? };
        let report = report_to(py, progress, |report| {
            Transfer::begin(&path, tenant, &datastore, options)?.finish(report)
        })?;
        let numbers = [
            report.num_texts as u64,
            report.num_added_documents,
            report.num_added_tokens,
            report.num_left as u64,
        ];
        Ok((report.datastore.map(Datastore::from), numbers))
    }

    /// Deletes all tenants, including those that only other processes have that share the store.
    fn clear(&self, py: Python<'_>) {
        detached(py, || self.memory.clear());
    }

    /// Exchanges texts, adapted weights and deletions with a store, so that both have what one of them had.
    ///
    /// A new folder is readable by its owner alone. Other threads can read the memory meanwhile.
    ///
    /// Args:
    ///     path: The folder, which is made if there is none, or a URL.
    ///     known: A datastore. Texts that a document of it contains are removed from this memory and the store.
    ///
    /// Raises:
    ///     FormatError: The store is damaged or has another format version.
    ///     PermissionError: The folder has another owner, and this process may not keep that.
    ///     OSError: The store cannot be read or written, or is a folder with other files.
    ///     ValueError: The store or `known` has another vocabulary or tokenizer.
    ///     BlockingIOError: Other processes change the store all the time.
    #[pyo3(signature = (path, *, known = None))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        known: Option<&Bound<'_, Datastore>>,
    ) -> Result<()> {
        let known = opened(known)?;
        Ok(py.detach(|| self.memory.save(&path, known.as_ref()))?)
    }

    /// Shares the memory with other processes through a store: a thread calls `save` at an interval, and once more
    /// when the memory is dropped or the interpreter ends.
    ///
    /// A process that is killed does not damage the store.
    ///
    /// Args:
    ///     path: The folder or URL. Links and relative paths are resolved once.
    ///     every: Interval in seconds, at least 0.001 and at most a day.
    ///
    /// Raises:
    ///     FormatError: The store is damaged. It does not change.
    ///     OSError: The store cannot be written. If one at a URL does not answer, the memory is shared as soon
    ///         as it does, without an error.
    ///     ValueError: The store has another vocabulary or tokenizer, or `every` is out of range.
    #[pyo3(signature = (path, *, every = 60.0))]
    fn share(of: &Bound<'_, Self>, path: PathBuf, every: f64) -> Result<()> {
        let (this, py) = (of.get(), of.py());
        if !(0.001..=86_400.0).contains(&every) {
            let message = format!("`every` must lie in 0.001..=86400, not {every}");
            return Err(PyValueError::new_err(message).into());
        }
        let (memory, every) = (Arc::clone(&this.memory), Duration::from_secs_f64(every));
        let before = lock(&this.sharing).take();
        let sharing = py.detach(|| {
            drop(before);
            Sharing::start(memory, &path, every, None, None::<NoRequests>)
        });
        *lock(&this.sharing) = Some(sharing?);
        // The last exchange may need the interpreter, in the thread.
        let sharing = Arc::clone(&this.sharing);
        let end = move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            let sharing = lock(&sharing).take();
            args.py().detach(|| drop(sharing));
        };
        let end = PyCFunction::new_closure(py, None, None, end)?;
        py.import("weakref")?.call_method1("finalize", (of, end))?;
        Ok(())
    }

    /// The error of the last exchange of `share`; None if it succeeded or the memory is not shared.
    #[getter]
    fn failure(&self) -> Option<String> {
        lock(&self.sharing).as_ref().and_then(Sharing::failure)
    }

    /// Returns the texts of a tenant, the oldest first: uint32 arrays of shape `(n,)`.
    fn texts(&self, py: Python<'_>, tenant: &str) -> Vec<Made<u32>> {
        let texts = detached(py, || self.memory.texts(tenant));
        texts.into_iter().map(Made::from).collect()
    }

    /// Token ids are below this.
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.memory.options().vocab_size
    }

    /// Size limit in bytes.
    #[getter]
    fn max_bytes(&self) -> usize {
        self.memory.max_bytes()
    }

    /// Size in bytes of all texts, their indexes, the adapted weights and the tombstones of deleted tenants.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.memory.num_bytes()
    }

    /// Number of tokens of all texts.
    #[getter]
    fn num_tokens(&self) -> usize {
        self.memory.num_tokens()
    }

    /// Number of tenants that have data or open requests.
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

fn memory_options(vocab_size: u32, max_bytes: usize, tokenizer: &str) -> MemoryOptions {
    let tokenizer = tokenizer.to_owned();
    MemoryOptions { max_bytes, tokenizer, ..MemoryOptions::new(vocab_size) }
}

fn age(seconds: f64) -> Result<Duration> {
    if (1.0..=3_153_600_000.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let message = format!("`max_age` must lie in 1..=3153600000, not {seconds}");
    Err(PyValueError::new_err(message).into())
}

/// Returns the path of a request cache's folder, or its URL without what may be credentials.
#[pyfunction]
pub(crate) fn without_credentials(path: PathBuf) -> String {
    specds_core::memory::without_credentials(&path).to_string_lossy().into_owned()
}

/// A memory that no engine fills.
enum NoRequests {}

impl Unstored for NoRequests {
    fn store(&mut self) {}

    fn is_due(&mut self) -> bool {
        false
    }
}

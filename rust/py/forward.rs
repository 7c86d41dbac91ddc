//! `specds._core`: models of GGUF files on a CPU.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use bytemuck::cast_slice;
use numpy::{PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use specds_forward::gguf::{self, BlockType, Bytes, Gguf, Tensor, Value};
use specds_forward::model::{
    self, CacheType, FeedForward, Input, LoadOptions, Mixer, Model, ModelSizes, PackedCache,
    PassOptions, Watch,
};
use specds_forward::{Activations, Error, Instructions};
use specds_index::base::forks::NoFork;

use crate::arrays::{Made, Matrix, integers, shaped};
use crate::error::{Failure, Result, lock};

/// A GGUF file: its metadata, and the types and shapes of its tensors.
#[pyclass(frozen, module = "specds._core", name = "GgufFile")]
pub(crate) struct GgufFile(Arc<Gguf>);

#[pymethods]
impl GgufFile {
    /// Opens a file, or all parts of a split file; tensors are read where they are used. Raises FormatError where it
    /// is not whole.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> Result<Self> {
        Ok(Self(Arc::new(py.detach(|| Gguf::open(path))?)))
    }

    /// Creates an in-memory GGUF file from metadata and arrays of float32 or bfloat16 (as uint16), `(rows, columns)`
    /// or `(columns,)`. Arrays stay where they are: later changes are seen. Raises ValueError where one is not contiguous. `name` stands for the path in errors.
    #[staticmethod]
    fn of_arrays(
        name: &str,
        fields: BTreeMap<String, Field>,
        arrays: BTreeMap<String, ArrayWeights<'_>>,
    ) -> Result<Self> {
        let fields = fields.into_iter().map(|(key, field)| (key, field.into())).collect();
        let tensors = arrays.into_iter().map(|(key, array)| Ok((key, array.tensor()?)));
        let tensors = tensors.collect::<Result<_>>()?;
        Ok(Self(Arc::new(Gguf::of_arrays(name, fields, tensors))))
    }

    /// The names of all fields.
    fn keys(&self) -> Vec<&str> {
        self.0.metadata.keys().map(String::as_str).collect()
    }

    fn __contains__(&self, key: &str) -> bool {
        self.0.metadata.contains_key(key)
    }

    /// Returns the value of a field; each call makes a new list.
    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> Result<Bound<'py, PyAny>> {
        let value = self.0.metadata.get(key);
        Ok(of_value(py, value.ok_or_else(|| PyKeyError::new_err(key.to_owned()))?)?)
    }

    /// The names of all tensors.
    fn tensors(&self) -> Vec<&str> {
        self.0.tensor_names().collect()
    }

    /// The number of all weights.
    #[getter]
    fn num_weights(&self) -> u64 {
        self.0.num_weights()
    }

    /// The names of all tensors with their types and bytes, which are 0 for an unknown type.
    fn tensor_sizes(&self) -> Vec<(&str, String, u64)> {
        self.0.tensor_sizes()
    }

    /// Returns the instructions of a model, the bytes of its packed weights, and for each of these numbers of tokens
    /// the bytes of their keys, values and recurrent states. Reads the header alone. Raises as `ForwardModel` does,
    /// but for memory.
    #[pyo3(signature = (num_tokens, cache_type = "float32"))]
    fn model_sizes(
        &self,
        py: Python<'_>,
        num_tokens: Vec<usize>,
        cache_type: &str,
    ) -> Result<(&'static str, usize, Vec<usize>)> {
        let with = Instructions::named("auto")
            .ok_or_else(|| Error::invalid("instructions", "are missing"))?;
        let file = Arc::clone(&self.0);
        let sizes = py.detach(|| ModelSizes::read(file, with))?;
        let kind = cache_type_named(cache_type)?;
        let caches = num_tokens.into_iter().map(|number| sizes.cache_bytes(number, kind));
        Ok((with.name(), sizes.packed_bytes, caches.collect()))
    }

    /// A tensor as float32, `(rows, columns)`. Raises KeyError where there is none of this name.
    fn tensor(&self, py: Python<'_>, name: &str) -> Result<Matrix<f32>> {
        let Some(tensor) = self.0.tensor(name)? else {
            return Err(PyKeyError::new_err(name.to_owned()).into());
        };
        shaped([tensor.rows, tensor.columns], py.detach(|| tensor.numbers()))
    }
}

fn of_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Bool(value) => value.into_bound_py_any(py),
        Value::Int(value) => value.into_bound_py_any(py),
        Value::Uint(value) => value.into_bound_py_any(py),
        Value::Float(value) => value.into_bound_py_any(py),
        Value::Text(value) => value.into_bound_py_any(py),
        Value::List(values) => {
            let values = values.iter().map(|value| of_value(py, value));
            Ok(PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any())
        }
    }
}

/// Returns the merges of a SentencePiece vocabulary in their order, int64 `(num_merges, 2)`.
///
/// `scores` has one entry for each token: None for a token that is not merged. Raises ValueError where pairs are too
/// many for the memory that tokens take.
#[pyfunction]
pub(crate) fn merges_of(
    py: Python<'_>,
    tokens: Vec<String>,
    scores: Vec<Option<f64>>,
) -> Result<Matrix> {
    let proceed = || Python::attach(|py| -> Result<()> { Ok(py.check_signals()?) });
    let found = py.detach(|| gguf::merges(&tokens, &scores, proceed))?;
    shaped((found.len(), 2), found.into_iter().flatten().map(i64::from).collect())
}

/// Measures the bytes a second that threads read from memory together, in a fraction of a second.
#[pyfunction]
#[pyo3(signature = (num_threads = 1))]
pub(crate) fn memory_bandwidth(py: Python<'_>, num_threads: usize) -> Result<f64> {
    Ok(py.detach(|| specds_forward::memory_bandwidth(num_threads))?)
}

/// A model of a GGUF file, its weights packed for this processor.
#[pyclass(frozen, module = "specds._core")]
pub(crate) struct ForwardModel(Model);

#[pymethods]
impl ForwardModel {
    /// Packs the weights of a file by threads.
    ///
    /// `instructions` are `auto`, `avx512`, `avxvnni`, `avx2`, `neon` or `portable`.
    ///
    /// `progress` is called from time to time with the bytes that are packed and those of all weights. An exception
    /// of it, or Ctrl-C, ends the loading.
    ///
    /// `cache` is a folder and the most bytes of its files. The packed weights of a file are kept there, and are
    /// mapped by the next load. If the folder cannot hold them, they are in memory.
    #[new]
    #[pyo3(signature = (file, *, instructions = "auto", num_threads = 1, progress = None, cache = None))]
    fn new(
        py: Python<'_>,
        file: &GgufFile,
        instructions: &str,
        num_threads: usize,
        progress: Option<Py<PyAny>>,
        cache: Option<(PathBuf, u64)>,
    ) -> Result<Self> {
        let instructions = Instructions::named(instructions).ok_or_else(|| {
            let reason = format!("are {instructions:?}, which this processor does not have");
            Error::invalid("instructions", reason)
        })?;
        let file = Arc::clone(&file.0);
        let load = |watch: Option<&Watch>| {
            let cache = cache.as_ref();
            let cache = cache.map(|&(ref folder, max_bytes)| PackedCache { folder, max_bytes });
            Model::load(file, instructions, LoadOptions { num_threads, watch, cache })
        };
        let poll = |py: Python<'_>, watch: &Watch| {
            py.check_signals()?;
            let report = (watch.num_done(), watch.num_expected());
            progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, report).map(drop))
        };
        Ok(Self(py.detach(|| watched(load, poll))??))
    }

    /// Shapes of the model by transformers' names, and `num_weights`.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let config = &self.0.config;
        let dict = PyDict::new(py);
        dict.set_item("num_hidden_layers", config.layers.len())?;
        dict.set_item("hidden_size", config.hidden_size)?;
        if let Some(layer) = config.layers.first() {
            let size = match &layer.feed_forward {
                FeedForward::Dense(dense) | FeedForward::DenseAndExperts(dense, _) => dense.size,
                FeedForward::Experts(experts) => experts.expert.size,
            };
            dict.set_item("intermediate_size", size)?;
        }
        if let Some(attention) = config.attention() {
            dict.set_item("num_attention_heads", attention.num_heads)?;
            dict.set_item("num_key_value_heads", attention.num_kv_heads)?;
            dict.set_item("head_dim", attention.head_size)?;
        }
        let types = config.layers.iter().map(|layer| match &layer.mixer {
            Mixer::Attention(attention) if attention.has_window() => "sliding_attention",
            Mixer::Attention(_) => "full_attention",
            Mixer::ShortConvolution(_) => "conv",
            Mixer::GatedDelta(_) => "linear_attention",
        });
        dict.set_item("layer_types", types.collect::<Vec<_>>())?;
        dict.set_item("max_position_embeddings", config.context_length)?;
        dict.set_item("vocab_size", config.vocab_size)?;
        dict.set_item("num_weights", self.0.file.num_weights())?;
        Ok(dict)
    }

    /// The instructions that passes use: `avx512`, `avxvnni`, `avx2`, `neon` or `portable`.
    #[getter]
    fn instructions(&self) -> &'static str {
        self.0.isa.name()
    }

    /// The bytes of the packed weights.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.0.num_bytes
    }

    /// Longer texts have other rotations, from their first token on; `None` if all texts have the same ones.
    #[getter]
    fn short_context(&self) -> Option<usize> {
        self.0.config.short_context
    }

    /// True if passes may be over trees; otherwise they are over chains, because the model has recurrent states.
    #[getter]
    fn takes_trees(&self) -> bool {
        !self.0.config.is_recurrent()
    }

    /// True if the packed weights are those of a file of the cache.
    #[getter]
    fn is_cached(&self) -> bool {
        self.0.is_cached
    }

    /// Measures the seconds of a pass for each number of tokens in `sizes`, at most 256, without a context.
    ///
    /// Large models are timed on some layers and the head.
    #[pyo3(signature = (sizes, *, activations = "float32", num_threads = 1))]
    fn pass_times(
        &self,
        py: Python<'_>,
        sizes: Vec<usize>,
        activations: &str,
        num_threads: usize,
    ) -> Result<Vec<f64>> {
        if sizes.len() > MAX_TIMED || sizes.iter().any(|size| !(1..=MAX_TIMED).contains(size)) {
            let reason = format!("must be at most {MAX_TIMED} numbers from 1 to {MAX_TIMED}");
            return Err(Error::invalid("sizes", reason).into());
        }
        let activations = activations_named(activations)?;
        let options = PassOptions { activations, num_threads, ..PassOptions::default() };
        Ok(py.detach(|| self.0.pass_times(&sizes, options))?)
    }

    /// The bytes of the keys, values and recurrent states of a row of this many tokens; the latter alone for 0.
    #[pyo3(signature = (num_tokens, cache_type = "float32"))]
    fn cache_bytes(&self, num_tokens: usize, cache_type: &str) -> Result<usize> {
        Ok(self.0.new_cache(0, cache_type_named(cache_type)?).row_bytes(num_tokens))
    }

    /// Computes the logits of the tokens of some rows, `(sum of num_logits, vocab_size)`.
    ///
    /// `inputs` are tuples of a row of the cache, its tokens, their parents (or None where each follows the one
    /// before) and the number of tokens, the last ones, whose logits are computed. `commit` of the cache keeps
    /// what was computed for a path of these tokens.
    ///
    /// A pass over 32 tokens or more obeys signals within a layer, and calls `poll` several times a second with the
    /// fraction of it that is done. An exception of either ends it, and the cache keeps its committed tokens.
    #[pyo3(signature = (cache, inputs, *, activations = "float32", num_threads = 1, poll = None))]
    fn forward<'py>(
        &self,
        py: Python<'py>,
        cache: &ForwardCache,
        inputs: Vec<PassInput<'py>>,
        activations: &str,
        num_threads: usize,
        poll: Option<Py<PyAny>>,
    ) -> Result<Matrix<f32>> {
        let activations = activations_named(activations)?;
        let read = |(row, tokens, parents, num_logits): &PassInput<'py>| {
            let parents = parents.as_ref().map(|parents| integers::<i32>(parents, "parents"));
            Ok((*row, integers::<u32>(tokens, "tokens")?, parents.transpose()?, *num_logits))
        };
        let inputs: Vec<_> = inputs.iter().map(read).collect::<PyResult<_>>()?;
        let inputs: Vec<_> = inputs
            .iter()
            .map(|(row, tokens, parents, num_logits)| {
                let (row, num_logits, parents) = (*row, *num_logits, parents.as_deref());
                Input { row, tokens, parents, num_logits }
            })
            .collect();
        let pass = |watch: Option<&Watch>| {
            let options = PassOptions { activations, num_threads, watch, ..PassOptions::default() };
            Ok::<_, Failure>(self.0.forward(&mut *cache.lock()?, &inputs, options)?)
        };
        let num_tokens = inputs.iter().map(|input| input.tokens.len()).sum::<usize>()
            + cache.locked(py, |cache| self.0.num_repeated(cache, &inputs))??;
        let total = (num_tokens * self.0.config.layers.len()) as f64;
        let logits = if num_tokens < WATCHED {
            py.detach(|| pass(None))
        } else {
            let poll = |py: Python<'_>, watch: &Watch| {
                py.check_signals()?;
                let done = watch.num_done() as f64 / total;
                poll.as_ref().map_or(Ok(()), |poll| poll.call1(py, (done,)).map(drop))
            };
            py.detach(|| watched(pass, poll))?
        }?;
        let vocab_size = self.0.config.vocab_size.max(1);
        shaped([logits.len() / vocab_size, vocab_size], logits)
    }
}

fn activations_named(name: &str) -> Result<Activations> {
    match name {
        "float32" => Ok(Activations::Float32),
        "int8" => Ok(Activations::Int8),
        other => {
            let reason = format!("must be `float32` or `int8`, not {other:?}");
            Err(Error::invalid("activations", reason).into())
        }
    }
}

fn cache_type_named(name: &str) -> Result<CacheType> {
    match name {
        "float32" => Ok(CacheType::Float32),
        "float16" => Ok(CacheType::Float16),
        other => {
            let reason = format!("must be `float32` or `float16`, not {other:?}");
            Err(Error::invalid("cache_type", reason).into())
        }
    }
}

/// Runs a pass or a load on a thread of its own, so that this one can handle signals, which no other thread can.
fn watched<T: Send>(
    work: impl FnOnce(Option<&Watch>) -> T + Send,
    poll: impl Fn(Python<'_>, &Watch) -> PyResult<()>,
) -> PyResult<T> {
    let watch = Watch::default();
    thread::scope(|scope| {
        let (done, waiting) = mpsc::channel::<()>();
        let watch = &watch;
        let working = scope.spawn(move || {
            let _done = done; // closes the channel, whatever ends the work
            work(Some(watch))
        });
        let mut polled = Ok(());
        while waiting.recv_timeout(POLLED) == Err(RecvTimeoutError::Timeout) {
            polled = polled.and_then(|()| Python::attach(|py| poll(py, watch)));
            if polled.is_err() {
                watch.stop();
            }
        }
        let made = working.join().unwrap_or_else(|panic| resume_unwind(panic));
        polled.map(|()| made)
    })
}

/// A field of a model that no file describes.
#[derive(FromPyObject)]
pub(crate) enum Field {
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<bool>),
}

impl From<Field> for Value {
    fn from(field: Field) -> Self {
        match field {
            Field::Int(number) => Self::Int(number),
            Field::Float(number) => Self::Float(number),
            Field::Text(text) => Self::Text(text),
            Field::List(all) => Self::List(all.into_iter().map(Self::Bool).collect()),
        }
    }
}

/// An array of weights.
#[derive(FromPyObject)]
pub(crate) enum ArrayWeights<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    BF16(PyReadonlyArrayDyn<'py, u16>),
}

/// The memory of an array, which lives as long as this.
struct ArrayBytes {
    _array: Py<PyAny>,
    start: *const u8,
    length: usize,
}

#[expect(unsafe_code, reason = "weights of other libraries stay where they are")]
// SAFETY: the memory is only read, and `_array` keeps it. It holds numbers, which are valid whatever they are, also
// while a trainer writes others.
unsafe impl Send for ArrayBytes {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl Sync for ArrayBytes {}

impl AsRef<[u8]> for ArrayBytes {
    #[expect(unsafe_code, reason = "as above")]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: they were the bytes of a slice of the array.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl ArrayWeights<'_> {
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let is_plain = match self {
            Self::F32(of) => of.is_c_contiguous(),
            Self::BF16(of) => of.is_c_contiguous(),
        };
        if !is_plain {
            return Err(Error::invalid("arrays", "must be contiguous, row after row").into());
        }
        let (array, kind, bytes, shape): (&Bound<'_, PyAny>, _, &[u8], _) = match self {
            Self::F32(of) => (of, BlockType::F32, cast_slice(of.as_slice()?), of.shape()),
            Self::BF16(of) => (of, BlockType::BF16, cast_slice(of.as_slice()?), of.shape()),
        };
        let columns = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().rev().skip(1).product();
        let memory = ArrayBytes {
            _array: array.clone().unbind(),
            start: bytes.as_ptr(),
            length: bytes.len(),
        };
        Ok(Tensor { kind, rows, columns, bytes: Bytes::new(memory) })
    }
}

/// A row, its tokens, their parents, and the number of the last ones whose logits are computed.
type PassInput<'py> = (usize, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, usize);

/// Passes over fewer tokens are so short that a thread for them is not worth its start.
const WATCHED: usize = 32;
const POLLED: Duration = Duration::from_millis(50);

/// The most passes that are timed at once, and the most tokens of one.
const MAX_TIMED: usize = 256;

/// The most rows of a cache: each takes memory before it has a token.
const MAX_ROWS: usize = 1 << 16;

/// Keys and values of some sequences, for one model.
///
/// One pass at a time runs in a cache. In a forked process, a cache in which a pass of the parent ran at that time
/// raises a RuntimeError.
#[pyclass(frozen, module = "specds._core")]
pub(crate) struct ForwardCache {
    cache: Mutex<model::Cache>,
    /// The process that locked the cache last.
    process: Mutex<u32>,
}

impl ForwardCache {
    /// Locks the cache. A thread that held the lock when the process was forked does not exist in the child, so that
    /// the lock stays locked there. It waits for forks and for passes, so never call it with the interpreter.
    fn lock(&self) -> Result<MutexGuard<'_, model::Cache>> {
        loop {
            {
                let _held = NoFork::begin(); // so that `process` is never locked in a child
                let mut process = lock(&self.process);
                match self.cache.try_lock() {
                    Err(TryLockError::WouldBlock) if *process == process::id() => {}
                    Err(TryLockError::WouldBlock) => {
                        return Err(PyRuntimeError::new_err(IN_USE).into());
                    }
                    Ok(cache) => {
                        *process = process::id();
                        return Ok(cache);
                    }
                    Err(TryLockError::Poisoned(cache)) => {
                        *process = process::id();
                        return Ok(cache.into_inner());
                    }
                }
            }
            thread::sleep(LOCK_POLL);
        }
    }

    /// Calls `work` with the locked cache, and without the interpreter.
    fn locked<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut model::Cache) -> T + Send,
    ) -> Result<T> {
        py.detach(|| Ok(work(&mut *self.lock()?)))
    }
}

const LOCK_POLL: Duration = Duration::from_micros(50);

const IN_USE: &str =
    "a pass ran in this cache when the process was forked: make a new `ForwardCache` here";

#[pymethods]
impl ForwardCache {
    /// Makes empty rows, whose keys and values are `float32` or `float16`.
    #[new]
    #[pyo3(signature = (model, num_rows = 1, cache_type = "float32"))]
    fn new(model: &ForwardModel, num_rows: usize, cache_type: &str) -> Result<Self> {
        if num_rows > MAX_ROWS {
            let reason = format!("must be at most {MAX_ROWS}");
            return Err(Error::invalid("num_rows", reason).into());
        }
        let cache = Mutex::new(model.0.new_cache(num_rows, cache_type_named(cache_type)?));
        Ok(Self { cache, process: Mutex::new(0) })
    }

    /// The number of committed tokens of a row.
    fn length(&self, py: Python<'_>, row: usize) -> Result<usize> {
        let length = self.locked(py, |cache| cache.length(row))?;
        Ok(length.ok_or_else(|| Error::invalid("row", "must be a row of the cache"))?)
    }

    /// Commits a path of tokens of the row's last pass, by their places in it.
    fn commit(&self, py: Python<'_>, row: usize, path: &Bound<'_, PyAny>) -> Result<()> {
        let path: Vec<u32> = integers(path, "path")?;
        let path: Vec<usize> = path.into_iter().map(|place| place as usize).collect();
        Ok(self.locked(py, |cache| cache.commit(row, &path))??)
    }

    /// Forgets all tokens of a row from this position on. A row with recurrent states can forget all tokens, or
    /// those after its mark; otherwise a ValueError is raised.
    fn truncate(&self, py: Python<'_>, row: usize, length: usize) -> Result<()> {
        Ok(self.locked(py, |cache| cache.truncate(row, length))??)
    }

    /// Returns the most tokens of a row, at most `length`, that `truncate` can keep.
    fn kept(&self, py: Python<'_>, row: usize, length: usize) -> Result<usize> {
        Ok(self.locked(py, |cache| cache.kept(row, length))??)
    }

    /// Keeps a copy of the recurrent states of a row, if it has some, so that `truncate` can return to this position.
    /// It replaces the one before.
    fn mark(&self, py: Python<'_>, row: usize) -> Result<()> {
        Ok(self.locked(py, |cache| cache.mark(row))??)
    }

    /// Gives a row the states of another one.
    fn copy(&self, py: Python<'_>, from_row: usize, to_row: usize) -> Result<()> {
        Ok(self.locked(py, |cache| cache.copy(from_row, to_row))??)
    }

    /// Adds committed tokens to a row: float32 `(num_layers, 2, num_tokens, num_heads, head_size)`, in a layer their
    /// keys and then their values.
    fn append(
        &self,
        py: Python<'_>,
        row: usize,
        states: PyReadonlyArrayDyn<'_, f32>,
    ) -> Result<()> {
        if !states.is_c_contiguous() {
            return Err(Error::invalid("states", "must be contiguous").into());
        }
        let states = states.as_slice()?;
        Ok(self.locked(py, |cache| cache.append(row, states))??)
    }

    /// Returns the states of a row in one dimension, as `append` takes them.
    fn states(&self, py: Python<'_>, row: usize) -> Result<Made<f32>> {
        Ok(self.locked(py, |cache| cache.states(row))??.into())
    }
}

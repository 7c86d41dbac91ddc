//! `specds.EngineDrafter`.

use std::sync::Mutex;

use numpy::ndarray::Ix3;
use numpy::{AllowTypeChange, PyArray1, PyArrayLike2, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specds_core::draft::{self, DraftLimits};
use specds_core::engine::{self, Context, EngineConfig, EngineInfo, PackedChains, PackedTrees};

use crate::arrays::{self, Made, Matrix, from_zero, integers, rows_of_integers, shaped};
use crate::error::{Result, detached, lock};
use crate::options;
use crate::request_options;
use crate::storage::located;
use crate::token_tree::TokenTree;

/// Drafts for the batches of a serving engine: `sync`, then `draft_chains` or `draft_trees`.
///
/// An engine passes the context and the name of each request. Requests may move to other rows, be
/// preempted, return, and end without notice. A row that cannot be served gets no draft. Threads may share
/// a drafter.
///
/// Args:
///     datastore: A path, or a name on the hub.
///     memory_scope: The earlier requests that a request drafts from: ``none``; ``tenant``, those of its
///         tenant; ``shared``, those of its tenant too, and all requests without a tenant belong to one. A
///         request that drafts from no earlier one leaves nothing behind.
///     memory_bytes: Size limit of the memory in bytes.
///     memory_tenant_bytes: Size limit of one tenant in the memory, in bytes; by default none.
///     memory_max_age: Seconds after which earlier requests leave the memory and the snapshot; by default none.
///     snapshot: A folder or URL that `FusedDrafter.save` or a server with `sync_interval` wrote, to start from.
///     sync_interval: Seconds between two exchanges of the memory with the snapshot, which take in what
///         other processes wrote. A datastore that was replaced is then opened again. The drafter also
///         exchanges when the engine has become idle.
///     effort: ``auto`` is low until the time of a step is known; then as in `FusedConfig`.
///     recycle_predictions: Whether the model's predictions are used, where the engine passes them on.
///     min_prob: Minimum probability of a path of a chain; 0.1 by default if the cost of a step is
///         ignored, else 0.
///     max_context: Rows with more tokens get no drafts.
///     num_threads: Number of threads that draft for the rows of a batch.
///     max_row_time: Seconds that the grammar of a row may take per step, on average over ten steps, before
///         an engine's adapter drafts no more for the request.
///     step_cost: Points ``[tokens, seconds]`` of the engine's step, ``measured`` or ``ignored``. By the
///         cost, drafts are cut to the tokens that improve throughput in a batch of that size. By
///         default, ``measured`` if `times_steps`, else ``ignored``.
///     vocab_size: The vocabulary size of the engine's model: no other tokens are drafted.
///     tokenizer: The fingerprint of the engine's tokenizer; empty if it is not known.
///     times_steps: Whether the engine calls `observe_step_time` after each step.
///     token_cost: The usual cost of a further token, over a step of one token, from which measured
///         costs start; None if it is not known.
///
/// Raises:
///     ValueError: An option is unknown or unusable, or the datastore is of another tokenizer.
///     FormatError: The datastore cannot be read.
#[pyclass(frozen, module = "specds")]
pub(crate) struct EngineDrafter(Mutex<engine::EngineDrafter>);

impl Drop for EngineDrafter {
    /// Lets the thread of a shared memory use the interpreter meanwhile.
    fn drop(&mut self) {
        Python::try_attach(|py| py.detach(|| lock(&self.0).close()));
    }
}

type Chains = (Matrix, Made<i64>, Matrix<f32>);
type Trees = (Matrix, Made<i64>, Made<bool, Ix3>);

#[pymethods]
impl EngineDrafter {
    #[new]
    #[pyo3(signature = (*, vocab_size = None, tokenizer = "", times_steps = false, token_cost = None, **options))]
    fn new(
        py: Python<'_>,
        vocab_size: Option<u32>,
        tokenizer: &str,
        times_steps: bool,
        token_cost: Option<f64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Self> {
        let token_cost = token_cost.map(|cost| from_zero(cost, "token_cost")).transpose()?;
        let tokenizer = tokenizer.to_owned();
        let engine = EngineInfo { vocab_size, tokenizer, times_steps, token_cost, step_cost: None };
        let config = located_config(py, options)?;
        let open = || engine::EngineDrafter::open(config, &engine);
        Ok(Self(Mutex::new(py.detach(open)?)))
    }

    /// Checks the options of an engine before its model is loaded. The snapshot is neither read nor written.
    ///
    /// Raises:
    ///     ValueError: As for a drafter of these options.
    ///     FormatError: The datastore cannot be read.
    #[staticmethod]
    #[pyo3(signature = (*, vocab_size = None, tokenizer = "", **options))]
    fn check(
        py: Python<'_>,
        vocab_size: Option<u32>,
        tokenizer: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<()> {
        let tokenizer = tokenizer.to_owned();
        let engine = EngineInfo { vocab_size, tokenizer, ..EngineInfo::default() };
        let config = located_config(py, options)?;
        Ok(py.detach(|| engine::EngineDrafter::check(config, &engine))?)
    }

    /// Passes the contexts of all rows, and observes the new tokens of each.
    ///
    /// A row continues the request of its name, if that was in the batch in one of the last 64 syncs and
    /// its text is a prefix of the context. Otherwise the name is that of a new request and the earlier
    /// one has ended. Where the context lacks tokens of the last sync, or has other tokens for them, the
    /// earlier one was rolled back and is not stored. The text of a request that left the batch is stored
    /// in the memory, if there is one, when another begins or the memory is shared, at the latest when it
    /// ends.
    ///
    /// Args:
    ///     contexts: The tokens of each row, or None for a row that gets no draft in this step. Arrays of
    ///         type uint32 are not copied.
    ///     names: The engine's name of each row's request.
    ///     starts: Number of tokens of each row that precede its context, if the context is not the whole text.
    ///     request_options: Options of each request, read when it begins: its `tenant`, the name of its
    ///         `group`, a `predicted_output`, whose first `max_context` tokens are used, at most
    ///         262,144, and whether it is `penalized`: the engine changes the scores of tokens by what was written,
    ///         or forbids some. One that is unknown or of a wrong type is ignored and counted in `stats`.
    ///     num_verified: Number of tokens of each row's last draft that the engine verified, if it cut drafts.
    ///
    /// Raises:
    ///     ValueError: `names` has another length than `contexts`.
    #[pyo3(signature = (contexts, names, *, starts = None, request_options = None, num_verified = None))]
    fn sync(
        &self,
        py: Python<'_>,
        contexts: Vec<Option<Bound<'_, PyAny>>>,
        names: Vec<String>,
        starts: Option<Vec<usize>>,
        request_options: Option<Vec<Option<Bound<'_, PyDict>>>>,
        num_verified: Option<Vec<usize>>,
    ) -> PyResult<()> {
        if names.len() != contexts.len() {
            let (names, rows) = (names.len(), contexts.len());
            let message =
                format!("`names` must have one name for each of {rows} rows, not {names}");
            return Err(PyValueError::new_err(message));
        }
        let tokens: Vec<_> =
            contexts.iter().map(|context| context.as_ref().map(ContextTokens::read)).collect();
        let (starts, num_verified) = (starts.unwrap_or_default(), num_verified.unwrap_or_default());
        let options = request_options.unwrap_or_default().into_iter();
        let most = lock(&self.0).max_predicted_output();
        let options: Vec<_> = options
            .map(|given| {
                given.map(|given| request_options::options(&given, most)).unwrap_or_default()
            })
            .collect();
        let none = engine::RequestOptions::default();
        let contexts = tokens.iter().zip(&names).enumerate().map(|(row, (tokens, name))| {
            let options = options.get(row).unwrap_or(&none);
            Some(Context {
                tokens: tokens.as_ref()?.as_slice(),
                start: starts.get(row).copied().unwrap_or(0),
                name,
                num_verified: num_verified.get(row).copied(),
                ..options.context()?
            })
        });
        let contexts: Vec<_> = contexts.collect();
        detached(py, || lock(&self.0).sync(&contexts));
        Ok(())
    }

    /// Passes an external proposal for each row of the last sync, such as the chain of the engine's draft model.
    ///
    /// The next draft ranks these tokens with those of all other sources. A row without a session is skipped.
    ///
    /// Args:
    ///     token_ids: Any integer dtype, shape `(num_rows, k)`; a chain ends before its first -1.
    ///     probs: float32, shape `(num_rows, k)`, in [0, 1]: the probability of each token given the tokens
    ///         before it.
    ///
    /// Raises:
    ///     ValueError: The shapes differ, or a probability is outside [0, 1].
    fn suggest(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        probs: PyArrayLike2<'_, f32, AllowTypeChange>,
    ) -> Result<()> {
        let (k, tokens) = rows_of_integers::<i64>(token_ids, "token_ids")?;
        let (probs, num_rows) = (probs.as_array(), tokens.len() / k.max(1));
        if probs.dim() != (num_rows, k) {
            let found = probs.dim();
            let message = format!("`probs` must have shape {:?}, not {found:?}", (num_rows, k));
            return Err(PyValueError::new_err(message).into());
        }
        let rows = tokens.chunks_exact(k.max(1)).zip(probs.rows());
        let chains = rows.map(|(tokens, probs)| {
            let known = tokens.iter().map_while(|&token| u32::try_from(token).ok());
            let tokens: Vec<_> = known.collect();
            let parents = (-1..).take(tokens.len()).collect();
            let probs = probs.iter().copied().take(tokens.len()).collect();
            draft::TokenTree::new(tokens, parents, probs)
        });
        let chains = chains.collect::<specds_index::Result<Vec<_>>>()?;
        detached(py, || lock(&self.0).suggest(chains));
        Ok(())
    }

    /// Drafts a tree for a row of the last sync, whatever a step costs, for a caller that removes nodes of it.
    ///
    /// Args:
    ///     row: The index of the row.
    ///     max_nodes: Maximum number of nodes.
    ///     suggestion: An external proposal, as `DraftSession.suggest` takes.
    ///
    /// Returns:
    ///     The tree. It is empty for a row that has no session, or whose drafts would not pay off.
    #[pyo3(signature = (row, max_nodes, suggestion = None))]
    fn candidates(
        &self,
        py: Python<'_>,
        row: usize,
        max_nodes: usize,
        suggestion: Option<&TokenTree>,
    ) -> TokenTree {
        let suggestion = suggestion.map(|tree| tree.0.clone());
        TokenTree(detached(py, || lock(&self.0).candidates(row, max_nodes, suggestion)))
    }

    /// Sets the draft of a row, of which the next `draft_chains` or `draft_trees` returns what its limits and the
    /// cost of a step leave.
    fn choose(&self, row: usize, tree: &TokenTree) {
        lock(&self.0).choose(row, tree.0.clone());
    }

    /// Drafts a chain for each row of the last sync.
    ///
    /// Args:
    ///     width: Length of the returned rows, at most 4096.
    ///     max_nodes: Maximum number of tokens, for all rows or for each; `width` by default.
    ///     min_prob: Minimum probability of a path, for all rows or for each; that of the options by default.
    ///
    /// Returns:
    ///     Tokens, int64 `(num_rows, width)`, padded with -1; the number of tokens of each row, int64
    ///     `(num_rows,)`; the probability of each path, float32 `(num_rows, width)`, padded with 0.
    ///
    /// Raises:
    ///     ValueError: `width` is above 4096, or `min_prob` is below 0, infinite or not a number.
    #[pyo3(signature = (width, *, max_nodes = None, min_prob = None))]
    fn draft_chains(
        &self,
        py: Python<'_>,
        width: usize,
        max_nodes: Option<PerRow<usize>>,
        min_prob: Option<PerRow<f32>>,
    ) -> Result<Chains> {
        let width = arrays::width(width, "width")?;
        min_prob.as_ref().map_or(Ok(()), PerRow::check)?;
        let packed = detached(py, || {
            let mut drafter = lock(&self.0);
            let least = drafter.min_prob();
            let limits = (0..drafter.num_rows()).map(|row| DraftLimits {
                min_prob: of_row(min_prob.as_ref(), row, least),
                is_chain: true,
                ..DraftLimits::nodes(of_row(max_nodes.as_ref(), row, width).min(width))
            });
            PackedChains::new(&drafter.draft(&limits.collect::<Vec<_>>()).trees(), width)
        });
        let rows = packed.lengths.len();
        let token_ids = shaped((rows, width), packed.token_ids)?;
        let probs = shaped((rows, width), packed.probs)?;
        Ok((token_ids, packed.lengths.into(), probs))
    }

    /// Drafts a tree for each row of the last sync, padded to exactly `width` nodes.
    ///
    /// Node 0 is the last token of the context. Padding nodes are children of it with tokens that were not drafted.
    ///
    /// Args:
    ///     width: Nodes of a row, node 0 included, at most 4096.
    ///     max_nodes: Maximum number of drafted nodes, for all rows or for each; ``width - 1`` by default.
    ///     max_depth: Maximum depth, for all rows or for each; a child of the context has depth 1.
    ///     min_prob: Minimum probability of a node, for all rows or for each; 0 by default.
    ///
    /// Returns:
    ///     Tokens, int64 `(num_rows, width)`; the number of drafted nodes of each row, int64 `(num_rows,)`;
    ///     the mask, bool `(num_rows, width, width)`, which is true at [i, j] if node j is node i or an
    ///     ancestor of it.
    ///
    /// Raises:
    ///     ValueError: `width` is above 4096, or `min_prob` is below 0, infinite or not a number.
    #[pyo3(signature = (width, *, max_nodes = None, max_depth = None, min_prob = None))]
    fn draft_trees(
        &self,
        py: Python<'_>,
        width: usize,
        max_nodes: Option<PerRow<usize>>,
        max_depth: Option<PerRow<usize>>,
        min_prob: Option<PerRow<f32>>,
    ) -> Result<Trees> {
        let most = arrays::width(width, "width")?.saturating_sub(1);
        min_prob.as_ref().map_or(Ok(()), PerRow::check)?;
        let packed = detached(py, || {
            let mut drafter = lock(&self.0);
            let limits = (0..drafter.num_rows()).map(|row| DraftLimits {
                max_depth: of_row(max_depth.as_ref(), row, usize::MAX),
                min_prob: of_row(min_prob.as_ref(), row, 0.0),
                ..DraftLimits::nodes(of_row(max_nodes.as_ref(), row, most).min(most))
            });
            let last_tokens = drafter.last_tokens();
            PackedTrees::new(
                &drafter.draft(&limits.collect::<Vec<_>>()).trees(),
                &last_tokens,
                width,
            )
        });
        let rows = packed.lengths.len();
        let token_ids = shaped((rows, width), packed.token_ids)?;
        let mask = shaped((rows, width, width), packed.mask)?;
        Ok((token_ids, packed.lengths.into(), mask))
    }

    /// Takes the seconds of the step that verified the last drafts.
    fn observe_step_time(&self, seconds: f64) {
        lock(&self.0).observe_step_time(seconds);
    }

    /// Sets the seconds of passes of the model, measured before its first step, from which measured costs start.
    ///
    /// What the first step takes beyond its pass, any step does.
    ///
    /// Args:
    ///     passes: The number of tokens and the seconds of each pass; invalid ones, and fewer than two, are
    ///         ignored.
    fn set_passes(&self, passes: Vec<(usize, f64)>) {
        lock(&self.0).set_passes(&passes);
    }

    /// Returns to the initial weights and reliabilities, because another model accepts other tokens.
    ///
    /// Call it when the weights of the model have changed. The texts of earlier requests and the measured
    /// cost of steps stay.
    fn reset_acceptance(&self, py: Python<'_>) {
        detached(py, || lock(&self.0).reset_acceptance());
    }

    /// Sets the shapes of steps for which the engine has captured a graph, which measured costs follow.
    ///
    /// Args:
    ///     sizes: Numbers of tokens: a step is padded to the next one, and drafts make none larger than the largest.
    ///     draft_sizes: Numbers of drafted tokens to one of which all rows of a step are padded, up to 63; None if
    ///         rows may differ.
    #[pyo3(signature = (sizes, draft_sizes = None))]
    fn set_graph_sizes(&self, sizes: Vec<usize>, draft_sizes: Option<Vec<usize>>) {
        lock(&self.0).set_graph_sizes(sizes, draft_sizes.as_deref());
    }

    /// Seconds that the grammar of a row may take per step.
    #[getter]
    fn max_row_time(&self) -> f64 {
        lock(&self.0).config().max_row_time
    }

    /// Number of the model's likeliest tokens at each node that are used; 0 for none.
    #[getter]
    fn num_predictions(&self) -> usize {
        lock(&self.0).num_predictions()
    }

    /// Takes the model's predictions from the verification of the last drafts. Call it before `sync`.
    ///
    /// Args:
    ///     predictions: Token ids, any integer dtype, shape `(num_rows * num_nodes, k)`, likeliest first.
    ///     num_nodes: Number of nodes of each row, the root included.
    fn observe_predictions(
        &self,
        py: Python<'_>,
        predictions: &Bound<'_, PyAny>,
        num_nodes: usize,
    ) -> PyResult<()> {
        let (k, predictions) = rows_of_integers::<u32>(predictions, "predictions")?;
        detached(py, || lock(&self.0).observe_predictions(&predictions, num_nodes, k));
        Ok(())
    }

    /// Ends the requests of these names; their texts go into the memory.
    fn end(&self, py: Python<'_>, names: Vec<String>) {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        detached(py, || lock(&self.0).end(&names));
    }

    /// Ends all requests and shares the memory a last time; if that fails, `warnings` has the error.
    ///
    /// The drafter can still be used, but no longer shares its memory.
    fn close(&self, py: Python<'_>) {
        py.detach(|| lock(&self.0).close());
    }

    /// Ends all requests; their texts go into the memory.
    fn end_all(&self, py: Python<'_>) {
        detached(py, || lock(&self.0).end_all());
    }

    /// Messages about unusable parts of the configuration, the first refused per-request option and the last
    /// failure to share the memory.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        lock(&self.0).warnings()
    }

    fn __repr__(&self) -> String {
        let drafter = lock(&self.0);
        let about = |store: &specds_index::Datastore| {
            let (path, manifest) = (store.path().display(), store.manifest());
            format!("{path} (build {}, {} tokens)", manifest.build_id, manifest.num_tokens)
        };
        let datastore = drafter.datastore().map_or("no datastore".to_owned(), about);
        let config = serde_json::to_string(drafter.config()).unwrap_or_default();
        format!("EngineDrafter({datastore}, {config})")
    }

    /// Number of requests in the batch, and of absent ones that may return.
    fn __len__(&self) -> usize {
        lock(&self.0).num_requests()
    }

    /// Returns counters of all steps so far.
    ///
    /// Counters of drafts, drafted and accepted tokens have the names of `GenerationStats`. An engine may also
    /// report tokens that it accepted after the end of a request; these are counted.
    ///
    /// * `num_row_steps`: syncs of a row that continued a request.
    /// * `num_emitted_tokens`: tokens that were emitted after the first sync of each request.
    /// * `num_opened`: requests that began. `num_moved`: requests that moved to another row or returned.
    /// * `num_refused`: rows that could not be served. `num_refused_options`: refused per-request options.
    /// * `num_memory_bytes`: size of the memory. `memory_shared_at`: time when it was last shared, in seconds
    ///   since 1970; 0 for never. `num_memory_failures`: failures to share it or to use a new datastore.
    /// * `num_cut_tokens`: drafted tokens that the engine did not verify; no other counter includes them.
    /// * `draft_s`: seconds spent in `sync` and drafts.
    /// * `num_accepted_by_source`: accepted tokens by the name of their source.
    /// * `acceptance_histogram`: number of drafts by their length, then by their number of accepted tokens.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let counts = lock(&self.0).counts();
        options::to_dict(py, &counts)
    }
}

/// Reads the options of an engine; a datastore on the hub is downloaded.
fn located_config(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<EngineConfig> {
    let config: EngineConfig = options::read(options)?;
    let datastore = config.datastore.map(|path| located(py, path)).transpose()?;
    Ok(EngineConfig { datastore, ..config })
}

/// The tokens of a context, borrowed from a uint32 array or copied.
enum ContextTokens<'py> {
    Borrowed(PyReadonlyArray1<'py, u32>),
    Copied(Vec<u32>),
}

impl<'py> ContextTokens<'py> {
    /// Reads a context. An argument that does not hold tokens is read as an empty context, which is not served.
    fn read(context: &Bound<'py, PyAny>) -> Self {
        if let Ok(array) = context.cast::<PyArray1<u32>>()
            && let Ok(array) = array.try_readonly()
            && array.as_slice().is_ok()
        {
            return Self::Borrowed(array);
        }
        Self::Copied(integers(context, "contexts").unwrap_or_default())
    }

    fn as_slice(&self) -> &[u32] {
        match self {
            Self::Borrowed(array) => array.as_slice().unwrap_or_default(),
            Self::Copied(tokens) => tokens,
        }
    }
}

/// A value for all rows of a batch, or one for each.
#[derive(FromPyObject)]
enum PerRow<T> {
    All(T),
    Each(Vec<T>),
}

impl PerRow<f32> {
    /// Checks that the values are probabilities.
    fn check(&self) -> PyResult<()> {
        let values = match self {
            Self::All(value) => std::slice::from_ref(value),
            Self::Each(values) => values,
        };
        values.iter().try_for_each(|&value| from_zero(value, "min_prob").map(drop))
    }
}

fn of_row<T: Copy>(values: Option<&PerRow<T>>, row: usize, default: T) -> T {
    match values {
        Some(PerRow::All(value)) => *value,
        Some(PerRow::Each(values)) => values.get(row).copied().unwrap_or(default),
        None => default,
    }
}

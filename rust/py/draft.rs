//! `specds.DraftSession`: one request of any drafter of the core, one call a decoding step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specds::Result;
use specds::draft::{self, DraftLimits, Session};
use specds::papers::n_grammys::{NGrammysConfig, NGrammysSession, Strategy};
use specds::papers::prompt_lookup::{PromptLookupConfig, PromptLookupSession};
use specds::papers::rest::{RestConfig, RestSession};

use crate::arrays::{integers, rows_of_integers};
use crate::datastore::Datastore;
use crate::error::py_err;
use crate::model_tables::ModelTables;
use crate::tree::TokenTree;

/// One request that is drafted for.
#[pyclass(frozen, module = "specds")]
pub(crate) struct DraftSession(Mutex<Box<dyn Session>>);

impl DraftSession {
    pub(crate) fn new<S: Session + 'static>(session: Result<S>) -> PyResult<Self> {
        let session = session.map_err(py_err)?;
        Ok(Self(Mutex::new(Box::new(session))))
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Session>> {
        // A panic in a draft leaves no half-made state that the next one could trip over.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
#[expect(
    clippy::unused_self,
    reason = "they stand in for methods of Python's sessions"
)]
impl DraftSession {
    /// Appends tokens to the context: the prompt first, then what the model emitted.
    #[pyo3(signature = (token_ids, num_verified = None))]
    fn observe(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        num_verified: Option<usize>,
    ) -> PyResult<()> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        py.detach(|| self.lock().observe(&tokens, num_verified))
            .map_err(py_err)
    }

    /// Drafts at most `max_nodes` nodes that continue the context.
    #[pyo3(signature = (max_nodes, max_depth = None, min_gain = 0.0, may_grow_to = 0))]
    fn draft(
        &self,
        py: Python<'_>,
        max_nodes: usize,
        max_depth: Option<usize>,
        min_gain: f32,
        may_grow_to: usize,
    ) -> PyResult<TokenTree> {
        let limits = DraftLimits {
            max_nodes,
            min_gain,
            may_grow_to,
            max_depth: max_depth.unwrap_or(usize::MAX),
        };
        let draft = py.detach(|| self.lock().draft(limits));
        draft.map(TokenTree).map_err(py_err)
    }

    /// Drafts as if `token_ids` had been observed, and stays as it is.
    fn draft_after(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        max_nodes: usize,
    ) -> PyResult<TokenTree> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        let draft = py.detach(|| self.lock().draft_after(&tokens, max_nodes));
        draft.map(TokenTree).map_err(py_err)
    }

    /// Tells how long a plain step of the model takes, in seconds.
    fn set_step_time(&self, step_seconds: f64) {
        self.lock().set_step_time(step_seconds);
    }

    /// How many of the model's likeliest tokens at each node it wants to know.
    #[getter]
    fn num_predictions(&self) -> usize {
        self.lock().num_predictions()
    }

    /// Tells what the model itself predicted at the context and at each node of a tree.
    fn observe_predictions(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, TokenTree>,
        predictions: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (k, predictions) = rows_of_integers::<u32>(predictions, "predictions")?;
        let tree = &tree.get().0;
        py.detach(|| self.lock().observe_predictions(tree, &predictions, k))
            .map_err(py_err)
    }

    /// Whether `draft` uses all its arguments.
    #[getter]
    fn grows(&self) -> bool {
        true
    }

    /// Whether it samples tokens of distributions of its own.
    #[getter]
    fn proposes(&self) -> bool {
        false
    }

    /// Nothing, as nothing is sampled.
    #[getter]
    fn proposals<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        PyDict::new(py)
    }

    /// Nothing, as there are no levels.
    #[getter]
    fn level_stats<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        PyDict::new(py)
    }

    /// None: the caller's clock tells.
    #[getter]
    fn elapsed_ns(&self) -> Option<u64> {
        None
    }

    /// Does nothing.
    fn join(&self, rules: &Bound<'_, PyAny>) {
        let _ = rules;
    }

    /// The length of the context suffix that the last draft was made from.
    #[getter]
    fn match_length(&self) -> usize {
        self.lock().match_length()
    }

    /// Ends the request.
    fn finish(&self, py: Python<'_>) {
        py.detach(|| self.lock().finish());
    }
}

/// Starts a request that is drafted for as REST does.
#[pyfunction]
#[pyo3(signature = (
    datastore, *, max_match = 16, min_match = 1, continuation = 10, max_samples = 256
))]
pub(crate) fn rest_session(
    datastore: &Bound<'_, Datastore>,
    max_match: usize,
    min_match: usize,
    continuation: usize,
    max_samples: usize,
) -> PyResult<DraftSession> {
    let config = RestConfig {
        max_match,
        min_match,
        continuation,
        max_samples,
    };
    let datastore = Arc::clone(&datastore.get().0);
    DraftSession::new(RestSession::new(datastore, config))
}

/// Starts a request that is drafted for from a model's own tables and the request's own text.
#[pyfunction]
#[pyo3(signature = (tables, *, k = 10, w = 10, q = 1, strategy = "mixed"))]
pub(crate) fn n_grammys_session(
    tables: Option<&Bound<'_, ModelTables>>,
    k: usize,
    w: usize,
    q: usize,
    strategy: &str,
) -> PyResult<DraftSession> {
    let strategy = Strategy::from_name(strategy).map_err(py_err)?;
    let config = NGrammysConfig { k, w, q, strategy };
    let tables = tables.map(|tables| Arc::clone(&tables.get().0));
    DraftSession::new(NGrammysSession::new(tables, config))
}

/// Starts a request that is drafted for from its own text.
#[pyfunction]
#[pyo3(signature = (*, max_match = 3, num_tokens = 10))]
pub(crate) fn prompt_lookup_session(max_match: usize, num_tokens: usize) -> PyResult<DraftSession> {
    let config = PromptLookupConfig {
        max_match,
        num_tokens,
    };
    DraftSession::new(PromptLookupSession::new(config))
}

/// Drafts for every session, in several threads.
#[pyfunction]
#[pyo3(signature = (
    sessions, max_nodes, *, max_depths = None, min_gain = 0.0, may_grow_to = 0, num_threads = None
))]
pub(crate) fn draft_batch(
    py: Python<'_>,
    sessions: Vec<Bound<'_, DraftSession>>,
    max_nodes: usize,
    max_depths: Option<Vec<usize>>,
    min_gain: f32,
    may_grow_to: usize,
    num_threads: Option<usize>,
) -> PyResult<Vec<TokenTree>> {
    let sessions: Vec<_> = sessions.iter().map(|session| &session.get().0).collect();
    let max_depths = max_depths.unwrap_or_else(|| vec![usize::MAX; sessions.len()]);
    if max_depths.len() != sessions.len() {
        let (expected, found) = (sessions.len(), max_depths.len());
        let reason =
            format!("`max_depths` must have one for each session: {expected}, not {found}");
        return Err(PyValueError::new_err(reason));
    }
    let limits = max_depths.into_iter().map(|max_depth| DraftLimits {
        max_nodes,
        min_gain,
        may_grow_to,
        max_depth,
    });
    py.detach(|| {
        let mut guards = lock_all(&sessions)?;
        let sessions = guards.iter_mut().map(|guard| &mut ***guard);
        let mut rows: Vec<(&mut AnySession, DraftLimits)> = sessions.zip(limits).collect();
        draft::draft_batch(&mut rows, num_threads).map_err(py_err)
    })
    .map(|trees| trees.into_iter().map(TokenTree).collect())
}

type AnySession = dyn Session;

/// Waits for none: whoever holds one session of a batch and waits for another may wait for ever.
fn lock_all<'a>(
    sessions: &[&'a Mutex<Box<AnySession>>],
) -> PyResult<Vec<MutexGuard<'a, Box<AnySession>>>> {
    let guards = sessions.iter().enumerate().map(|(index, session)| match session.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
        Err(TryLockError::WouldBlock) => Err(PyValueError::new_err(format!(
            "`sessions` has number {index} twice, or another thread drafts with it: take each once"
        ))),
    });
    guards.collect()
}

//! `specds.DraftSession`: one request of any drafter of the core, one call a decoding step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds::Result;
use specds::draft::{self, Session};
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
impl DraftSession {
    /// Appends tokens to the context: the prompt first, then what the model emitted.
    fn observe(&self, py: Python<'_>, token_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        py.detach(|| self.lock().observe(&tokens)).map_err(py_err)
    }

    /// Drafts at most `max_nodes` nodes that continue the context.
    fn draft(&self, py: Python<'_>, max_nodes: usize) -> PyResult<TokenTree> {
        let draft = py.detach(|| self.lock().draft(max_nodes));
        draft.map(TokenTree).map_err(py_err)
    }

    /// Drafts only nodes whose probability is at least `min_gain`.
    #[pyo3(signature = (min_gain, max_nodes = 256))]
    fn draft_until(&self, py: Python<'_>, min_gain: f32, max_nodes: usize) -> PyResult<TokenTree> {
        let draft = py.detach(|| self.lock().draft_until(min_gain, max_nodes));
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

    /// Tells that only the first `num_nodes` nodes of the last draft are verified.
    fn cut(&self, num_nodes: usize) {
        self.lock().cut(num_nodes);
    }

    /// Tells how long a plain step of the model takes.
    fn pace(&self, step_seconds: f64) {
        self.lock().pace(step_seconds);
    }

    /// How many of the model's likeliest tokens at each node it wants to know.
    #[getter]
    fn num_predictions(&self) -> usize {
        self.lock().num_predictions()
    }

    /// Tells what the model itself predicted at the context and at each node of a tree.
    fn recycle(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, TokenTree>,
        predictions: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (k, predictions) = rows_of_integers::<u32>(predictions, "predictions")?;
        let tree = &tree.get().0;
        py.detach(|| self.lock().recycle(tree, &predictions, k))
            .map_err(py_err)
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
#[pyo3(signature = (sessions, max_nodes, *, min_gain = 0.0, num_threads = None))]
pub(crate) fn draft_batch(
    py: Python<'_>,
    sessions: Vec<Bound<'_, DraftSession>>,
    max_nodes: usize,
    min_gain: f32,
    num_threads: Option<usize>,
) -> PyResult<Vec<TokenTree>> {
    let sessions: Vec<_> = sessions.iter().map(|session| &session.get().0).collect();
    py.detach(|| {
        let mut guards = lock_all(&sessions)?;
        let mut sessions: Vec<&mut AnySession> =
            guards.iter_mut().map(|guard| &mut ***guard).collect();
        draft::draft_batch(&mut sessions, min_gain, max_nodes, num_threads).map_err(py_err)
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

//! `specds.DraftSession` and `draft_batch`.

use std::sync::{Mutex, MutexGuard, TryLockError};

use numpy::{AllowTypeChange, PyArrayLike1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds_core::draft::{self, DraftLimits};

use crate::arrays::{from_zero, integers, max_nodes, rows_of_integers};
use crate::error::{Result, detached, lock};
use crate::session::Session;
use crate::token_tree::TokenTree;

/// A request that a drafter of the core drafts for.
///
/// Threads may share it. The probability of a node estimates that the target accepts it.
#[pyclass(frozen, extends = Session, module = "specds")]
pub(crate) struct DraftSession(Mutex<Option<Box<AnySession>>>);

impl DraftSession {
    pub(crate) fn new<S: draft::Session + 'static>(
        session: specds_core::Result<S>,
    ) -> Result<Py<Self>> {
        let own = Self(Mutex::new(Some(Box::new(session?))));
        Ok(Python::attach(|py| Py::new(py, (own, Session)))?)
    }

    /// Calls `work` with the session; an error if it has ended.
    fn work<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut AnySession) -> specds_core::Result<T> + Send,
    ) -> Result<T> {
        detached(py, || match lock(&self.0).as_deref_mut() {
            Some(session) => Ok(work(session)?),
            None => Err(PyValueError::new_err(ENDED).into()),
        })
    }

    /// Calls `question` with the session; returns the default value if it has ended.
    fn ask<T: Default>(&self, question: impl FnOnce(&AnySession) -> T) -> T {
        lock(&self.0).as_deref().map(question).unwrap_or_default()
    }
}

#[pymethods]
impl DraftSession {
    /// Appends tokens to the context, as `Session.observe`.
    ///
    /// Raises:
    ///     ValueError: A token id is not in the vocabulary. The context does not change.
    #[pyo3(signature = (token_ids, num_verified = None))]
    fn observe(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        num_verified: Option<usize>,
    ) -> Result<()> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        self.work(py, |session| session.observe(&tokens, num_verified))
    }

    /// Drafts at most `max_nodes` nodes that continue the context.
    ///
    /// Args:
    ///     max_nodes: Maximum number of nodes.
    ///     max_depth: Maximum depth; a child of the context has depth 1.
    ///     min_prob: Minimum probability of a node.
    ///     is_chain: Draft a chain. The fused drafter then extends the likeliest child; other drafters return the
    ///         best path of their tree.
    ///
    /// Raises:
    ///     ValueError: `min_prob` is below 0, infinite or not a number.
    #[pyo3(signature = (
        max_nodes, max_depth = None, min_prob = 0.0, *, is_chain = false
    ))]
    fn draft(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = max_nodes)] max_nodes: usize,
        max_depth: Option<usize>,
        min_prob: f32,
        is_chain: bool,
    ) -> Result<TokenTree> {
        let limits = DraftLimits {
            max_nodes,
            min_prob: from_zero(min_prob, "min_prob")?,
            max_depth: max_depth.unwrap_or(usize::MAX),
            is_chain,
        };
        Ok(TokenTree(self.work(py, |session| session.draft(limits))?))
    }

    fn draft_after(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = max_nodes)] max_nodes: usize,
    ) -> Result<TokenTree> {
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        let draft = self.work(py, |session| session.draft_after(&tokens, max_nodes))?;
        Ok(TokenTree(draft))
    }

    fn set_step_time(&self, step_seconds: f64) -> Result<()> {
        let step_seconds = from_zero(step_seconds, "step_seconds")?;
        if let Some(session) = &mut *lock(&self.0) {
            session.set_step_time(step_seconds);
        }
        Ok(())
    }

    #[getter]
    fn num_predictions(&self) -> usize {
        self.ask(draft::Session::num_predictions)
    }

    fn observe_predictions(
        &self,
        py: Python<'_>,
        tree: &Bound<'_, TokenTree>,
        predictions: &Bound<'_, PyAny>,
    ) -> Result<()> {
        let (k, predictions) = rows_of_integers::<u32>(predictions, "predictions")?;
        let tree = &tree.get().0;
        self.work(py, |session| session.observe_predictions(tree, &predictions, k))
    }

    #[pyo3(signature = (token_ids, parents = None, probs = None))]
    fn suggest(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        parents: Option<&Bound<'_, PyAny>>,
        probs: Option<PyArrayLike1<'_, f32, AllowTypeChange>>,
    ) -> Result<bool> {
        if let Ok(tree) = token_ids.cast::<TokenTree>() {
            let tree = tree.get().0.clone();
            return self.work(py, |session| session.suggest(tree));
        }
        let tokens: Vec<u32> = integers(token_ids, "token_ids")?;
        let parents = match parents {
            Some(parents) => integers(parents, "parents")?,
            None => (-1..).take(tokens.len()).collect(),
        };
        let probs = match probs {
            Some(probs) => probs.as_array().to_vec(),
            None => vec![1.0; tokens.len()],
        };
        let tree = draft::TokenTree::new(tokens, parents, probs)?;
        self.work(py, |session| session.suggest(tree))
    }

    #[getter]
    fn match_length(&self) -> usize {
        self.ask(draft::Session::match_length)
    }

    fn finish(&self, py: Python<'_>) {
        detached(py, || {
            if let Some(mut session) = lock(&self.0).take() {
                session.finish();
            }
        });
    }

    fn __repr__(&self) -> String {
        // A session that another thread drafts with must not block.
        let state = match self.0.try_lock().as_deref() {
            Ok(Some(session)) => format!("match_length={}", session.match_length()),
            Ok(None) => "ended".to_owned(),
            Err(_) => "busy".to_owned(),
        };
        format!("DraftSession({state})")
    }
}

/// Drafts for many sessions in parallel. Returns one tree for each session.
///
/// Args:
///     sessions: Sessions of drafters of the core, each at most once.
///     max_nodes: Maximum number of nodes of each tree.
///     max_depths: Maximum depth of each tree.
///     min_prob: Minimum probability of a node.
///     num_threads: Maximum number of threads, on which trees do not depend; all processors by default.
///
/// Raises:
///     ValueError: A session is passed twice, has ended or is used by another thread; or an argument is out of
///         range.
#[pyfunction]
#[pyo3(signature = (
    sessions, max_nodes, *, max_depths = None, min_prob = 0.0, num_threads = None
))]
pub(crate) fn draft_batch(
    py: Python<'_>,
    sessions: Vec<Bound<'_, DraftSession>>,
    #[pyo3(from_py_with = max_nodes)] max_nodes: usize,
    max_depths: Option<Vec<usize>>,
    min_prob: f32,
    num_threads: Option<usize>,
) -> Result<Vec<TokenTree>> {
    let sessions: Vec<_> = sessions.iter().map(|session| &session.get().0).collect();
    let max_depths = max_depths.unwrap_or_else(|| vec![usize::MAX; sessions.len()]);
    if max_depths.len() != sessions.len() {
        let (expected, found) = (sessions.len(), max_depths.len());
        let reason = format!(
            "`max_depths` must have one entry for each of {expected} sessions, not {found}"
        );
        return Err(PyValueError::new_err(reason).into());
    }
    let min_prob = from_zero(min_prob, "min_prob")?;
    let limits = max_depths.into_iter().map(|max_depth| DraftLimits {
        max_nodes,
        min_prob,
        max_depth,
        is_chain: false,
    });
    let trees = detached(py, || -> Result<_> {
        let mut guards = lock_all(&sessions)?;
        let sessions = guards.iter_mut().filter_map(|guard| guard.as_deref_mut());
        let mut rows: Vec<(&mut AnySession, DraftLimits)> = sessions.zip(limits).collect();
        Ok(draft::draft_batch(&mut rows, num_threads)?)
    })?;
    Ok(trees.into_iter().map(TokenTree).collect())
}

type AnySession = dyn draft::Session;

const ENDED: &str = "the request has ended: start another session";

type Guard<'a> = MutexGuard<'a, Option<Box<AnySession>>>;

/// Locks all sessions without waiting: a thread that holds one session and waits for another could deadlock.
fn lock_all<'a>(sessions: &[&'a Mutex<Option<Box<AnySession>>>]) -> PyResult<Vec<Guard<'a>>> {
    let guards = sessions.iter().enumerate().map(|(index, session)| {
        let guard = match session.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(PyValueError::new_err(format!(
                "`sessions[{index}]` is passed twice or used by another thread: pass each session once"
            ))),
        };
        if guard.is_none() {
            return Err(PyValueError::new_err(format!("`sessions[{index}]`: {ENDED}")));
        }
        Ok(guard)
    });
    guards.collect()
}

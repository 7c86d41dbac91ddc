//! The sessions of `specds._core`: one call a decoding step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use specds::draft::{self, Session};

use crate::arrays::integers;
use crate::datastore::Datastore;
use crate::error::py_err;
use crate::tree::TokenTree;

macro_rules! session {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[pyclass(frozen, module = "specds._core")]
        pub(crate) struct $name(Mutex<draft::$name>);

        impl $name {
            fn lock(&self) -> MutexGuard<'_, draft::$name> {
                // A panic in a draft leaves no half-made state that the next one could trip over.
                self.0.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = (
                datastore, *, max_match = 16, min_match = 1, continuation = 10, max_samples = 256,
                exact = false
            ))]
            fn new(
                datastore: &Bound<'_, Datastore>,
                max_match: usize,
                min_match: usize,
                continuation: usize,
                max_samples: usize,
                exact: bool,
            ) -> PyResult<Self> {
                let config = draft::RestConfig {
                    max_match,
                    min_match,
                    continuation,
                    max_samples,
                    exact,
                };
                let datastore = Arc::clone(&datastore.get().0);
                let session = draft::$name::new(datastore, config).map_err(py_err)?;
                Ok(Self(Mutex::new(session)))
            }

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

            /// Ends the request.
            fn finish(&self) {}
        }
    };
}

session! {
    /// One request drafted by retrieval: REST (He et al. 2024), Algorithm 1.
    RestSession
}

session! {
    /// One request drafted for from a datastore and from its own text.
    FusedSession
}

/// Drafts for every session, in several threads.
#[pyfunction]
#[pyo3(signature = (sessions, max_nodes, *, num_threads = None))]
pub(crate) fn draft_batch(
    py: Python<'_>,
    sessions: Vec<Bound<'_, PyAny>>,
    max_nodes: usize,
    num_threads: Option<usize>,
) -> PyResult<Vec<TokenTree>> {
    let sessions: Vec<_> = sessions.iter().map(session_of).collect::<PyResult<_>>()?;
    py.detach(|| {
        let mut guards = lock_all(&sessions)?;
        let mut sessions: Vec<&mut AnySession> =
            guards.iter_mut().map(|guard| &mut **guard).collect();
        draft::draft_batch(&mut sessions, max_nodes, num_threads).map_err(py_err)
    })
    .map(|trees| trees.into_iter().map(TokenTree).collect())
}

type AnySession = dyn Session;

fn session_of<'a>(session: &'a Bound<'_, PyAny>) -> PyResult<&'a Mutex<AnySession>> {
    if let Ok(session) = session.cast::<RestSession>() {
        Ok(&session.get().0)
    } else {
        Ok(&session.cast::<FusedSession>()?.get().0)
    }
}

/// Waits for none: whoever holds one session of a batch and waits for another may wait for ever.
fn lock_all<'a>(sessions: &[&'a Mutex<AnySession>]) -> PyResult<Vec<MutexGuard<'a, AnySession>>> {
    let guards = sessions.iter().enumerate().map(|(index, session)| match session.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
        Err(TryLockError::WouldBlock) => Err(PyValueError::new_err(format!(
            "`sessions` has number {index} twice, or another thread drafts with it: take each once"
        ))),
    });
    guards.collect()
}

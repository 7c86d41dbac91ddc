//! The sessions of `specds._core`: one call a decoding step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use specds::draft;

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
                datastore, *, max_match = 16, min_match = 1, continuation = 10, max_samples = 256
            ))]
            fn new(
                datastore: &Bound<'_, Datastore>,
                max_match: usize,
                min_match: usize,
                continuation: usize,
                max_samples: usize,
            ) -> PyResult<Self> {
                let config = draft::RestConfig {
                    max_match,
                    min_match,
                    continuation,
                    max_samples,
                    ..draft::RestConfig::default()
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

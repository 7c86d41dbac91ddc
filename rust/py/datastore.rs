//! `specds.Datastore`. Its methods are in `lookup`.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::integers;
use crate::error::{Result, detached};
use crate::found::Match;

/// A memory-mapped index over the tokens of a corpus, which is built once and never modified.
///
/// Threads may share it. Pickling stores its path. Iteration yields each `StoredDocument`.
///
/// Args:
///     path: A folder that `specds build` made. If there is none, a name on the hub, ``org/name`` or
///         ``hf://org/name@revision``, which is downloaded and checked once.
///
/// Raises:
///     FileNotFoundError: There is nothing at `path`.
///     FormatError: `path` is not a datastore, is damaged, or has another format version.
#[pyclass(frozen, module = "specds")]
pub(crate) struct Datastore {
    pub(crate) opened: RwLock<Option<Arc<specds_index::Datastore>>>,
    pub(crate) path: PathBuf,
    build_id: u128,
}

impl From<specds_index::Datastore> for Datastore {
    fn from(opened: specds_index::Datastore) -> Self {
        Arc::new(opened).into()
    }
}

impl From<Arc<specds_index::Datastore>> for Datastore {
    fn from(opened: Arc<specds_index::Datastore>) -> Self {
        Self {
            path: opened.path().to_owned(),
            build_id: u128::from_str_radix(&opened.manifest().build_id, 16).unwrap_or(0),
            opened: RwLock::new(Some(opened)),
        }
    }
}

/// Returns the opened datastore of an optional argument.
pub(crate) fn opened(
    datastore: Option<&Bound<'_, Datastore>>,
) -> PyResult<Option<Arc<specds_index::Datastore>>> {
    datastore.map(|of| of.get().opened()).transpose()
}

impl Datastore {
    /// Returns the datastore for a drafter; an error if it was closed.
    pub(crate) fn opened(&self) -> PyResult<Arc<specds_index::Datastore>> {
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        opened.clone().ok_or_else(|| {
            let path = self.path.display();
            PyValueError::new_err(format!("the datastore {path} is closed: open it again"))
        })
    }

    pub(crate) fn work<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&specds_index::Datastore) -> specds_core::Result<T> + Send,
    ) -> Result<T> {
        let opened = self.opened()?;
        Ok(detached(py, || work(&opened))?)
    }

    /// Returns the match `of`, or the match of the pattern `of`.
    pub(crate) fn found(
        &self,
        py: Python<'_>,
        of: &Bound<'_, PyAny>,
    ) -> Result<specds_index::Match> {
        let Ok(of_match) = of.cast_exact::<Match>() else {
            let tokens: Vec<u32> = integers(of, "of")?;
            return self.work(py, |datastore| datastore.find(&tokens));
        };
        let of_match = of_match.get();
        if of_match.build_id == self.build_id {
            return Ok(of_match.found.clone());
        }
        let message = "`of` is a match in another datastore: look it up in this one";
        Err(PyValueError::new_err(message).into())
    }

    pub(crate) fn matched(&self, found: specds_index::Match) -> Match {
        let build_id = self.build_id;
        Match { found, build_id }
    }
}

//! `specds._core.FusedState`: what the sessions of a fused drafter share.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use specds::draft::Source;
use specds::fused::{self, Effort, FusedConfig, FusedSession, Weights};

use crate::arrays::integers;
use crate::datastore::{Datastore, opened};
use crate::draft::DraftSession;
use crate::error::py_err;
use crate::memory::Memory;
use crate::papers::ModelTables;

/// What the sessions of a fused drafter share: its sources, and what each proved to be worth.
///
/// `specds.drafters.FusedDrafter` documents the arguments.
#[pyclass(frozen, module = "specds._core")]
pub(crate) struct FusedState(Arc<fused::FusedDrafter>);

#[pymethods]
impl FusedState {
    #[new]
    #[pyo3(signature = (
        datastore = None, memory = None, *, model_tables = None, context = true,
        recycled = true, learns = true, effort = "auto", weights = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        datastore: Option<&Bound<'_, Datastore>>,
        memory: Option<&Bound<'_, Memory>>,
        model_tables: Option<&Bound<'_, ModelTables>>,
        context: bool,
        recycled: bool,
        learns: bool,
        effort: &str,
        weights: Option<&[u8]>,
    ) -> PyResult<Self> {
        let config = FusedConfig {
            context,
            recycled,
            learns,
            effort: Effort::from_name(effort).map_err(py_err)?,
        };
        let datastore = opened(datastore)?;
        let memory = memory.map(|memory| Arc::clone(&memory.get().memory));
        let weights = read(weights, datastore.as_deref())?;
        let mut drafter =
            fused::FusedDrafter::new(datastore, memory, config, weights).map_err(py_err)?;
        if let Some(tables) = model_tables {
            let tables = Arc::clone(&tables.get().0);
            drafter = drafter.with_model_tables(tables).map_err(py_err)?;
        }
        Ok(Self(Arc::new(drafter)))
    }

    /// Starts a request.
    #[pyo3(signature = (tenant = "", predicted_output = None, group = None))]
    fn session(
        &self,
        py: Python<'_>,
        tenant: &str,
        predicted_output: Option<&Bound<'_, PyAny>>,
        group: Option<&str>,
    ) -> PyResult<Py<DraftSession>> {
        let mut session = FusedSession::new(Arc::clone(&self.0), tenant).map_err(py_err)?;
        if let Some(group) = group {
            session.join(group).map_err(py_err)?;
        }
        if let Some(predicted) = predicted_output {
            let tokens: Vec<u32> = integers(predicted, "predicted_output")?;
            py.detach(|| session.expect_output(&tokens))
                .map_err(py_err)?;
        }
        DraftSession::new(Ok(session))
    }

    /// What a tenant's requests taught so far: what drafters of other texts may start from.
    #[pyo3(signature = (tenant = ""))]
    fn weights<'py>(&self, py: Python<'py>, tenant: &str) -> Bound<'py, PyBytes> {
        let bytes = py.detach(|| self.0.weights(tenant).to_bytes());
        PyBytes::new(py, &bytes)
    }

    /// How many tokens of each source were accepted, in the order of `SOURCES`.
    fn accepted(&self) -> [u64; Source::NAMES.len()] {
        self.0.accepted()
    }
}

/// Learns weights from documents, as if a model had written them: what a drafter starts from.
///
/// Args:
///     datastore: What the drafter will draft from.
///     documents: Token ids each. They should be like what will be written, and not be in the
///         datastore. It takes some 20 µs a token.
///     weights: What to start from; by default the datastore's prior, and without one nothing.
///
/// Raises:
///     ValueError: A token id is not in the vocabulary, or `weights` are not weights.
#[pyfunction]
#[pyo3(signature = (datastore, documents, *, weights = None))]
pub(crate) fn fit_weights<'py>(
    py: Python<'py>,
    datastore: Option<&Bound<'py, Datastore>>,
    documents: Vec<Bound<'py, PyAny>>,
    weights: Option<&[u8]>,
) -> PyResult<Bound<'py, PyBytes>> {
    let tokens = documents
        .iter()
        .map(|document| integers(document, "documents"));
    let documents: Vec<Vec<u32>> = tokens.collect::<PyResult<_>>()?;
    let datastore = opened(datastore)?;
    let weights = read(weights, datastore.as_deref())?;
    let fitted = py.detach(|| fused::fit(datastore, &documents, weights));
    Ok(PyBytes::new(py, &fitted.map_err(py_err)?.to_bytes()))
}

/// What to start from: these weights, or those that the datastore brings.
fn read(
    weights: Option<&[u8]>,
    datastore: Option<&specds::lookup::Datastore>,
) -> PyResult<Weights> {
    match weights {
        Some(weights) => Weights::from_bytes(weights).map_err(py_err),
        None => Ok(datastore.and_then(fused::prior_of).unwrap_or_default()),
    }
}

//! `specds._core.FusedState`: what the sessions of a fused drafter share.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use specds::fused::{self, FusedConfig, FusedSession};
use specds::tree::Source;
use specds::weights::Weights;

use crate::arrays::integers;
use crate::datastore::Datastore;
use crate::draft::DraftSession;
use crate::error::py_err;
use crate::memory::Memory;

/// The sources of a fused drafter, and what each of them has proved to be worth.
#[pyclass(frozen, module = "specds._core")]
pub(crate) struct FusedState(Arc<fused::FusedDrafter>);

#[pymethods]
impl FusedState {
    #[new]
    #[pyo3(signature = (
        datastore = None, memory = None, *, context = true, recycled = false, learns = true,
        weights = None
    ))]
    fn new(
        datastore: Option<&Bound<'_, Datastore>>,
        memory: Option<&Bound<'_, Memory>>,
        context: bool,
        recycled: bool,
        learns: bool,
        weights: Option<&[u8]>,
    ) -> PyResult<Self> {
        let config = FusedConfig {
            context,
            recycled,
            learns,
        };
        let datastore = datastore.map(|datastore| Arc::clone(&datastore.get().0));
        let memory = memory.map(|memory| Arc::clone(&memory.get().0));
        let weights = read(weights, datastore.as_deref())?;
        let drafter = fused::FusedDrafter::new(datastore, memory, config, weights);
        Ok(Self(Arc::new(drafter.map_err(py_err)?)))
    }

    /// Starts a request.
    #[pyo3(signature = (tenant = "", predicted_output = None))]
    fn session(
        &self,
        py: Python<'_>,
        tenant: &str,
        predicted_output: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<DraftSession> {
        let mut session = FusedSession::new(Arc::clone(&self.0), tenant).map_err(py_err)?;
        if let Some(predicted) = predicted_output {
            let tokens: Vec<u32> = integers(predicted, "predicted_output")?;
            py.detach(|| session.expect_output(&tokens))
                .map_err(py_err)?;
        }
        DraftSession::new(Ok(session))
    }

    /// What is learned so far, as bytes.
    fn weights<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes = py.detach(|| self.0.weights().to_bytes());
        PyBytes::new(py, &bytes)
    }

    /// How many tokens of each source were accepted, in the order of `SOURCES`.
    fn accepted(&self) -> [u64; Source::ALL.len()] {
        self.0.accepted()
    }
}

/// Learns weights from documents, as if a model had written them.
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
    let datastore = datastore.map(|datastore| Arc::clone(&datastore.get().0));
    let weights = read(weights, datastore.as_deref())?;
    let fitted = py.detach(|| fused::fit(datastore, &documents, weights));
    Ok(PyBytes::new(py, &fitted.map_err(py_err)?.to_bytes()))
}

/// What to start from: these weights, or those that the datastore brings.
fn read(
    weights: Option<&[u8]>,
    datastore: Option<&specds::datastore::Datastore>,
) -> PyResult<Weights> {
    let prior = datastore.and_then(specds::datastore::Datastore::prior);
    match weights {
        Some(weights) => Weights::from_bytes(weights).map_err(py_err),
        None => Ok(prior.cloned().unwrap_or_default()),
    }
}

//! `specds._core.FusedState`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use specds_core::draft::Source;
use specds_core::fused::{self, FusedConfig, FusedSession};
use specds_core::weights::Weights;

use crate::arrays::integers;
use crate::datastore::{Datastore, opened};
use crate::draft::DraftSession;
use crate::error::{Result, detached};
use crate::memory::Memory;
use crate::options;
use crate::papers::ModelTables;

/// The sources and weights that the sessions of a fused drafter share.
///
/// `specds.drafters.FusedDrafter` documents the arguments, except `prior`: bytes that replace those of
/// `rust/core/weights/prior.bin`, for `scripts/fit_prior.py` and tests.
#[pyclass(frozen, module = "specds._core")]
pub(crate) struct FusedState(Arc<fused::FusedDrafter>);

#[pymethods]
impl FusedState {
    /// The number of float32 weights of a prior.
    #[classattr]
    const NUM_WEIGHTS: usize = Weights::COUNT;

    #[new]
    #[pyo3(signature = (
        datastore = None, memory = None, *, model_tables = None, prior = None, **options
    ))]
    fn new(
        datastore: Option<&Bound<'_, Datastore>>,
        memory: Option<&Bound<'_, Memory>>,
        model_tables: Option<&Bound<'_, ModelTables>>,
        prior: Option<&[u8]>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Self> {
        let config: FusedConfig = options::read(options)?;
        let datastore = opened(datastore)?;
        let memory = memory.map(|memory| Arc::clone(&memory.get().memory));
        let mut drafter = fused::FusedDrafter::new(datastore, memory, config)?;
        if let Some(prior) = prior {
            drafter = drafter.with_weights(Weights::with_offsets(prior));
        }
        if let Some(tables) = model_tables {
            drafter = drafter.with_model_tables(Arc::clone(&tables.get().0))?;
        }
        Ok(Self(Arc::new(drafter)))
    }

    /// Starts a request. Without a tenant, it depends on no other one, and leaves nothing.
    #[pyo3(
        signature = (tenant = Some(""), predicted_output = None, group = None),
        text_signature = "($self, tenant='', predicted_output=None, group=None)"
    )]
    fn session(
        &self,
        py: Python<'_>,
        tenant: Option<&str>,
        predicted_output: Option<&Bound<'_, PyAny>>,
        group: Option<&str>,
    ) -> Result<Py<DraftSession>> {
        let drafter = Arc::clone(&self.0);
        let mut session = match tenant {
            Some(tenant) => FusedSession::new(drafter, tenant)?,
            None => FusedSession::isolated(drafter),
        };
        if let Some(group) = group {
            session.set_group(group)?;
        }
        if let Some(predicted) = predicted_output {
            let tokens: Vec<u32> = integers(predicted, "predicted_output")?;
            detached(py, || session.set_predicted_output(&tokens))?;
        }
        DraftSession::new(Ok(session))
    }

    /// Returns the adapted weights of a tenant as a snapshot stores them; empty if there are none.
    #[pyo3(signature = (tenant = ""))]
    fn learned<'py>(&self, py: Python<'py>, tenant: &str) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &detached(py, || self.0.adaptation(tenant)))
    }

    /// Returns the number of accepted tokens of each source, in the order of `SOURCES`.
    fn accepted(&self) -> [u64; Source::NAMES.len()] {
        self.0.accepted()
    }
}

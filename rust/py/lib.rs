//! The Python binding: arrays in, arrays out, the interpreter released while Rust works. No logic.
#![allow(clippy::needless_pass_by_value)] // pyo3 arguments arrive by value
#![allow(clippy::doc_markdown)] // documentation for Python names arguments without backticks

mod arrays;
mod budget;
mod builder;
mod datastore;
mod draft;
mod engine;
mod error;
mod forward;
mod found;
mod fused;
mod linear;
mod lookup;
mod memory;
mod options;
mod papers;
mod passes;
mod request_options;
mod sampling;
mod session;
mod storage;
mod stores;
mod token_tree;

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use specds_index::base::forks;

/// Keeps Python from forking while a thread holds a lock of the core. Windows has no forks.
fn observe_forks(py: Python<'_>) -> PyResult<()> {
    let Some(register) = py.import("os")?.getattr_opt("register_at_fork")? else {
        return Ok(());
    };
    let call = |work: fn()| {
        PyCFunction::new_closure(py, None, None, move |args, _| args.py().detach(work))
    };
    let hooks = PyDict::new(py);
    hooks.set_item("before", call(forks::begin_fork)?)?;
    hooks.set_item("after_in_parent", call(forks::end_fork)?)?;
    hooks.set_item("after_in_child", call(forks::begin_child)?)?;
    register.call((), Some(&hooks)).map(drop)
}

/// The compiled core: datastores, lookups and the drafters that need no model.
#[pymodule(gil_used = true)] // no test runs without the GIL
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::{
        budget::{DraftStats, NodeBudget, StepTimes},
        builder::{DatastoreBuilder, compact, merge},
        datastore::Datastore,
        draft::{DraftSession, draft_batch},
        engine::EngineDrafter,
        error::{FormatError, UnsupportedFileError},
        forward::{ForwardCache, ForwardModel, GgufFile, memory_bandwidth, merges_of},
        found::{Match, StoredDocument},
        fused::FusedState,
        linear::{has_linear_product, linear_product},
        memory::{Memory, without_credentials},
        papers::{AdaptiveTrigrams, ModelTables, Trigrams},
        papers::{aded_session, n_grammys_session, prompt_lookup_session, rest_session},
        passes::{pack_rows, read_outcomes},
        request_options::is_off,
        sampling::{draw, likeliest},
        session::Session,
        storage::{datastore_files, read_manifest, was_killed_after_publishing},
        token_tree::TokenTree,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let sources = specds_core::draft::Source::NAMES;
        module.add("InternalError", super::error::internal_error(module.py())?)?;
        module.add("SOURCES", PyTuple::new(module.py(), sources)?)?;
        module.add("DEFAULTS", super::options::defaults(module.py())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        specds_core::memory::set_opener(super::stores::open);
        super::observe_forks(module.py())
    }
}

//! The Python binding: arrays in, arrays out, the interpreter released while Rust works. No logic.
#![allow(clippy::needless_pass_by_value)] // pyo3 arguments arrive by value

mod aded;
mod arrays;
mod builder;
mod datastore;
mod draft;
mod drawing;
mod error;
mod fused;
mod likeliest;
mod memory;
mod model_tables;
mod tree;

use pyo3::prelude::*;

/// The compiled core: datastores, lookups and the drafters that need no model.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::aded::{AdaptiveTrigrams, Trigrams, aded_session};
    #[pymodule_export]
    use super::builder::{DatastoreBuilder, compact, merge, refit};
    #[pymodule_export]
    use super::datastore::{Datastore, Match, StoredDocument};
    #[pymodule_export]
    use super::draft::{
        DraftSession, draft_batch, n_grammys_session, prompt_lookup_session, rest_session,
    };
    #[pymodule_export]
    use super::drawing::draw;
    #[pymodule_export]
    use super::error::FormatError;
    #[pymodule_export]
    use super::fused::{FusedState, fit_weights};
    #[pymodule_export]
    use super::likeliest::likeliest;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::model_tables::ModelTables;
    #[pymodule_export]
    use super::tree::TokenTree;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let sources = specds::draft::Source::ALL.map(specds::draft::Source::name);
        module.add("SOURCES", PyTuple::new(module.py(), sources)?)?;
        let prior_tokens = specds::fused::DEFAULT_PRIOR_TOKENS;
        module.add("DEFAULT_PRIOR_TOKENS", prior_tokens)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

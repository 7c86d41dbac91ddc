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
mod found;
mod fused;
mod linear;
mod lookup;
mod memory;
mod options;
mod papers;
mod passes;
mod sampling;
mod session;
mod storage;
mod token_tree;

use pyo3::prelude::*;

/// The compiled core: datastores, lookups and the drafters that need no model.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::budget::{Budget, Experience};
    #[pymodule_export]
    use super::builder::{DatastoreBuilder, compact, merge};
    #[pymodule_export]
    use super::datastore::Datastore;
    #[pymodule_export]
    use super::draft::{DraftSession, draft_batch};
    #[pymodule_export]
    use super::engine::EngineDrafter;
    #[pymodule_export]
    use super::error::FormatError;
    #[pymodule_export]
    use super::found::{Match, StoredDocument};
    #[pymodule_export]
    use super::fused::FusedState;
    #[pymodule_export]
    use super::linear::{has_linear_product, linear_product};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::papers::{
        AdaptiveTrigrams, ModelTables, Trigrams, aded_session, n_grammys_session,
        prompt_lookup_session, rest_session,
    };
    #[pymodule_export]
    use super::passes::{pack_rows, read_outcomes};
    #[pymodule_export]
    use super::sampling::{draw, likeliest};
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::storage::read_manifest;
    #[pymodule_export]
    use super::token_tree::TokenTree;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let sources = specds::draft::Source::NAMES;
        module.add("SOURCES", PyTuple::new(module.py(), sources)?)?;
        module.add("DEFAULTS", super::options::defaults(module.py())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

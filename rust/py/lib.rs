//! The Python binding: arrays in, arrays out, the interpreter released while Rust works. No logic.
#![allow(clippy::needless_pass_by_value)] // pyo3 arguments arrive by value

mod arrays;
mod builder;
mod datastore;
mod draft;
mod error;
mod tree;

use pyo3::prelude::*;

/// The compiled core: datastores, lookups and the drafters that need no model.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::builder::{DatastoreBuilder, build_shard, compact, document_hashes, merge};
    #[pymodule_export]
    use super::datastore::{Datastore, Match, StoredDocument};
    #[pymodule_export]
    use super::draft::{FusedSession, RestSession, draft_batch};
    #[pymodule_export]
    use super::error::FormatError;
    #[pymodule_export]
    use super::tree::TokenTree;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

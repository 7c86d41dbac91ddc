//! From documents to a datastore, in steps that may be killed at any time.
//!
//! It imports `base`, `storage`, `suffixes` and `lookup`.

mod admission;
pub(crate) mod builder;
pub(crate) mod checks;
pub(crate) mod document_log;
mod index_workers;
pub(crate) mod merge;
pub(crate) mod options;
pub(crate) mod staging;

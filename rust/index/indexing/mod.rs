//! Builds of datastores, which may be killed at any time and resumed.

mod admission;
pub(crate) mod builder;
pub(crate) mod checks;
pub(crate) mod document_log;
mod index_workers;
pub(crate) mod merge;
pub(crate) mod options;
pub(crate) mod staging;

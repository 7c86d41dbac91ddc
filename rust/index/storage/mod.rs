//! On-disk layout and integrity checks.

pub mod files;
pub(crate) mod manifest;
pub(crate) mod section;
pub(crate) mod sources;
pub mod token_array;

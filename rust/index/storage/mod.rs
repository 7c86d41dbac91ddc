//! On-disk layout and integrity checks.

pub mod files;
pub(crate) mod manifest;
pub(crate) mod section;
pub mod token_array;

//! The bytes of a datastore on the disk, and how a reader knows that they are right.
//!
//! It knows files, sections and manifests, and no index. It imports `base`.

pub mod files;
pub(crate) mod manifest;
pub(crate) mod section;
pub mod token_array;

//! How do the bytes of a datastore lie on the disk, and how does a reader know that they are right?
//!
//! It knows files, sections and manifests, and no index. It imports `base`.

pub mod files;
pub(crate) mod manifest;
pub(crate) mod section;
pub mod token_array;

//! How do the bytes of a datastore lie on the disk, and how does a reader know that they are right?
//!
//! It knows files, sections and manifests, and no index. It imports `base`.

pub(crate) mod files;
pub(crate) mod manifest;
pub(crate) mod section;
pub(crate) mod token_array;

pub use manifest::{MAX_SHARD_TOKENS, MAX_VOCAB_SIZE, Manifest, ShardEntry, ShardManifest};
pub use section::FORMAT_VERSION;

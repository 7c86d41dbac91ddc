//! The order of all suffixes of a shard, and how it is written.
//!
//! It imports `base` and `storage`.

pub(crate) mod suffix_array;
pub(crate) mod write;

//! How are all suffixes of a shard brought into order and written?
//!
//! It imports `base` and `storage`.

pub(crate) mod suffix_array;
pub(crate) mod write;

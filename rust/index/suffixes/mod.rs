//! Suffix arrays of shards.

pub(crate) mod suffix_array;
pub(crate) mod write;

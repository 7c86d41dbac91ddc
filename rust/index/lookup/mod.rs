//! Searches in a datastore, and continuations of the occurrences that they find.

pub(crate) mod datastore;
mod disk_latency;
pub(crate) mod matches;
pub(crate) mod next_tokens;
mod ngrams;
pub(crate) mod samples;
mod scores;
pub(crate) mod shard;
pub(crate) mod shards;

//! Where does a context occur in a datastore, and what followed it there?
//!
//! It imports `base`, `storage` and `index`.

pub(crate) mod continuations;
pub(crate) mod datastore;
mod disk_latency;
pub(crate) mod matches;
pub(crate) mod next_tokens;
mod scores;
pub(crate) mod shard;
pub(crate) mod shards;

pub use datastore::Datastore;
pub use matches::Match;
pub use shards::StoredDocument;

//! Drafts for the rows of a serving engine.
//!
//! An engine passes the contexts and names of requests in batches: rows move, are preempted, return and end
//! without notice. [`EngineDrafter`] finds the session of each row by its name. No input of an engine is an
//! error: a row that cannot be served drafts nothing. Where there are several ranks, no clock
//! decides anything, so those that are given the same draft the same.

pub(crate) mod config;
mod counts;
pub(crate) mod drafter;
pub(crate) mod packed;
pub(crate) mod requests;

pub use config::{EngineConfig, EngineInfo, LoadCost, MemoryScope};
pub use counts::EngineCounts;
pub use drafter::{Drafts, EngineDrafter};
pub use packed::{PackedChains, PackedTrees};
pub use requests::Context;

//! Drafts for the rows of a serving engine.
//!
//! An engine passes the contexts and names of requests in batches: requests move to other rows, are preempted,
//! return and end without notice. [`EngineDrafter`] finds the session of each row by its name. No input of an engine
//! is an error: a row that cannot be served gets no draft. Unless step times are measured, drafts do not depend on a
//! clock, so ranks with equal inputs draft alike.

pub(crate) mod config;
mod counts;
pub(crate) mod drafter;
mod opening;
pub(crate) mod options;
pub(crate) mod packed;
pub(crate) mod requests;

pub use config::{EngineConfig, EngineInfo, LoadCost, MemoryScope};
pub use counts::EngineCounts;
pub use drafter::{Drafts, EngineDrafter};
pub use options::{OptionValue, RequestOptions};
pub use packed::{PackedChains, PackedTrees};
pub use requests::Context;

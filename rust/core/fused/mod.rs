//! The drafter that joins all sources in one tree.
//!
//! Each file of `sources` is one source of drafts, and each row of `registry` names one; `mixer` makes
//! one prediction of what they say, by weights that learn; `grow` grows the tree best-first. It may
//! import every other folder.

pub(crate) mod arena;
mod calibration;
pub(crate) mod drafter;
pub(crate) mod effort;
pub(crate) mod finished;
pub(crate) mod group;
mod grow;
pub(crate) mod mixer;
pub(crate) mod registry;
pub(crate) mod source;
pub(crate) mod sources;
pub(crate) mod suggestion;

pub use drafter::{FusedConfig, FusedDrafter, FusedSession};
pub use effort::Effort;

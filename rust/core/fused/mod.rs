//! The drafter that joins all sources in one tree.
//!
//! Each file of `sources` is one source of drafts, listed in `registry`. `mixer` combines their counts
//! into one prediction by weights that adapt to the tenant. `grow` builds the tree best-first.

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

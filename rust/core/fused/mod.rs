//! What is the best tree by all sources together?
//!
//! Each file of `sources` says what one source predicts; `mixer` makes one prediction of that, by
//! weights that learn; `grow` grows the tree best-first. It may import every other folder.

mod calibration;
pub(crate) mod drafter;
pub(crate) mod effort;
pub(crate) mod evidence;
pub(crate) mod grow;
pub(crate) mod mixer;
pub(crate) mod prior;
pub(crate) mod sources;
pub(crate) mod weights;

pub use drafter::{FusedConfig, FusedDrafter, FusedSession, fit};
pub use effort::Effort;
pub use prior::{DEFAULT_PRIOR_TOKENS, fit_missing, prior_of, refit};
pub use weights::Weights;

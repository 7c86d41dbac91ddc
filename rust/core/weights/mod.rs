//! Weights of the evidence for a token: those that all tenants start from, and what a tenant learned.
//!
//! It imports `base` and `draft`.

pub(crate) mod anchors;
pub(crate) mod initial;
pub(crate) mod kind;
pub(crate) mod learned;

pub use initial::Weights;
pub use learned::Learned;

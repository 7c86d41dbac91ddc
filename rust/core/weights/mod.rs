//! Weights of the evidence for a token: those that all tenants start from, and what a tenant learned.
//!
//! It imports `base` and `draft`.

pub(crate) mod adaptation;
pub(crate) mod associations;
pub(crate) mod initial;
pub(crate) mod kind;

pub use adaptation::TenantAdaptation;
pub use initial::Weights;

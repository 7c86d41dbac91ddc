//! Weights of experts and candidates: the initial ones, and the adaptation of each tenant.

pub(crate) mod adaptation;
pub(crate) mod associations;
pub(crate) mod initial;
pub(crate) mod kind;

pub use adaptation::TenantAdaptation;
pub use initial::Weights;

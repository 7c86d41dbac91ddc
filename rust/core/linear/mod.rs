//! Linear layers of a few tokens.
//!
//! A step of a model over one token reads each weight once, and takes as long as that. Libraries of matrices
//! take twice as long for two to nine tokens: they copy the weights into another order first, or read them
//! once for each token. [`product`] reads them once, where they lie.

mod product;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use product::{LayerWeights, is_fast, product};

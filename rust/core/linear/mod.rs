//! Linear layers for a few tokens.
//!
//! A decode step over one token is bound by reading the weights. Matrix libraries take twice as long for
//! two to nine tokens, because they first copy the weights into another order or read them once per
//! token. [`product()`] reads them once, in place.

mod layer_weights;
mod product;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use layer_weights::LayerWeights;
pub use product::{is_fast, product};

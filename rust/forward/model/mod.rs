//! Models of the Llama family: weights, cache, and the pass over some tokens.

mod attention;
mod cache;
mod config;
mod elementwise;
mod layer;
mod load;
mod packing;
#[cfg(test)]
mod panics;
mod pass;
mod watch;

pub use cache::Cache;
pub use config::Config;
pub use layer::LinearLayer;
pub use load::Model;
pub use packing::LoadOptions;
pub use pass::{Input, PassOptions};
pub use watch::Watch;

//! Models: their description, weights, cache, and the pass over some tokens.

mod attention;
mod cache;
mod config;
mod elementwise;
mod families;
mod feed_forward;
mod fields;
mod layer;
mod load;
mod mixer;
mod packing;
#[cfg(test)]
mod panics;
mod pass;
mod rotation;
mod self_attention;
mod watch;

pub use cache::Cache;
pub use config::{AttentionConfig, Config, DenseConfig, FeedForward, LayerConfig, Mixer};
pub use layer::LinearLayer;
pub use load::Model;
pub use packing::LoadOptions;
pub use pass::{Input, PassOptions};
pub use watch::Watch;

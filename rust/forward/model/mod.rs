//! Models: their description, weights, cache, and the pass over some tokens.

mod architectures;
mod attention;
mod cache;
mod chunk;
mod config;
mod decoder_block;
mod elementwise;
mod experts;
mod families;
mod feed_forward;
mod fields;
mod gated_delta;
mod hybrids;
mod layer_inputs;
mod linear;
mod load;
mod loader;
mod low_rank;
mod mixer;
mod mixtures;
mod operations;
mod packing;
#[cfg(test)]
mod panics;
mod pass;
mod pass_times;
mod recurrent;
mod rotation;
mod self_attention;
mod short_convolution;
mod sizes;
mod store;
mod streams;
mod watch;

pub use cache::{Cache, CacheType};
pub use config::{
    AttentionConfig, Config, ConvolutionConfig, DeltaConfig, DenseConfig, ExpertsConfig,
    FeedForward, LayerConfig, Mixer, Routing,
};
pub use linear::LinearLayer;
pub use load::Model;
pub use packing::{LoadOptions, PackedCache};
pub use pass::{Input, PassOptions};
pub use sizes::ModelSizes;
pub use watch::Watch;

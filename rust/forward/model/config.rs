//! The description of a model, which families fill from the metadata of a file.
//!
//! A layer mixes tokens and then applies its feed-forward part to each of them:
//!
//! ```text
//! states += after_mixer(mixer(before_mixer(states)))
//! states += after_feed_forward(feed_forward(before_feed_forward(states)))
//! ```

use super::rotation::Rotation;

#[derive(Debug, Clone)]
pub struct Config {
    pub architecture: String,
    pub hidden_size: usize,
    pub context_length: usize,
    pub vocab_size: usize,
    pub layers: Vec<LayerConfig>,
    pub(crate) epsilon: f32,
    pub(crate) embedding_scale: f32,
    pub(crate) logit_scale: f32,
    pub(crate) logit_cap: Option<f32>,
    /// Those of all layers; a layer has the place of its own one.
    pub(crate) rotations: Vec<Rotation>,
}

#[derive(Debug, Clone)]
pub struct LayerConfig {
    pub mixer: Mixer,
    pub feed_forward: FeedForward,
    pub(crate) norms: Norms,
    /// Times what the mixer and the feed-forward part add to the states.
    pub(crate) residual_scale: f32,
}

/// The norms around the parts of a layer, by the names of their tensors.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Norms {
    pub(crate) before_mixer: Option<&'static str>,
    pub(crate) after_mixer: Option<&'static str>,
    pub(crate) before_feed_forward: Option<&'static str>,
    pub(crate) after_feed_forward: Option<&'static str>,
}

impl Norms {
    pub(crate) const BEFORE: Self = Self {
        before_mixer: Some("attn_norm"),
        after_mixer: None,
        before_feed_forward: Some("ffn_norm"),
        after_feed_forward: None,
    };
    pub(crate) const AROUND: Self = Self {
        after_mixer: Some("post_attention_norm"),
        after_feed_forward: Some("post_ffw_norm"),
        ..Self::BEFORE
    };
    pub(crate) const AFTER: Self =
        Self { before_mixer: None, before_feed_forward: None, ..Self::AROUND };
}

/// The part of a layer that brings the states of other tokens to a token.
#[derive(Debug, Clone)]
pub enum Mixer {
    Attention(AttentionConfig),
}

#[derive(Debug, Clone)]
pub struct AttentionConfig {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    /// The size of queries and keys.
    pub head_size: usize,
    pub value_size: usize,
    /// Times the products of queries and keys.
    pub(crate) scale: f32,
    /// Bounds these products smoothly.
    pub(crate) score_cap: Option<f32>,
    /// The number of tokens that a token sees, itself included.
    pub(crate) window: Option<usize>,
    /// The place in [`Config::rotations`]; `None` for heads that are not rotated.
    pub(crate) rotation: Option<usize>,
    pub(crate) head_norms: HeadNorms,
    /// Each head has one more score, of no token.
    pub(crate) has_sinks: bool,
}

/// The norms of queries and keys before their rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    None,
    OfEach,
    /// One norm over all heads.
    OfAll,
}

/// The part of a layer that is computed for each token alone.
#[derive(Debug, Clone)]
pub enum FeedForward {
    Dense(DenseConfig),
}

#[derive(Debug, Clone, Copy)]
pub struct DenseConfig {
    pub size: usize,
    pub(crate) activation: Activation,
}

/// The function of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    /// By its approximation with tanh.
    Gelu,
}

impl Config {
    /// The shape of attention in the first layer that has it.
    pub fn attention(&self) -> Option<&AttentionConfig> {
        self.layers
            .iter()
            .map(|layer| match &layer.mixer {
                Mixer::Attention(attention) => attention,
            })
            .next()
    }
}

impl LayerConfig {
    pub(crate) fn set_attention(&mut self, set: impl FnOnce(&mut AttentionConfig)) {
        match &mut self.mixer {
            Mixer::Attention(attention) => set(attention),
        }
    }
}

impl AttentionConfig {
    /// The outputs of queries, keys and values.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let of_keys = self.num_kv_heads * self.head_size;
        [self.num_heads * self.head_size, of_keys, self.num_kv_heads * self.value_size]
    }
}

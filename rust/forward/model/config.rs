//! The description of a model, which families fill from the metadata of a file.
//!
//! A layer mixes tokens and then applies its feed-forward part to each of them:
//!
//! ```text
//! states += after_mixer(mixer(before_mixer(states)))
//! states += after_feed_forward(feed_forward(before_feed_forward(states)))
//! ```

use super::recurrent::{MemoryShape, RecurrentShape};
use super::rotation::Rotation;

#[derive(Debug, Clone)]
pub struct Config {
    pub architecture: String,
    pub hidden_size: usize,
    pub context_length: usize,
    /// Longer texts have other rotations, from their first token on; `None` if all texts have the same ones.
    pub short_context: Option<usize>,
    pub vocab_size: usize,
    pub layers: Vec<LayerConfig>,
    /// Layers after these, which are not computed.
    pub(crate) num_unused_layers: usize,
    /// The last norm, by the name of its tensor.
    pub(crate) norm: &'static str,
    pub(crate) epsilon: f32,
    pub(crate) embedding_scale: f32,
    pub(crate) logit_scale: f32,
    pub(crate) logit_cap: Option<f32>,
    /// The size of the input that each layer has for a token; `None` if there is none.
    pub(crate) layer_input_size: Option<usize>,
    /// The number of streams of states, if there is more than one.
    pub(crate) num_streams: Option<usize>,
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
    /// A product of low rank is added after the mixer.
    pub(crate) has_low_rank: bool,
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
    ShortConvolution(ConvolutionConfig),
    GatedDelta(DeltaConfig),
}

/// A convolution of each channel between two gates.
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionConfig {
    /// Inputs that an output depends on, the token's own one included.
    pub kernel_size: usize,
}

/// A gated delta net over the outputs of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct DeltaConfig {
    pub kernel_size: usize,
    pub(crate) memory: MemoryShape,
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
    /// Queries of later positions are larger.
    pub(crate) temperature: Option<Temperature>,
    /// Each head has one more score, of no token.
    pub(crate) has_sinks: bool,
    /// The outputs of each head are multiplied by logistic functions of as many numbers.
    pub(crate) has_gates: bool,
    /// Values are divided by their root mean square; where a file has none, they are the keys before their norm.
    pub(crate) has_value_norms: bool,
    /// The layer whose keys and values it attends to, an earlier one; `None` for its own.
    pub(crate) keys_of: Option<usize>,
}

/// A query is multiplied by `1 + scale * ln(1 + floor(position / length))`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Temperature {
    pub(crate) scale: f32,
    pub(crate) length: usize,
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
    Experts(ExpertsConfig),
}

#[derive(Debug, Clone, Copy)]
pub struct DenseConfig {
    pub size: usize,
    pub(crate) activation: Activation,
    /// Gates below their mean plus this number of standard deviations are zero; it is subtracted from others.
    pub(crate) cutoff: Option<f32>,
}

/// Dense feed-forward parts, of which each token takes some.
#[derive(Debug, Clone, Copy)]
pub struct ExpertsConfig {
    pub number: usize,
    pub expert: DenseConfig,
    pub routing: Routing,
    /// One more that all tokens take.
    pub(crate) shared: Option<SharedExpert>,
}

/// Weights of some experts by the logits of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Experts that a token takes.
    pub num_used: usize,
    /// Scores are logistic functions of the logits, and not their softmax.
    pub(crate) is_sigmoid: bool,
    /// The weights of a token are divided by their sum plus this.
    pub(crate) normalizes: Option<f32>,
    /// Times all weights.
    pub(crate) scale: f32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedExpert {
    pub(crate) size: usize,
    /// Its weight is the logistic function of a logit, and not 1.
    pub(crate) has_gate: bool,
}

/// The function of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    /// By its approximation with tanh.
    Gelu,
    /// A steeper logistic function of bounded gates, times bounded inputs plus 1.
    Clipped,
}

impl Config {
    /// The shape of attention in the first layer that has it.
    pub fn attention(&self) -> Option<&AttentionConfig> {
        self.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            _ => None,
        })
    }

    /// True if layers have states that no token can be dropped from: passes are over chains.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| !matches!(layer.mixer, Mixer::Attention(_)))
    }
}

impl LayerConfig {
    pub(crate) fn set_activation(&mut self, activation: Activation) {
        match &mut self.feed_forward {
            FeedForward::Dense(dense) => dense.activation = activation,
            FeedForward::Experts(experts) => experts.expert.activation = activation,
        }
    }

    pub(crate) fn set_attention(&mut self, set: impl FnOnce(&mut AttentionConfig)) {
        if let Mixer::Attention(attention) = &mut self.mixer {
            set(attention);
        }
    }

    /// The shape of its recurrent states, `None` if it has none.
    pub(crate) fn recurrent(&self, hidden_size: usize) -> Option<RecurrentShape> {
        let (num_channels, kernel_size, memory) = match &self.mixer {
            Mixer::Attention(_) => return None,
            Mixer::ShortConvolution(of) => (hidden_size, of.kernel_size, None),
            Mixer::GatedDelta(of) => (of.memory.num_channels(), of.kernel_size, Some(of.memory)),
        };
        Some(RecurrentShape { num_channels, kernel_size, memory })
    }
}

impl AttentionConfig {
    /// Returns true if a token sees only those of a window.
    pub fn has_window(&self) -> bool {
        self.window.is_some()
    }

    /// The outputs of queries, keys and values.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let num_kv_heads = self.num_cached_heads();
        let of_keys = num_kv_heads * self.head_size;
        [self.num_heads * self.head_size, of_keys, num_kv_heads * self.value_size]
    }

    /// The heads of keys that the layer computes.
    pub(crate) fn num_cached_heads(&self) -> usize {
        if self.keys_of.is_some() { 0 } else { self.num_kv_heads }
    }
}

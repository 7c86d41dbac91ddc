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

/// The description of a model.
#[derive(Debug, Clone)]
pub struct Config {
    /// The value of `general.architecture`.
    pub architecture: String,
    /// The numbers of the state of a token.
    pub hidden_size: usize,
    /// The tokens of the longest text that it was made for.
    pub context_length: usize,
    /// The tokens above which a text has other rotations, from its first token on; `None` if all texts have the same.
    pub short_context: Option<usize>,
    /// The number of tokens that it knows.
    pub vocab_size: usize,
    /// The layers, in the order of a pass.
    pub layers: Vec<LayerConfig>,
    /// The number of layers after these, which are not computed.
    pub(crate) num_unused_layers: usize,
    /// The name of the tensor of the last norm, without `.weight`.
    pub(crate) norm: &'static str,
    /// The number that norms add to mean squares.
    pub(crate) epsilon: f32,
    /// The factor of embeddings.
    pub(crate) embedding_scale: f32,
    /// The factor of logits.
    pub(crate) logit_scale: f32,
    /// The bound that logits approach; `None` for none.
    pub(crate) logit_cap: Option<f32>,
    /// The size of the input that each layer has for a token; `None` if there is none.
    pub(crate) layer_input_size: Option<usize>,
    /// The number of streams of states, if there is more than one.
    pub(crate) num_streams: Option<usize>,
    /// The rotations of all layers; a layer has the index of its own one.
    pub(crate) rotations: Vec<Rotation>,
}

/// The description of a layer.
#[derive(Debug, Clone)]
pub struct LayerConfig {
    /// The part that brings the states of other tokens to a token.
    pub mixer: Mixer,
    /// The part that is computed for each token alone.
    pub feed_forward: FeedForward,
    /// The norms around both.
    pub(crate) norms: Norms,
    /// The factor of what the mixer and the feed-forward part add to the states.
    pub(crate) residual_scale: f32,
    /// True if a product of low rank is added after the mixer.
    pub(crate) has_low_rank: bool,
}

/// The norms around the parts of a layer, by the names of their tensors without `.weight`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Norms {
    /// The norm of the inputs of the mixer.
    pub(crate) before_mixer: Option<&'static str>,
    /// The norm of its outputs.
    pub(crate) after_mixer: Option<&'static str>,
    /// The norm of the inputs of the feed-forward part.
    pub(crate) before_feed_forward: Option<&'static str>,
    /// The norm of its outputs.
    pub(crate) after_feed_forward: Option<&'static str>,
}

impl Norms {
    /// Norms of inputs alone.
    pub(crate) const BEFORE: Self = Self {
        before_mixer: Some("attn_norm"),
        after_mixer: None,
        before_feed_forward: Some("ffn_norm"),
        after_feed_forward: None,
    };
    /// Norms of inputs and outputs.
    pub(crate) const AROUND: Self = Self {
        after_mixer: Some("post_attention_norm"),
        after_feed_forward: Some("post_ffw_norm"),
        ..Self::BEFORE
    };
    /// Norms of outputs alone.
    pub(crate) const AFTER: Self =
        Self { before_mixer: None, before_feed_forward: None, ..Self::AROUND };
}

/// The part of a layer that brings the states of other tokens to a token.
#[derive(Debug, Clone)]
pub enum Mixer {
    /// Attention to the tokens before.
    Attention(AttentionConfig),
    /// A convolution of the last tokens.
    ShortConvolution(ConvolutionConfig),
    /// A memory that each token changes.
    GatedDelta(DeltaConfig),
}

/// A convolution of each channel between two gates.
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionConfig {
    /// The number of inputs that an output depends on, the token's own one included.
    pub kernel_size: usize,
}

/// A gated delta net over the outputs of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct DeltaConfig {
    /// The number of inputs that an output of the convolution depends on, the token's own one included.
    pub kernel_size: usize,
    /// The heads and their sizes.
    pub(crate) memory: MemoryShape,
}

/// Attention to the tokens before.
#[derive(Debug, Clone)]
pub struct AttentionConfig {
    /// The number of heads of queries.
    pub num_heads: usize,
    /// The number of heads of keys and values, each of which several heads of queries share.
    pub num_kv_heads: usize,
    /// The size of queries and keys.
    pub head_size: usize,
    /// The size of values.
    pub value_size: usize,
    /// The factor of the products of queries and keys.
    pub(crate) scale: f32,
    /// The bound that these products approach; `None` for none.
    pub(crate) score_cap: Option<f32>,
    /// The number of tokens that a token sees, itself included; `None` for all.
    pub(crate) window: Option<usize>,
    /// The index in [`Config::rotations`]; `None` for heads that are not rotated.
    pub(crate) rotation: Option<usize>,
    /// The norms of queries and keys.
    pub(crate) head_norms: HeadNorms,
    /// The growth of queries with their position; `None` for none.
    pub(crate) temperature: Option<Temperature>,
    /// True if each head has one more score, of no token.
    pub(crate) has_sinks: bool,
    /// True if the outputs of each head are multiplied by logistic functions of as many numbers.
    pub(crate) has_gates: bool,
    /// True if values are divided by their root mean square; where a file has none, they are the keys before their norm.
    pub(crate) has_value_norms: bool,
    /// The index of the layer whose keys and values it attends to, an earlier one; `None` for its own.
    pub(crate) keys_of: Option<usize>,
}

/// A query is multiplied by `1 + scale * ln(1 + floor(position / length))`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Temperature {
    /// The factor of the logarithm.
    pub(crate) scale: f32,
    /// The tokens of a period, in which queries do not grow.
    pub(crate) length: usize,
}

/// The norms of queries and keys before their rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    /// No norm.
    None,
    /// One norm for each head.
    OfEach,
    /// One norm over all heads.
    OfAll,
}

/// The part of a layer that is computed for each token alone.
#[derive(Debug, Clone)]
pub enum FeedForward {
    /// A gated projection.
    Dense(DenseConfig),
    /// Several of them, of which each token takes some.
    Experts(ExpertsConfig),
    /// The sum of both, each with norms of its own; routers see the states before the part.
    DenseAndExperts(DenseConfig, ExpertsConfig),
}

/// A gated projection.
#[derive(Debug, Clone, Copy)]
pub struct DenseConfig {
    /// The number of gates.
    pub size: usize,
    /// The function of a gate.
    pub(crate) activation: Activation,
    /// The standard deviations above their mean below which gates are zero, and which are subtracted from others; `None`
    /// for gates as they are.
    pub(crate) cutoff: Option<f32>,
}

/// Dense feed-forward parts, of which each token takes some.
#[derive(Debug, Clone, Copy)]
pub struct ExpertsConfig {
    /// The number of experts that a router chooses from.
    pub number: usize,
    /// The size and the activation of each.
    pub expert: DenseConfig,
    /// The rule by which tokens choose and weigh them.
    pub routing: Routing,
    /// One more that all tokens take; `None` for none.
    pub(crate) shared: Option<SharedExpert>,
}

/// Weights of some experts by the logits of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// The number of experts that a token takes.
    pub num_used: usize,
    /// True if scores are logistic functions of the logits, and not their softmax.
    pub(crate) is_sigmoid: bool,
    /// The number that is added to the sum by which the weights of a token are divided; `None` for weights as they are.
    pub(crate) normalizes: Option<f32>,
    /// The factor of all weights.
    pub(crate) scale: f32,
}

/// An expert that all tokens take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedExpert {
    /// The number of its gates.
    pub(crate) size: usize,
    /// True if its weight is the logistic function of a logit, and not 1.
    pub(crate) has_gate: bool,
}

/// The function of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    /// The gate times its logistic function.
    Silu,
    /// GELU by its approximation with tanh.
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
            FeedForward::DenseAndExperts(dense, experts) => {
                (dense.activation, experts.expert.activation) = (activation, activation);
            }
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
            Mixer::ShortConvolution(convolution) => (hidden_size, convolution.kernel_size, None),
            Mixer::GatedDelta(DeltaConfig { kernel_size, memory }) => {
                (memory.num_channels(), *kernel_size, Some(*memory))
            }
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

//! Metadata of a model, and the plain decoder that families start from.

use super::config::{
    Activation, AttentionConfig, Config, DenseConfig, FeedForward, HeadNorms, LayerConfig, Mixer,
    Norms,
};
use super::rotation::{Pairs, Ramp, Rotation};
use crate::error::Result;
use crate::gguf::file::Gguf;
use crate::gguf::reader::Value;

/// The largest size of a layer: one that no file of today reaches is taken for damage.
const MAX_SIZE: usize = 1 << 24;
/// The most layers of a model.
const MAX_LAYERS: usize = 4096;

/// Names of tensors that [`Gguf::of_arrays`] adds; GGUF files do not have them. They have the angles of rotations, of all
/// layers and of those with windows.
pub(crate) const ANGLES: [&str; 2] = ["rope_angles.weight", "rope_angles_swa.weight"];

/// The tensor of divisors of the angles of all texts.
pub(crate) const FACTORS: &str = "rope_freqs.weight";
/// The tensor of divisors of the angles of texts within the short context.
pub(crate) const SHORT_FACTORS: &str = "rope_factors_short.weight";
/// The tensor of divisors of the angles of longer texts.
pub(crate) const LONG_FACTORS: &str = "rope_factors_long.weight";

/// A function that fills the description of a model from the metadata of its file.
pub(super) type Family = fn(&Fields<'_>) -> Result<Config>;

/// The metadata of an architecture.
pub(crate) struct Fields<'a> {
    /// The file.
    pub(crate) file: &'a Gguf,
    /// The prefix of its fields.
    pub(crate) architecture: &'a str,
}

impl Fields<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.file.metadata.get(&self.key(name))
    }

    /// A count, which must be in the file.
    pub(crate) fn count(&self, name: &str) -> Result<usize> {
        match self.file.count(&self.key(name)) {
            Some(count @ 1..=MAX_SIZE) => Ok(count),
            _ => Err(self.file.corrupt(format!("{} is not a number of this size", self.key(name)))),
        }
    }

    pub(crate) fn count_or(&self, name: &str, other: usize) -> Result<usize> {
        if self.value(name).is_none() { Ok(other) } else { self.count(name) }
    }

    /// A count, `None` where the file has none, or zero.
    pub(crate) fn maybe(&self, name: &str) -> Result<Option<usize>> {
        let is_zero = self.value(name).is_none() || self.file.count(&self.key(name)) == Some(0);
        (!is_zero).then(|| self.count(name)).transpose()
    }

    /// A count of each layer: one number, or a list of one for each.
    pub(crate) fn counts(&self, name: &str, num_layers: usize) -> Result<Vec<usize>> {
        let Some(Value::List(of_layers)) = self.value(name) else {
            return Ok(vec![self.count(name)?; num_layers]);
        };
        let count = |value: &Value| match value {
            Value::Int(number) => usize::try_from(*number).ok().filter(|&count| count <= MAX_SIZE),
            _ => None,
        };
        let counts: Option<Vec<_>> = of_layers.iter().map(count).collect();
        counts.filter(|counts| counts.len() == num_layers).ok_or_else(|| {
            self.file.corrupt(format!("{} is not one number for each layer", self.key(name)))
        })
    }

    #[expect(clippy::cast_possible_truncation, reason = "as models are computed")]
    pub(crate) fn number(&self, name: &str) -> Option<f32> {
        self.file.float(&self.key(name)).map(|number| number as f32)
    }

    /// A number of each layer.
    #[expect(clippy::cast_possible_truncation, reason = "as models are computed")]
    pub(crate) fn numbers(&self, name: &str, num_layers: usize) -> Result<Vec<f32>> {
        let number = |value: &Value| match value {
            Value::Float(number) => Some(*number as f32),
            _ => None,
        };
        let numbers: Option<Vec<_>> = match self.value(name) {
            Some(Value::List(of_layers)) => of_layers.iter().map(number).collect(),
            _ => None,
        };
        numbers.filter(|numbers| numbers.len() == num_layers).ok_or_else(|| {
            self.file.corrupt(format!("{} is not one number for each layer", self.key(name)))
        })
    }

    pub(crate) fn positive(&self, name: &str) -> Option<f32> {
        self.number(name).filter(|&number| number > 0.0)
    }

    /// The window of each layer. A file has a list, or the period of the layers without one; by default, this one.
    pub(crate) fn windows(&self, period: usize, num_layers: usize) -> Result<Vec<Option<usize>>> {
        let size = self.file.count(&self.key("attention.sliding_window")).filter(|&size| size > 0);
        let every = |period: usize| {
            (1..=num_layers).map(|layer| !layer.is_multiple_of(period)).collect::<Vec<_>>()
        };
        let is_local = match self.value("attention.sliding_window_pattern") {
            _ if size.is_none() => vec![false; num_layers],
            None => every(period),
            Some(Value::List(pattern)) if pattern.len() == num_layers => {
                let is_global = |value: &Value| matches!(value, Value::Bool(false) | Value::Int(0));
                pattern.iter().map(|value| !is_global(value)).collect()
            }
            Some(&Value::Int(period @ 1..)) => every(usize::try_from(period).unwrap_or(MAX_SIZE)),
            _ => return Err(self.file.corrupt("its pattern of windows is not one of its layers")),
        };
        Ok(is_local.into_iter().map(|is_local| size.filter(|_| is_local)).collect())
    }

    /// The description of a decoder without windows, with norms before attention and feed-forward parts.
    pub(crate) fn decoder(&self, pairs: Pairs) -> Result<Config> {
        let hidden_size = self.count("embedding_length")?;
        let num_layers = self.count("block_count")?;
        if num_layers > MAX_LAYERS {
            return Err(self.file.unsupported(format!("has more than {MAX_LAYERS} layers")));
        }
        let num_heads = self.counts("attention.head_count", num_layers)?;
        let num_kv_heads = match self.value("attention.head_count_kv") {
            None => num_heads.clone(),
            Some(_) => self.counts("attention.head_count_kv", num_layers)?,
        };
        // Files of experts alone may have none.
        let is_of_experts = matches!(self.value("feed_forward_length"), None | Some(Value::Int(0)))
            && self.maybe("expert_count")?.is_some();
        let sizes = if is_of_experts {
            vec![0; num_layers]
        } else {
            self.counts("feed_forward_length", num_layers)?
        };
        let most = num_heads.iter().copied().max().unwrap_or(1).max(1);
        let head_size = self.count_or("attention.key_length", hidden_size / most)?;
        let value_size = self.count_or("attention.value_length", head_size)?;
        let layer = |layer: usize| LayerConfig {
            mixer: Mixer::Attention(AttentionConfig {
                num_heads: num_heads[layer],
                num_kv_heads: num_kv_heads[layer],
                head_size,
                value_size,
                scale: self.number("attention.scale").unwrap_or(1.0 / (head_size as f32).sqrt()),
                score_cap: None,
                window: None,
                rotation: Some(0),
                head_norms: HeadNorms::None,
                temperature: None,
                has_sinks: false,
                has_gates: false,
                has_value_norms: false,
                keys_of: None,
            }),
            feed_forward: FeedForward::Dense(DenseConfig {
                size: sizes[layer],
                activation: Activation::Silu,
                cutoff: None,
            }),
            norms: Norms::BEFORE,
            residual_scale: 1.0,
            has_low_rank: false,
        };
        let epsilon = self.number("attention.layer_norm_rms_epsilon").unwrap_or(1e-6);
        let base = self.number("rope.freq_base").unwrap_or(10_000.0);
        let context_length = self.count_or("context_length", 2048)?;
        let rotation = self.rotation(pairs, head_size, base)?;
        let short = self.count_or("rope.scaling.original_context_length", context_length)?;
        Ok(Config {
            architecture: self.architecture.to_owned(),
            hidden_size,
            context_length,
            short_context: rotation.long_angles.is_some().then_some(short),
            vocab_size: 0,
            layers: (0..num_layers).map(layer).collect(),
            num_unused_layers: 0,
            norm: "output_norm",
            epsilon,
            embedding_scale: 1.0,
            logit_scale: 1.0,
            logit_cap: None,
            layer_input_size: None,
            num_streams: None,
            rotations: vec![rotation],
        })
    }

    /// The rotation of all layers, scaled as the file states.
    fn rotation(&self, pairs: Pairs, head_size: usize, base: f32) -> Result<Rotation> {
        let size = self.count_or("rope.dimension_count", head_size)?;
        if size > head_size || !size.is_multiple_of(2) {
            return Err(self.file.corrupt("it rotates more dimensions than heads have"));
        }
        let mut rotation = self.unscaled(pairs, size, base, ANGLES[0])?;
        rotation.long_angles = self.divided(&rotation.angles, LONG_FACTORS)?;
        for name in [FACTORS, SHORT_FACTORS] {
            if let Some(angles) = self.divided(&rotation.angles, name)? {
                rotation.angles = angles;
            }
        }
        if self.file.tensor(SHORT_FACTORS)?.is_some() && rotation.long_angles.is_none() {
            return Err(self.file.lacks(LONG_FACTORS));
        }
        rotation.magnitude = self.positive("rope.scaling.attn_factor").unwrap_or(1.0);
        let factor = self.positive("rope.scaling.factor").unwrap_or(1.0);
        match self.file.text(&self.key("rope.scaling.type")) {
            None | Some("none" | "longrope") => (),
            Some("linear" | "yarn") if rotation.long_angles.is_some() => {
                return Err(self.file.unsupported("scales rotations in two ways"));
            }
            Some("linear") => rotation.angles.iter_mut().for_each(|angle| *angle /= factor),
            Some("yarn") => {
                let length = self.count("rope.scaling.original_context_length")? as f32;
                let ramp = Ramp {
                    base,
                    length,
                    is_exact: self.architecture == "gpt-oss",
                    fast: self.positive("rope.scaling.yarn_beta_fast").unwrap_or(32.0),
                    slow: self.positive("rope.scaling.yarn_beta_slow").unwrap_or(1.0),
                };
                rotation.stretch(factor, ramp);
                let grown = |by: f32| 1.0 + 0.1 * by * factor.max(1.0).ln();
                let divisor = self.number("rope.scaling.yarn_log_multiplier").unwrap_or(0.0);
                rotation.magnitude *= grown(1.0) / grown(divisor);
            }
            Some(other) => {
                return Err(self.file.unsupported(format!("scales rotations by {other:?}")));
            }
        }
        Ok(rotation)
    }

    /// The angles divided by those of a tensor, if the file has it.
    fn divided(&self, angles: &[f32], name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.file.tensor(name)? else { return Ok(None) };
        if tensor.columns * tensor.rows != angles.len() {
            return Err(self.file.corrupt(format!("{name} is not of the size of a head")));
        }
        let divided = angles.iter().zip(tensor.numbers()).map(|(angle, factor)| angle / factor);
        Ok(Some(divided.collect()))
    }

    /// A rotation by powers of a base, or by the angles of a tensor.
    pub(crate) fn unscaled(
        &self,
        pairs: Pairs,
        size: usize,
        base: f32,
        given: &str,
    ) -> Result<Rotation> {
        let angle = |pair: usize| 1.0 / base.powf((2 * pair) as f32 / size as f32);
        let angles = match self.file.tensor(given)? {
            Some(given) => given.numbers(),
            None => (0..size / 2).map(angle).collect(),
        };
        if angles.len() != size / 2 {
            return Err(self.file.corrupt("its angles are not of the size of a head"));
        }
        Ok(Rotation { pairs, angles, long_angles: None, magnitude: 1.0 })
    }
}

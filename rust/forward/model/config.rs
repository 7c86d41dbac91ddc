//! Shapes and constants of a model, from the metadata of its file.

use crate::error::Result;
use crate::gguf::file::Gguf;
use crate::gguf::reader::Value;

/// Rotations of queries and keys by their position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rotation {
    /// A pair is two neighbors, or a dimension of the first half and its partner of the second one.
    pub(crate) is_of_neighbors: bool,
    /// Angles of position 1, one for each pair of dimensions.
    pub(crate) angles: Vec<f32>,
}

#[derive(Debug, Clone)]
pub struct Config {
    pub architecture: String,
    pub num_layers: usize,
    pub hidden_size: usize,
    pub feed_forward_size: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_size: usize,
    pub context_length: usize,
    pub vocab_size: usize,
    pub(crate) epsilon: f32,
    /// Gates are GELU, by its approximation with tanh, and not the logistic function times its input.
    pub(crate) is_gelu: bool,
    pub(crate) embedding_scale: f32,
    pub(crate) attention_scale: f32,
    pub(crate) logit_cap: Option<f32>,
    pub(crate) window: Option<usize>,
    /// For each layer, whether it sees the window only, and is rotated by the second of `rotations`.
    pub(crate) is_local: Vec<bool>,
    pub(crate) rotations: [Rotation; 2],
}

/// Layers of a size that no file of today reaches are taken for damage.
const MOST: usize = 1 << 24;

/// Tensors with the angles of rotations of all layers and of those with windows, which files have not.
pub(crate) const ANGLES: [&str; 2] = ["rope_angles.weight", "rope_angles_swa.weight"];

impl Config {
    pub(crate) fn read(file: &Gguf) -> Result<Self> {
        let architecture = file.text("general.architecture").unwrap_or_default().to_owned();
        let key = |name: &str| format!("{architecture}.{name}");
        let (is_of_neighbors, is_gemma) = match architecture.as_str() {
            "llama" => (true, false),
            "qwen2" | "qwen3" => (false, false),
            "gemma3" => (false, true),
            other => return Err(file.unsupported(format!("has the architecture {other:?}"))),
        };
        let count = |name: &str| match file.count(&key(name)) {
            Some(count @ 1..=MOST) => Ok(count),
            _ => Err(file.corrupt(format!("{} is not a number of this size", key(name)))),
        };
        let or = |name: &str, other: usize| match file.metadata.get(&key(name)) {
            None => Ok(other),
            Some(_) => count(name),
        };
        #[expect(clippy::cast_possible_truncation, reason = "as models are computed")]
        let number = |name: &str| file.float(&key(name)).map(|of| of as f32);
        let (hidden_size, num_heads) = (count("embedding_length")?, count("attention.head_count")?);
        let head_size = or("attention.key_length", hidden_size / num_heads)?;
        let num_layers = count("block_count")?;
        let num_kv_heads = or("attention.head_count_kv", num_heads)?;
        let window = file.count(&key("attention.sliding_window")).filter(|&window| window > 0);
        let reason = if num_layers > 4096 {
            Some("more than 4096 layers")
        } else if head_size == 0 || !head_size.is_multiple_of(16) || head_size > 1024 {
            Some("heads that are not a multiple of 16 in size")
        } else if !num_heads.is_multiple_of(num_kv_heads) {
            Some("heads that no number of them shares keys")
        } else if or("attention.value_length", head_size)? != head_size {
            Some("values of another size than keys")
        } else if or("rope.dimension_count", head_size)? != head_size {
            Some("heads that are rotated in part")
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(file.unsupported(format!("has {reason}")));
        }
        let scale = match file.text(&key("rope.scaling.type")) {
            None | Some("none") => 1.0,
            Some("linear") => number("rope.scaling.factor").unwrap_or(1.0),
            Some(other) => {
                return Err(file.unsupported(format!("scales rotations by {other:?}")));
            }
        };
        let factors = match file.tensor("rope_freqs.weight")? {
            Some(tensor) if tensor.columns * tensor.rows == head_size / 2 => tensor.numbers(),
            Some(_) => return Err(file.corrupt("rope_freqs.weight is not of the size of a head")),
            None => vec![1.0; head_size / 2],
        };
        let rotation = |angles: &str, base: f32, scale: f32| -> Result<Rotation> {
            let angle = |pair: usize| {
                let exponent = (2 * pair) as f32 / head_size as f32;
                1.0 / base.powf(exponent) / factors[pair] / scale
            };
            let angles = match file.tensor(angles)? {
                Some(given) => given.numbers(),
                None => (0..head_size / 2).map(angle).collect(),
            };
            if angles.len() != head_size / 2 {
                return Err(file.corrupt("its angles are not of the size of a head"));
            }
            Ok(Rotation { is_of_neighbors, angles })
        };
        let base = number("rope.freq_base").unwrap_or(10_000.0);
        let local_base = number("rope.freq_base_swa").unwrap_or(10_000.0);
        let rotations = [rotation(ANGLES[0], base, scale)?, rotation(ANGLES[1], local_base, 1.0)?];
        let is_local = match (is_gemma, file.metadata.get(&key("attention.sliding_window_pattern")))
        {
            _ if window.is_none() => vec![false; num_layers],
            (_, Some(Value::List(pattern))) if pattern.len() == num_layers => {
                let is_global = |of: &Value| matches!(of, Value::Bool(false) | Value::Int(0));
                pattern.iter().map(|of| !is_global(of)).collect()
            }
            (_, Some(Value::Int(every @ 1..))) => {
                every_but(num_layers, usize::try_from(*every).ok())
            }
            (true, None) => every_but(num_layers, Some(6)),
            (false, None) => vec![true; num_layers],
            _ => return Err(file.corrupt("its pattern of windows is not one of its layers")),
        };
        let rotations =
            if is_gemma { rotations } else { [rotations[0].clone(), rotations[0].clone()] };
        // Gemma 3 of 27 billion weights alone divides by another size than that of a head.
        let size = if is_gemma && num_layers == 62 { hidden_size / num_heads } else { head_size };
        Ok(Self {
            num_layers,
            hidden_size,
            feed_forward_size: count("feed_forward_length")?,
            num_heads,
            num_kv_heads,
            head_size,
            context_length: or("context_length", 2048)?,
            vocab_size: 0,
            epsilon: number("attention.layer_norm_rms_epsilon").unwrap_or(1e-6),
            is_gelu: is_gemma,
            embedding_scale: if is_gemma { (hidden_size as f32).sqrt() } else { 1.0 },
            attention_scale: number("attention.scale").unwrap_or(1.0 / (size as f32).sqrt()),
            logit_cap: number("final_logit_softcapping").filter(|&cap| cap > 0.0),
            window,
            is_local,
            rotations,
            architecture,
        })
    }

    /// The outputs of queries, keys and values.
    pub(crate) fn qkv_sizes(&self) -> [usize; 3] {
        [self.num_heads, self.num_kv_heads, self.num_kv_heads].map(|number| number * self.head_size)
    }
}

/// All layers but each sixth, or whichever it is.
fn every_but(num_layers: usize, period: Option<usize>) -> Vec<bool> {
    (1..=num_layers).map(|layer| !layer.is_multiple_of(period.unwrap_or(1))).collect()
}

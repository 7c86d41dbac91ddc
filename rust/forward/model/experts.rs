//! Mixtures of experts: feed-forward parts of which each token takes some.
//!
//! The tokens of a pass are gathered by expert, so that the weights of an expert are read once. Their outputs are
//! added in the order of experts: a token's sum is the same to the bit alone and among others.

use super::config::{DenseConfig, ExpertsConfig, Routing};
use super::linear::LinearLayer;
use super::loader::Loader;
use super::operations::{Operations, Scratch};
use crate::error::Result;
use crate::kernel::states::TokenTiles;

/// The weights of the experts of a layer.
#[derive(Debug)]
pub(crate) struct Experts {
    /// The rule by which logits become weights of experts.
    routing: Routing,
    /// From states to a logit for each expert.
    router: LinearLayer,
    /// The numbers that are added to scores to select experts, not to weigh them, `(num_experts,)`.
    selection_bias: Option<Vec<f32>>,
    /// The factors of the outputs of experts, `(num_experts,)`.
    scales: Option<Vec<f32>>,
    /// The experts of which each token takes some.
    routed: Vec<ExpertWeights>,
    /// One more that all tokens take.
    shared: Option<Shared>,
}

/// An expert that all tokens take.
#[derive(Debug)]
struct Shared {
    weights: ExpertWeights,
    /// From states to the logit of its weight; `None` for the weight 1.
    gate: Option<LinearLayer>,
}

/// The weights of an expert.
#[derive(Debug)]
struct ExpertWeights {
    /// The size and the activation.
    config: DenseConfig,
    /// From states to gates, and then to up projections.
    gate_up: LinearLayer,
    /// From gated up projections to states.
    down: LinearLayer,
}

/// The index of a token that takes an expert, or of an expert that a token takes, and the weight of the outputs.
type Taken = (usize, f32);

impl Routing {
    /// Returns the experts of a token and their weights, in the order of experts.
    fn route(&self, logits: &[f32], selection_bias: Option<&[f32]>) -> Vec<Taken> {
        let scores = if self.is_sigmoid {
            logits.iter().map(|&logit| sigmoid(logit)).collect()
        } else {
            softmax(logits)
        };
        let rank = |expert: usize| scores[expert] + selection_bias.map_or(0.0, |bias| bias[expert]);
        let mut chosen: Vec<usize> = (0..scores.len()).collect();
        // Of equal scores, the first experts: the sort is stable.
        chosen.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
        chosen.truncate(self.num_used);
        chosen.sort_unstable();
        let sum: f32 = chosen.iter().map(|&expert| scores[expert]).sum();
        let factor = self.normalizes.map_or(1.0, |epsilon| 1.0 / (sum + epsilon)) * self.scale;
        chosen.into_iter().map(|expert| (expert, scores[expert] * factor)).collect()
    }
}

impl Experts {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: &ExpertsConfig,
    ) -> Result<Self> {
        let &ExpertsConfig { number, expert, routing, shared } = config;
        let router = loader.linear(&[("ffn_gate_inp", number)], hidden)?;
        let selection_bias = loader.optional("exp_probs_b.bias", number)?;
        let scales = loader.optional("ffn_down_exps.scale", number)?;
        let routed = ExpertWeights::load_all(loader, hidden, expert, number)?;
        let shared = shared.map(|shared| -> Result<_> {
            let config = DenseConfig { size: shared.size, ..expert };
            let weights = ExpertWeights::load_shared(loader, hidden, config)?;
            let gate = [("ffn_gate_inp_shexp", 1)];
            let gate = shared.has_gate.then(|| loader.linear(&gate, hidden)).transpose()?;
            Ok(Shared { weights, gate })
        });
        let shared = shared.transpose()?;
        Ok(Self { routing, router, selection_bias, scales, routed, shared })
    }

    /// Writes the weighed sums of the outputs of each token's experts, of `scratch.normed` into `scratch.added`.
    pub(crate) fn forward(&self, ops: Operations, scratch: &mut Scratch) {
        self.route(ops, scratch);
        self.forward_routed(ops, scratch);
    }

    /// Writes the logits of the router, of `scratch.normed` into `scratch.logits`.
    pub(crate) fn route(&self, ops: Operations, scratch: &mut Scratch) {
        let Scratch { prepared, normed, logits, .. } = scratch;
        ops.linear(&self.router, normed, prepared, logits);
    }

    /// Computes [`forward`](Self::forward) by the logits in `scratch.logits`.
    pub(crate) fn forward_routed(&self, ops: Operations, scratch: &mut Scratch) {
        let Scratch { prepared, normed, added, gate_up, gated, logits, gathered, down, .. } =
            scratch;
        let size = self.router.num_inputs;
        added.clear();
        added.resize(normed.len(), 0.0);
        let mut by_expert = vec![Vec::new(); self.routed.len()];
        for (token, logits) in logits.chunks_exact(self.router.num_outputs).enumerate() {
            for (expert, weight) in self.routing.route(logits, self.selection_bias.as_deref()) {
                let scale = self.scales.as_ref().map_or(1.0, |scales| scales[expert]);
                by_expert[expert].push((token, weight * scale));
            }
        }
        if let Some(Shared { gate, .. }) = &self.shared {
            logits.clear();
            logits.resize(normed.len() / size, 1.0);
            if let Some(gate) = gate {
                ops.linear(gate, normed, prepared, logits);
                for logit in &mut *logits {
                    *logit = sigmoid(*logit);
                }
            }
            by_expert.push(logits.iter().copied().enumerate().collect());
        }
        let experts = self.routed.iter().chain(self.shared.iter().map(|shared| &shared.weights));
        for (expert, taken) in experts.zip(&by_expert).filter(|(_, taken)| !taken.is_empty()) {
            gathered.clear();
            for &(token, _) in taken {
                gathered.extend_from_slice(&normed[token * size..][..size]);
            }
            expert.forward(ops, gathered, [gate_up, gated, down], prepared);
            for (&(token, weight), down) in taken.iter().zip(down.chunks_exact(size)) {
                let added = &mut added[token * size..][..size];
                added.iter_mut().zip(down).for_each(|(added, down)| *added += weight * down);
            }
        }
    }
}

impl ExpertWeights {
    /// Reads the experts of a layer, which lie one after the other in each tensor.
    fn load_all(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: DenseConfig,
        number: usize,
    ) -> Result<Vec<Self>> {
        let size = config.size;
        let gate_up = if loader.has("ffn_gate_up_exps.weight") {
            vec![loader.matrices("ffn_gate_up_exps.weight", number, [2 * size, hidden])?]
        } else {
            vec![
                loader.matrices("ffn_gate_exps.weight", number, [size, hidden])?,
                loader.matrices("ffn_up_exps.weight", number, [size, hidden])?,
            ]
        };
        let down = loader.matrices("ffn_down_exps.weight", number, [hidden, size])?;
        let gate_bias = loader.biases("ffn_gate_exps.bias", number, size)?;
        let up_bias = loader.biases("ffn_up_exps.bias", number, size)?;
        let gate_up_bias = gate_bias.zip(up_bias);
        let down_bias = loader.biases("ffn_down_exps.bias", number, hidden)?;
        let expert = |expert: usize| {
            let parts: Vec<_> = gate_up.iter().map(|experts| experts[expert].clone()).collect();
            let mut gate_up = loader.pack(&parts, hidden);
            let mut down = loader.pack(&down[expert..=expert], size);
            gate_up.bias = gate_up_bias
                .as_ref()
                .map(|(gate, up)| [gate[expert].as_slice(), &up[expert]].concat());
            down.bias = down_bias.as_ref().map(|bias| bias[expert].clone());
            Self { config, gate_up, down }
        };
        Ok((0..number).map(expert).collect())
    }

    fn load_shared(loader: &mut Loader<'_>, hidden: usize, config: DenseConfig) -> Result<Self> {
        let size = config.size;
        let gate_up = [("ffn_gate_shexp", size), ("ffn_up_shexp", size)];
        Ok(Self {
            config,
            gate_up: loader.linear(&gate_up, hidden)?,
            down: loader.linear(&[("ffn_down_shexp", hidden)], size)?,
        })
    }

    /// Writes gates and up projections, their products, and the outputs of some tokens.
    fn forward(
        &self,
        ops: Operations,
        states: &[f32],
        [gate_up, gated, outputs]: [&mut Vec<f32>; 3],
        prepared: &mut TokenTiles,
    ) {
        ops.linear(&self.gate_up, states, prepared, gate_up);
        ops.gate(self.config.activation, gate_up, self.config.size, gated);
        ops.linear(&self.down, gated, prepared, outputs);
    }
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::blocks::BlockType;
    use crate::gguf::bytes::Bytes;
    use crate::gguf::file::Tensor;
    use crate::kernel::states::Activations;
    use crate::model::config::Activation;
    use crate::simd::instructions::Instructions;

    const ROUTING: Routing =
        Routing { num_used: 2, is_sigmoid: false, normalizes: Some(0.0), scale: 1.0 };

    #[test]
    fn routes_are_those_of_the_definitions() {
        let logits = [0.5, 2.0, -1.0, 1.0];
        let powers = logits.map(f32::exp);
        let of_all: f32 = powers.iter().sum();
        let of_two = powers[1] + powers[3];
        let sigmoids = logits.map(|logit| 1.0 / (1.0 + f32::exp(-logit)));
        let bias = [0.0, 0.0, 1.0, 0.0];
        let sigmoid = Routing { is_sigmoid: true, ..ROUTING };
        for (routing, bias, expected) in [
            (ROUTING, None, [(1, powers[1] / of_two), (3, powers[3] / of_two)]),
            (
                Routing { normalizes: None, ..ROUTING },
                None,
                [(1, powers[1] / of_all), (3, powers[3] / of_all)],
            ),
            (Routing { scale: 2.5, ..sigmoid }, Some(&bias[..]), {
                let sum = sigmoids[1] + sigmoids[2];
                [(1, 2.5 * sigmoids[1] / sum), (2, 2.5 * sigmoids[2] / sum)]
            }),
        ] {
            let taken = routing.route(&logits, bias);
            assert_eq!(taken.len(), 2);
            for (taken, expected) in taken.iter().zip(expected) {
                assert_eq!(taken.0, expected.0);
                assert!((taken.1 - expected.1).abs() < 1e-6);
            }
        }
        let ties = ROUTING.route(&[1.0; 5], None);
        assert_eq!(ties, [(0, 0.5), (1, 0.5)]);
        assert_eq!(ROUTING.route(&[f32::NAN; 5], None).len(), 2);
    }

    /// Random numbers between -1 and 1, the same in each run.
    fn numbers(seed: u32, number: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..number).map(|_| next()).collect()
    }

    fn tensor(kind: BlockType, seed: u32, rows: usize, columns: usize) -> Tensor {
        let numbers = numbers(seed, rows * columns);
        let bytes: Vec<u8> = if kind == BlockType::F32 {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        } else {
            // Q8_0: a half of 2^-7, then 32 numbers.
            let block = |numbers: &[f32]| {
                #[expect(clippy::cast_possible_truncation)]
                let whole = numbers.iter().map(|number| ((number * 127.0) as i8).cast_unsigned());
                [0, 0x20].into_iter().chain(whole).collect::<Vec<_>>()
            };
            numbers.chunks(32).flat_map(block).collect()
        };
        Tensor { kind, rows, columns, bytes: Bytes::new(bytes) }
    }

    const HIDDEN: usize = 64;
    const WIDE: usize = 32;

    fn linear(tensor: Tensor, isa: Instructions, bias: Option<Vec<f32>>) -> LinearLayer {
        let mut layer = LinearLayer::of(tensor, isa).unwrap();
        layer.bias = bias;
        layer
    }

    /// Random experts, and their matrices and biases as numbers.
    fn experts(kind: BlockType, isa: Instructions, seed: u32) -> (Experts, Vec<[Vec<f32>; 4]>) {
        let mut plain = Vec::new();
        let mut weights = |seed: u32| {
            let gate_up = tensor(kind, seed, 2 * WIDE, HIDDEN);
            let down = tensor(kind, seed + 1, HIDDEN, WIDE);
            let (gate_up_bias, down_bias) =
                (numbers(seed + 2, 2 * WIDE), numbers(seed + 3, HIDDEN));
            plain.push([
                gate_up.numbers(),
                gate_up_bias.clone(),
                down.numbers(),
                down_bias.clone(),
            ]);
            ExpertWeights {
                config: DenseConfig { size: WIDE, activation: Activation::Silu, cutoff: None },
                gate_up: linear(gate_up, isa, Some(gate_up_bias)),
                down: linear(down, isa, Some(down_bias)),
            }
        };
        let routed = (0..5).map(|expert| weights(seed + 10 * expert)).collect();
        let shared = weights(seed + 100);
        let router = tensor(BlockType::F32, seed + 200, 5, HIDDEN);
        let gate = tensor(BlockType::F32, seed + 201, 1, HIDDEN);
        plain.push([router.numbers(), gate.numbers(), numbers(seed + 202, 5), Vec::new()]);
        let experts = Experts {
            routing: ROUTING,
            router: linear(router, isa, Some(numbers(seed + 202, 5))),
            selection_bias: None,
            scales: None,
            routed,
            shared: Some(Shared { weights: shared, gate: Some(linear(gate, isa, None)) }),
        };
        (experts, plain)
    }

    fn product(matrix: &[f32], states: &[f64]) -> Vec<f64> {
        let rows = matrix.chunks_exact(states.len());
        rows.map(|row| row.iter().zip(states).map(|(a, b)| f64::from(*a) * b).sum()).collect()
    }

    fn plus(values: Vec<f64>, bias: &[f32]) -> Vec<f64> {
        values.into_iter().zip(bias).map(|(value, bias)| value + f64::from(*bias)).collect()
    }

    /// The definition for one token: all experts, those that it does not take with the weight zero.
    fn expected(plain: &[[Vec<f32>; 4]], states: &[f32]) -> Vec<f64> {
        let states: Vec<f64> = states.iter().copied().map(f64::from).collect();
        let (routed, [router, gate, router_bias, _]) = (&plain[..6], &plain[6]);
        let powers: Vec<f64> =
            plus(product(router, &states), router_bias).into_iter().map(f64::exp).collect();
        let mut sorted = powers.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let weight =
            |&power: &f64| if power >= sorted[1] { power / (sorted[0] + sorted[1]) } else { 0.0 };
        let shared = 1.0 / (1.0 + (-product(gate, &states)[0]).exp());
        let weights = powers.iter().map(weight).chain([shared]);
        let mut outputs = vec![0.0; HIDDEN];
        for ([gate_up, gate_up_bias, down, down_bias], weight) in routed.iter().zip(weights) {
            let both = plus(product(gate_up, &states), gate_up_bias);
            let gated: Vec<f64> = (0..WIDE)
                .map(|gate| both[gate] / (1.0 + (-both[gate]).exp()) * both[WIDE + gate])
                .collect();
            for (output, value) in outputs.iter_mut().zip(plus(product(down, &gated), down_bias)) {
                *output += weight * value;
            }
        }
        outputs
    }

    fn apply(
        experts: &Experts,
        isa: Instructions,
        states: &[f32],
        num_threads: usize,
        activations: Activations,
    ) -> Vec<f32> {
        let mut scratch = Scratch { normed: states.to_vec(), ..Scratch::default() };
        experts.forward(Operations { isa, activations, num_threads, epsilon: 0.0 }, &mut scratch);
        scratch.added
    }

    #[test]
    fn outputs_are_those_of_the_definition_alone_and_among_others() {
        for isa in Instructions::available() {
            for kind in [BlockType::F32, BlockType::Q8_0] {
                let (experts, plain) = experts(kind, isa, 7);
                let states = numbers(1, 20 * HIDDEN);
                let together = apply(&experts, isa, &states, 1, Activations::Float32);
                for (output, states) in together.chunks(HIDDEN).zip(states.chunks(HIDDEN)) {
                    for (output, expected) in output.iter().zip(expected(&plain, states)) {
                        assert!(
                            (f64::from(*output) - expected).abs() < 1e-4 * (1.0 + expected.abs())
                        );
                    }
                }
                for activations in [Activations::Float32, Activations::Int8] {
                    let together = apply(&experts, isa, &states, 3, activations);
                    let alone: Vec<f32> = states
                        .chunks(HIDDEN)
                        .flat_map(|states| apply(&experts, isa, states, 1, activations))
                        .collect();
                    assert_eq!(together, alone);
                }
            }
        }
    }
}

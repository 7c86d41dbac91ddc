//! Mixtures of experts: feed-forward parts of which each token takes some.
//!
//! The tokens of a pass are gathered by expert, so that the weights of an expert are read once. Their outputs are
//! added in the order of experts: a token's sum is the same to the bit alone and among others.

use super::config::{DenseConfig, ExpertsConfig, Routing};
use super::elementwise::Gated;
use super::layer::LinearLayer;
use super::load::Loader;
use super::pass::{PassOptions, Scratch, apply};
use super::self_attention::add_bias;
use crate::error::Result;
use crate::kernel::states::States;
use crate::simd::instructions::Instructions;

/// Those of a layer.
#[derive(Debug)]
pub(crate) struct Experts {
    routing: Routing,
    router: LinearLayer,
    router_bias: Option<Vec<f32>>,
    /// Is added to scores to select experts, not to weigh them.
    selection_bias: Option<Vec<f32>>,
    routed: Vec<ExpertWeights>,
    /// One more that all tokens take, and what gives the logit of its weight, if that is not 1.
    shared: Option<(ExpertWeights, Option<LinearLayer>)>,
}

#[derive(Debug)]
struct ExpertWeights {
    config: DenseConfig,
    /// Gates and what they let through.
    gate_up: LinearLayer,
    gate_up_bias: Option<Vec<f32>>,
    down: LinearLayer,
    down_bias: Option<Vec<f32>>,
}

/// A token that takes an expert, or an expert that a token takes, and the weight of the outputs.
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
        layer: usize,
    ) -> Result<Self> {
        let &ExpertsConfig { number, expert, routing, shared } = config;
        let of = |part: &str| format!("blk.{layer}.{part}");
        let router = [(of("ffn_gate_inp"), number)];
        let router_bias = loader.bias(&router)?;
        let router = loader.linear(&router, hidden)?;
        let selection_bias = loader.optional(&of("exp_probs_b.bias"), number)?;
        let routed = ExpertWeights::load_all(loader, hidden, expert, number, &of)?;
        let shared = shared.map(|shared| -> Result<_> {
            let config = DenseConfig { size: shared.size, ..expert };
            let expert = ExpertWeights::load_shared(loader, hidden, config, &of)?;
            let gate = [(of("ffn_gate_inp_shexp"), 1)];
            let gate = shared.has_gate.then(|| loader.linear(&gate, hidden)).transpose()?;
            Ok((expert, gate))
        });
        let shared = shared.transpose()?;
        Ok(Self { routing, router, router_bias, selection_bias, routed, shared })
    }

    /// Writes the weighed sums of the outputs of each token's experts, of `scratch.normed` into `scratch.added`.
    pub(crate) fn forward(
        &self,
        with: Instructions,
        options: PassOptions<'_>,
        scratch: &mut Scratch,
    ) {
        let Scratch { prepared, normed, added, gate_up, gated, logits, gathered, down, .. } =
            scratch;
        let size = self.router.num_inputs;
        added.clear();
        added.resize(normed.len(), 0.0);
        apply(&self.router, normed, options, prepared, logits);
        add_bias(self.router_bias.as_ref(), logits);
        let mut by_expert = vec![Vec::new(); self.routed.len()];
        for (token, logits) in logits.chunks_exact(self.router.num_outputs).enumerate() {
            for (expert, weight) in self.routing.route(logits, self.selection_bias.as_deref()) {
                by_expert[expert].push((token, weight));
            }
        }
        if let Some((_, gate)) = &self.shared {
            logits.clear();
            logits.resize(normed.len() / size, 1.0);
            if let Some(gate) = gate {
                apply(gate, normed, options, prepared, logits);
                for logit in &mut *logits {
                    *logit = sigmoid(*logit);
                }
            }
            by_expert.push(logits.iter().copied().enumerate().collect());
        }
        let experts = self.routed.iter().chain(self.shared.iter().map(|(expert, _)| expert));
        for (expert, taken) in experts.zip(&by_expert).filter(|(_, taken)| !taken.is_empty()) {
            gathered.clear();
            for &(token, _) in taken {
                gathered.extend_from_slice(&normed[token * size..][..size]);
            }
            expert.forward(with, options, gathered, [gate_up, gated, down], prepared);
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
        of: &dyn Fn(&str) -> String,
    ) -> Result<Vec<Self>> {
        let size = config.size;
        let weight = |part: &str| of(&format!("{part}.weight"));
        let gate_up = if loader.has(&weight("ffn_gate_up_exps")) {
            vec![loader.matrices(&weight("ffn_gate_up_exps"), number, [2 * size, hidden])?]
        } else {
            let mut both = Vec::new();
            for part in ["ffn_gate_exps", "ffn_up_exps"] {
                both.push(loader.matrices(&weight(part), number, [size, hidden])?);
            }
            both
        };
        let down = loader.matrices(&weight("ffn_down_exps"), number, [hidden, size])?;
        let mut biases = Vec::new();
        for (part, size) in
            [("ffn_gate_exps", size), ("ffn_up_exps", size), ("ffn_down_exps", hidden)]
        {
            biases.push(loader.biases(&of(&format!("{part}.bias")), number, size)?);
        }
        let expert = |expert: usize| {
            let parts: Vec<_> = gate_up.iter().map(|of| of[expert].clone()).collect();
            let bias = |of: usize| biases[of].as_ref().map(|of| of[expert].clone());
            Self {
                config,
                gate_up: loader.pack(&parts, hidden),
                gate_up_bias: bias(0).zip(bias(1)).map(|(gate, up)| [gate, up].concat()),
                down: loader.pack(&down[expert..=expert], size),
                down_bias: bias(2),
            }
        };
        Ok((0..number).map(expert).collect())
    }

    fn load_shared(
        loader: &mut Loader<'_>,
        hidden: usize,
        config: DenseConfig,
        of: &dyn Fn(&str) -> String,
    ) -> Result<Self> {
        let size = config.size;
        let gate_up = [(of("ffn_gate_shexp"), size), (of("ffn_up_shexp"), size)];
        let down = [(of("ffn_down_shexp"), hidden)];
        Ok(Self {
            config,
            gate_up: loader.linear(&gate_up, hidden)?,
            gate_up_bias: None,
            down: loader.linear(&down, size)?,
            down_bias: None,
        })
    }

    /// Writes gates and inputs, their products, and the outputs of some tokens.
    fn forward(
        &self,
        with: Instructions,
        options: PassOptions<'_>,
        states: &[f32],
        [gate_up, gated, outputs]: [&mut Vec<f32>; 3],
        prepared: &mut States,
    ) {
        apply(&self.gate_up, states, options, prepared, gate_up);
        add_bias(self.gate_up_bias.as_ref(), gate_up);
        gated.resize(gate_up.len() / 2, 0.0);
        let DenseConfig { size, activation, .. } = self.config;
        with.run(Gated { activation, inputs: gate_up, size, outputs: gated });
        apply(&self.down, gated, options, prepared, outputs);
        add_bias(self.down_bias.as_ref(), outputs);
    }
}

pub(crate) fn sigmoid(logit: f32) -> f32 {
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
            let block = |of: &[f32]| {
                #[expect(clippy::cast_possible_truncation)]
                let whole = of.iter().map(|number| ((number * 127.0) as i8).cast_unsigned());
                [0, 0x20].into_iter().chain(whole).collect::<Vec<_>>()
            };
            numbers.chunks(32).flat_map(block).collect()
        };
        Tensor { kind, rows, columns, bytes: Bytes::new(bytes) }
    }

    const HIDDEN: usize = 64;
    const WIDE: usize = 32;

    /// Random experts, and their matrices and biases as numbers.
    fn experts(kind: BlockType, with: Instructions, seed: u32) -> (Experts, Vec<[Vec<f32>; 4]>) {
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
                gate_up: LinearLayer::of(gate_up, with).unwrap(),
                gate_up_bias: Some(gate_up_bias),
                down: LinearLayer::of(down, with).unwrap(),
                down_bias: Some(down_bias),
            }
        };
        let routed = (0..5).map(|expert| weights(seed + 10 * expert)).collect();
        let shared = weights(seed + 100);
        let router = tensor(BlockType::F32, seed + 200, 5, HIDDEN);
        let gate = tensor(BlockType::F32, seed + 201, 1, HIDDEN);
        plain.push([router.numbers(), gate.numbers(), numbers(seed + 202, 5), Vec::new()]);
        let experts = Experts {
            routing: ROUTING,
            router: LinearLayer::of(router, with).unwrap(),
            router_bias: Some(numbers(seed + 202, 5)),
            selection_bias: None,
            routed,
            shared: Some((shared, Some(LinearLayer::of(gate, with).unwrap()))),
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
                .map(|of| both[of] / (1.0 + (-both[of]).exp()) * both[WIDE + of])
                .collect();
            for (output, value) in outputs.iter_mut().zip(plus(product(down, &gated), down_bias)) {
                *output += weight * value;
            }
        }
        outputs
    }

    fn apply(
        experts: &Experts,
        with: Instructions,
        states: &[f32],
        num_threads: usize,
        activations: Activations,
    ) -> Vec<f32> {
        let mut scratch = Scratch { normed: states.to_vec(), ..Scratch::default() };
        let options = PassOptions { activations, num_threads, ..PassOptions::default() };
        experts.forward(with, options, &mut scratch);
        scratch.added
    }

    #[test]
    fn outputs_are_those_of_the_definition_alone_and_among_others() {
        for with in Instructions::available() {
            for kind in [BlockType::F32, BlockType::Q8_0] {
                let (experts, plain) = experts(kind, with, 7);
                let states = numbers(1, 20 * HIDDEN);
                let together = apply(&experts, with, &states, 1, Activations::Float32);
                for (output, states) in together.chunks(HIDDEN).zip(states.chunks(HIDDEN)) {
                    for (output, expected) in output.iter().zip(expected(&plain, states)) {
                        assert!(
                            (f64::from(*output) - expected).abs() < 1e-4 * (1.0 + expected.abs())
                        );
                    }
                }
                for activations in [Activations::Float32, Activations::Int8] {
                    let together = apply(&experts, with, &states, 3, activations);
                    let alone: Vec<f32> = states
                        .chunks(HIDDEN)
                        .flat_map(|states| apply(&experts, with, states, 1, activations))
                        .collect();
                    assert_eq!(together, alone);
                }
            }
        }
    }
}

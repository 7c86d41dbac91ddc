//! From the estimated probability of a path to how often such paths are accepted.
//!
//! The likeliest of many estimates erred upwards. So what became of earlier paths corrects the probability
//! of a path: by monotone curves over its log odds, straight between knots, one for each sum of the
//! probabilities of a tree's nodes up to it. All curves learn from every node, those next to its sum more:
//! a change of domain is soon learned by all.

use crate::draft::token_tree::TokenTree;
use crate::portable_math::{exp, greater, ln, log2};
use crate::weights::adaptation::{TenantAdaptation, TenantWeights};
use crate::weights::initial::{CALIBRATION, NUM_KNOTS, NUM_SUMS, Weights};

/// The learning rate of all curves; below it, what is added for the curves next to a sum.
const RATE: f32 = 0.02;
const OWN_RATE: f32 = 0.01;

/// The last knot lies at this log odds, the first as far below 0.
const LIMIT: f32 = (NUM_KNOTS / 2) as f32;

/// The sum of the first curve; that of each later curve is twice as much.
const FIRST_SUM: f32 = 0.25;

/// The knots around a probability on the curves around a sum, and the share of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CalibrationPoint([(usize, f32); 4]);

impl CalibrationPoint {
    /// The corners of a node: `sum` is what the probabilities of the tree's nodes up to this one, itself
    /// included, add up to.
    pub(crate) fn of(prob: f32, sum: f32) -> Self {
        let prob = prob.clamp(1e-6, 1.0 - 1e-6);
        let log_odds = ln(prob / (1.0 - prob)).clamp(-LIMIT, LIMIT);
        let (knot, part) = between(log_odds + LIMIT, NUM_KNOTS);
        let doublings = log2(sum.max(FIRST_SUM) / FIRST_SUM);
        let (curve, above) = between(doublings, NUM_SUMS);
        let knot = curve * NUM_KNOTS + knot;
        Self([
            (knot, (1.0 - above) * (1.0 - part)),
            (knot + 1, (1.0 - above) * part),
            (knot + NUM_KNOTS, above * (1.0 - part)),
            (knot + NUM_KNOTS + 1, above * part),
        ])
    }

    /// The calibrated probability: never less for a likelier path.
    pub(crate) fn calibrated(&self, weights: TenantWeights<'_>) -> f32 {
        self.probability(|knot| weights.get(CALIBRATION.key(knot)))
    }

    fn probability(&self, of_knot: impl Fn(usize) -> f32) -> f32 {
        let odds: f32 = self.0.iter().map(|&(knot, part)| of_knot(knot) * part).sum();
        1.0 / (1.0 + exp(-odds.clamp(-20.0, 20.0)))
    }
}

/// The knot below a number, and how far on the way to the next knot the number is.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is limited, and there are few numbers"
)]
fn between(at: f32, num: usize) -> (usize, f32) {
    let below = (at as usize).min(num - 2);
    (below, (at - below as f32).min(1.0))
}

/// Moves the knots by what became of each node. Below a node that was not verified only misses would be known,
/// so nothing is learned there.
pub(crate) fn learn(
    start: &Weights,
    adaptation: &mut TenantAdaptation,
    tree: &TokenTree,
    num_verified: usize,
    points: &[CalibrationPoint],
    depths: &[u32],
    tokens: &[u32],
) {
    let mut outcomes: Vec<Option<bool>> = Vec::with_capacity(tree.len());
    let mut changes = [0.0; NUM_KNOTS];
    let known = TenantWeights { start, adaptation };
    let mut knots: [f32; NUM_SUMS * NUM_KNOTS] =
        std::array::from_fn(|knot| known.get(CALIBRATION.key(knot)));
    let before = knots;
    for (node, &parent) in tree.parents().iter().enumerate() {
        let outcome = match usize::try_from(parent) {
            Ok(parent) if parent >= num_verified => None,
            Ok(parent) if outcomes[parent] != Some(true) => outcomes[parent],
            // Where a request ended, the rest is not known.
            _ => {
                tokens.get(depths[node] as usize - 1).map(|&token| token == tree.token_ids()[node])
            }
        };
        outcomes.push(outcome);
        if let Some(is_hit) = outcome {
            let points = &points[node];
            let error = f32::from(u8::from(is_hit)) - points.probability(|knot| knots[knot]);
            for &(knot, part) in &points.0 {
                knots[knot] += OWN_RATE * error * part;
                changes[knot % NUM_KNOTS] += RATE * error * part;
            }
        }
    }
    for curve in knots.chunks_mut(NUM_KNOTS) {
        let mut least = f32::MIN;
        for (knot, change) in curve.iter_mut().zip(changes) {
            *knot = greater(*knot + change, least);
            least = *knot;
        }
    }
    for (knot, (after, before)) in knots.iter().zip(before).enumerate() {
        adaptation.add(CALIBRATION.key(knot), after - before);
    }
}

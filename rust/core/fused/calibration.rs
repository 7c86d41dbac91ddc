//! Calibration of path probabilities by the outcomes of earlier drafts.
//!
//! The tree takes the likeliest of many estimates, so its estimates are biased upward. Monotone,
//! piecewise linear curves over the log odds of a path correct them. There is one curve for each sum of
//! the probabilities of the tree up to the node. Each outcome updates all curves and, more strongly, the
//! curves next to its sum, so that all curves adapt quickly to a new domain.

use crate::draft::token_tree::TokenTree;
use crate::portable_math::{exp, greater, ln, log2};
use crate::weights::adaptation::{TenantAdaptation, TenantWeights};
use crate::weights::initial::{CALIBRATION, NUM_KNOTS, NUM_SUMS, Weights};

/// The learning rate of all curves.
const RATE: f32 = 0.02;
/// The additional learning rate of the two curves next to the sum of a node.
const OWN_RATE: f32 = 0.01;

/// The log odds of the last knot, and the negated log odds of the first.
const LIMIT: f32 = (NUM_KNOTS / 2) as f32;

/// The sum of the first curve. Each further curve doubles it.
const FIRST_SUM: f32 = 0.25;

/// A probability and a sum as bilinear weights of the four surrounding knots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CalibrationPoint([(usize, f32); 4]);

impl CalibrationPoint {
    /// Returns the point of a node. `sum` adds up the probabilities of the tree up to and including this
    /// node.
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

    /// Returns the calibrated probability, which is monotone in the uncalibrated one.
    pub(crate) fn calibrated(&self, weights: TenantWeights<'_>) -> f32 {
        self.probability(|knot| weights.get(CALIBRATION.key(knot)))
    }

    fn probability(&self, of_knot: impl Fn(usize) -> f32) -> f32 {
        let odds: f32 = self.0.iter().map(|&(knot, part)| of_knot(knot) * part).sum();
        1.0 / (1.0 + exp(-odds.clamp(-20.0, 20.0)))
    }
}

/// Returns the index of the knot below `at`, and the fraction of the distance to the next knot.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is limited, and there are few numbers"
)]
fn between(at: f32, num: usize) -> (usize, f32) {
    let below = (at as usize).min(num - 2);
    (below, (at - below as f32).min(1.0))
}

/// Updates the knots by the outcome of each node. A child of an unverified node is skipped, because only
/// its rejection could be observed.
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
            // The outcome after the end of the emitted tokens is unknown.
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

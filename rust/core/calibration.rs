//! How likely is a path that is held to be so likely?
//!
//! The likeliest of many estimates are those that erred upwards. So the probability of a path is
//! corrected by what became of earlier ones: a monotone curve over its log odds, straight between
//! knots, that follows the nodes which were accepted and which were not.

use crate::numeric::{exp, ln};
use crate::tree::TokenTree;
use crate::weights::{CALIBRATION, NUM_KNOTS, Weights};

const RATE: f32 = 0.02;

/// The log odds of the last knot; the first one is as far below 0.
#[expect(clippy::cast_precision_loss, reason = "there are few knots")]
const LIMIT: f32 = (NUM_KNOTS / 2) as f32;

/// The corrected probability: never less for a likelier path.
pub(crate) fn calibrated(weights: &Weights, prob: f32) -> f32 {
    let (knot, part) = place(prob);
    let knots = weights.table(CALIBRATION);
    probability(knots[knot] * (1.0 - part) + knots[knot + 1] * part)
}

/// The knot below a probability, and how far it is on the way to the next.
fn place(prob: f32) -> (usize, f32) {
    let odds = prob.clamp(1e-6, 1.0 - 1e-6);
    let odds = ln(odds / (1.0 - odds)).clamp(-LIMIT, LIMIT) + LIMIT;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it lies between 0 and the number of knots"
    )]
    let knot = (odds as usize).min(NUM_KNOTS - 2);
    #[expect(clippy::cast_precision_loss, reason = "there are few knots")]
    let part = odds - knot as f32;
    (knot, part)
}

fn probability(odds: f32) -> f32 {
    1.0 / (1.0 + exp(-odds.clamp(-20.0, 20.0)))
}

/// Learns from the nodes of a tree, given the tokens that came. `probs` are those before
/// calibration. Below a node that was not verified only misses would be known, so nothing is learned
/// there.
pub(crate) fn learn(
    weights: &mut Weights,
    tree: &TokenTree,
    num_verified: usize,
    probs: &[f32],
    depths: &[u32],
    tokens: &[u32],
) {
    let mut outcomes: Vec<Option<bool>> = Vec::with_capacity(tree.len());
    let knots = weights.table_mut(CALIBRATION);
    for (node, &parent) in tree.parents().iter().enumerate() {
        let outcome = match usize::try_from(parent) {
            Ok(parent) if parent >= num_verified => None,
            Ok(parent) if outcomes[parent] != Some(true) => outcomes[parent],
            // What was not written is not known, as where a request ended.
            _ => tokens
                .get(depths[node] as usize - 1)
                .map(|&token| token == tree.token_ids()[node]),
        };
        outcomes.push(outcome);
        if let Some(is_hit) = outcome {
            let (knot, part) = place(probs[node]);
            let odds = knots[knot] * (1.0 - part) + knots[knot + 1] * part;
            let change = RATE * (f32::from(u8::from(is_hit)) - probability(odds));
            knots[knot] += change * (1.0 - part);
            knots[knot + 1] += change * part;
        }
    }
    let mut least = f32::MIN;
    for knot in knots {
        *knot = knot.max(least);
        least = *knot;
    }
}

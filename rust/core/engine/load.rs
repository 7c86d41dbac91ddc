//! How many nodes of a batch's drafts pay, by what a step of the engine costs?

use crate::base::error::{Error, Result};
use crate::draft::token_tree::TokenTree;

/// A step with drafts must be predicted to be better by this factor: predictions are no better than that.
const MIN_SPEEDUP: f64 = 1.03;

/// The seconds of a step by its tokens: linear between points, level before the first, and as steep as
/// between the last two beyond.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCost {
    points: Vec<(f64, f64)>,
}

impl StepCost {
    /// Points of tokens and seconds, in any unit.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self> {
        let rises = |two: &[(f64, f64)]| two[0].0 < two[1].0 && two[0].1 <= two[1].1;
        let is_usable = |&(tokens, seconds): &(f64, f64)| {
            (0.0..1e12).contains(&tokens) && seconds > 0.0 && seconds.is_finite()
        };
        let is_curve = points.iter().all(is_usable) && points.windows(2).all(rises);
        if points.is_empty() || !is_curve {
            let reason =
                "must be points [tokens, seconds] with rising tokens, and seconds that do not fall";
            return Err(Error::invalid("step_cost", reason));
        }
        Ok(Self { points })
    }

    pub fn seconds(&self, num_tokens: f64) -> f64 {
        let end = self.points.partition_point(|point| point.0 <= num_tokens);
        let end = end.min(self.points.len() - 1);
        match self.points[..=end] {
            [.., a, b] => a.1 + (num_tokens - a.0) * slope(a, b),
            _ => self.points[0].1,
        }
    }

    /// The least probability with which a node could pay.
    pub(crate) fn least_gain(&self, num_rows: usize) -> f64 {
        let beyond = self.points.windows(2).enumerate();
        let num_rows = num_rows as f64;
        let is_last = |index: usize| index + 2 == self.points.len();
        let slopes = beyond.filter(|(index, two)| is_last(*index) || two[1].0 > num_rows);
        let least = slopes
            .map(|(_, two)| slope(two[0], two[1]))
            .reduce(f64::min);
        least.unwrap_or(0.0) * num_rows / self.seconds(num_rows)
    }

    /// The nodes of each draft with which most tokens are expected a second.
    pub(crate) fn num_worth(&self, trees: &[TokenTree]) -> Vec<usize> {
        let nodes = trees.iter().zip(0..).flat_map(|(tree, row)| {
            let probs = tree.probs().iter();
            probs
                .enumerate()
                .map(move |(node, &prob)| (prob, node, row))
        });
        let mut nodes: Vec<(f32, usize, usize)> = nodes.collect();
        // Parents come before their children, which are no likelier.
        nodes.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let num_rows = trees.len() as f64;
        let (mut tokens, mut seconds_of) = (num_rows, num_rows);
        let mut best = MIN_SPEEDUP * tokens / self.seconds(seconds_of);
        let mut num_best = 0;
        for (index, &(prob, ..)) in nodes.iter().enumerate() {
            tokens += f64::from(prob);
            seconds_of += 1.0;
            let speed = tokens / self.seconds(seconds_of);
            if speed > best {
                (best, num_best) = (speed, index + 1);
            }
        }
        let mut worth = vec![0; trees.len()];
        for &(_, _, row) in &nodes[..num_best] {
            worth[row] += 1;
        }
        worth
    }
}

fn slope(a: (f64, f64), b: (f64, f64)) -> f64 {
    (b.1 - a.1) / (b.0 - a.0)
}

/// A line through the latest steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepTimes {
    /// Of steps, older ones counting less: their number, tokens, seconds, tokens squared, tokens times
    /// seconds.
    sums: [f64; 5],
}

impl StepTimes {
    const DECAY: f64 = 0.98;
    const MIN_STEPS: f64 = 16.0;
    /// In squared tokens: a line through less is chance.
    const MIN_VARIANCE: f64 = 4.0;

    pub(crate) fn add(&mut self, num_tokens: usize, seconds: f64) {
        let tokens = num_tokens as f64;
        let new = [1.0, tokens, seconds, tokens * tokens, tokens * seconds];
        for (sum, new) in self.sums.iter_mut().zip(new) {
            *sum = Self::DECAY * *sum + new;
        }
    }

    /// 0 where none was measured.
    pub(crate) fn mean(&self) -> f64 {
        let [steps, _, seconds, ..] = self.sums;
        if steps > 0.0 { seconds / steps } else { 0.0 }
    }

    /// `None` while too few steps, or too similar ones, were measured.
    pub(crate) fn cost(&self) -> Option<StepCost> {
        let [steps, tokens, seconds, squares, products] = self.sums;
        let variance = squares / steps - (tokens / steps).powi(2);
        if steps < Self::MIN_STEPS || variance < Self::MIN_VARIANCE {
            return None;
        }
        let covariance = products / steps - tokens / steps * seconds / steps;
        let slope = (covariance / variance).max(0.0);
        let fixed = ((seconds - slope * tokens) / steps).max(1e-9);
        StepCost::new(vec![(0.0, fixed), (1.0, fixed + slope)]).ok()
    }
}

//! Reliability of the probabilities of a drafter, over all rows and of each row.

use crate::draft::token_tree::TokenTree;

/// The initial reliability. Cheap nodes are verified anyway, and where nodes are expensive, even
/// unverified first nodes yield evidence.
const INITIAL_RELIABILITY: f64 = 0.7;
/// The variance of the bias of a drafter before any outcome.
const DRAFTER_VARIANCE: f64 = 1.0;
/// The variance of the bias of a row before any outcome.
const ROW_VARIANCE: f64 = 0.5;
/// The initial factor of the odds of a row with penalties. A small model in vLLM accepted 20 % of the drafted tokens of
/// such rows, and 44 % of those of others.
const PENALIZED_ODDS: f64 = 1.0 / 3.0;
/// The fraction of what is known of a bias that is still known after a step.
const RETENTION: f64 = 0.99;
/// The upper bound of the factor of a probability.
const MAX_FACTOR: f64 = 2.0;
/// The rejections of sure nodes that are assumed before the first outcome.
const INITIAL_SURE_REJECTIONS: f64 = 2.0;
/// The outcomes of sure nodes that are assumed before the first outcome.
const INITIAL_SURE_OUTCOMES: f64 = 8.0;

/// A bias of log odds.
#[derive(Debug, Clone, Copy)]
struct Bias {
    /// Its expected value, in natural logarithms of odds.
    mean: f64,
    /// The variance of this value.
    variance: f64,
}

/// The reliability of a drafter over all rows: a bias of the log odds that a child of an accepted node is accepted too.
///
/// A rejection says little of a node that was likely, and nothing of its descendants. The children of verified nodes
/// count although they are not verified, because every step shows their outcome. So a drafter can gain reliability
/// although none of its nodes are verified.
///
/// The measured acceptance of the surest nodes is the upper bound of every probability: a copy of an earlier text may
/// end at any token, however much of it was accepted. A node is only reached if the nodes before it were accepted, so
/// the sure ones among them count as accepted (the predictive probability of Pólya's urn).
#[derive(Debug, Clone)]
pub(crate) struct Reliability {
    /// The bias that all rows share.
    bias: Bias,
    /// The number of rejections of the surest nodes; older ones count less.
    sure_rejections: f64,
    /// The number of outcomes of the surest nodes; older ones count less.
    sure_outcomes: f64,
}

/// The reliability of one row relative to that over all rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowReliability(Bias);

impl Bias {
    fn forget(&mut self, first: f64) {
        self.variance = kept(self.variance, first);
    }
}

impl Default for Reliability {
    fn default() -> Self {
        Self::from(INITIAL_RELIABILITY)
    }
}

impl From<f64> for Reliability {
    fn from(first: f64) -> Self {
        Self {
            bias: Bias { mean: first.ln(), variance: DRAFTER_VARIANCE },
            sure_rejections: INITIAL_SURE_REJECTIONS,
            sure_outcomes: INITIAL_SURE_OUTCOMES,
        }
    }
}

impl Default for RowReliability {
    fn default() -> Self {
        Self::of(false)
    }
}

impl RowReliability {
    pub(crate) fn of(is_penalized: bool) -> Self {
        let mean = if is_penalized { PENALIZED_ODDS.ln() } else { 0.0 };
        Self(Bias { mean, variance: ROW_VARIANCE })
    }
}

impl Reliability {
    /// Returns a reliability that leaves all corrections to the row.
    pub(crate) fn of_one_row() -> Self {
        let bias = Bias { mean: 0.0, variance: 0.0 };
        Self { bias, sure_rejections: 0.0, sure_outcomes: INITIAL_SURE_OUTCOMES }
    }

    fn odds(&self, row: RowReliability) -> f64 {
        (self.bias.mean + row.0.mean).exp()
    }

    /// Returns the largest factor that a probability of these rows may need, at least 1.
    pub(crate) fn max_factor(&self, rows: impl Iterator<Item = RowReliability>) -> f64 {
        rows.map(|row| self.odds(row)).fold(1.0, f64::max).min(MAX_FACTOR)
    }

    /// Returns the expected tokens of each node.
    pub(crate) fn gains(&self, row: RowReliability, tree: &TokenTree) -> Vec<f64> {
        let odds = self.odds(row);
        let (path_probs, sums) = path_probs(tree);
        let mut gains = Vec::with_capacity(path_probs.len());
        let mut all_num_sure = Vec::with_capacity(path_probs.len());
        for (&parent, &path_prob) in tree.parents().iter().zip(&path_probs) {
            let parent = usize::try_from(parent).ok();
            let (parent_prob, gain) = parent.map_or((1.0, 1.0), |at| (path_probs[at], gains[at]));
            let child_mass = conditional(sums[parent.map_or(0, |at| at + 1)], parent_prob);
            let num_sure = parent.map_or(0.0, |at| all_num_sure[at]);
            let max = self.max_prob(num_sure);
            all_num_sure.push(num_sure + f64::from(u8::from(child_mass > max)));
            let expected = self.expected(child_mass, max, odds);
            let child_prob =
                conditional(path_prob, parent_prob) * expected / child_mass.max(f64::MIN_POSITIVE);
            gains.push((gain * child_prob).min(with_odds(path_prob, odds.max(1.0))));
        }
        gains
    }

    /// Updates the reliability by drafts, whose first nodes were verified, and the emitted tokens.
    pub(crate) fn learn<'a>(
        &mut self,
        outcomes: impl Iterator<Item = (&'a mut RowReliability, TokenTree, usize, &'a [u32])>,
    ) {
        let mut outcomes = outcomes.filter(|outcome| !outcome.1.is_empty()).peekable();
        if outcomes.peek().is_some() {
            self.bias.forget(DRAFTER_VARIANCE);
            self.sure_rejections = kept(self.sure_rejections, INITIAL_SURE_REJECTIONS);
            self.sure_outcomes = kept(self.sure_outcomes, INITIAL_SURE_OUTCOMES);
        }
        for (row, tree, num_verified, emitted) in outcomes {
            row.0.forget(ROW_VARIANCE);
            let (path_probs, sums) = path_probs(&tree);
            // The children of each accepted node, verified or not, until one is rejected or was not verified.
            let (mut parent_prob, mut sum) = (1.0, sums[0]);
            let mut path = tree.follow(emitted).into_iter();
            for _ in emitted {
                if sum == 0.0 {
                    break;
                }
                let node = path.next();
                self.observe(row, conditional(sum, parent_prob), node.is_some());
                let Some(node) = node.filter(|&node| node < num_verified) else { break };
                (parent_prob, sum) = (path_probs[node], sums[node + 1]);
            }
        }
    }

    /// Returns the upper bound of a probability, after this number of sure nodes that were accepted.
    fn max_prob(&self, num_sure: f64) -> f64 {
        1.0 - self.sure_rejections / (self.sure_outcomes + num_sure)
    }

    /// Returns the probability that a child of an accepted node is accepted. Odds above 1 raise the bound `max` only as
    /// far as it rests on assumed outcomes: the observed ones, from which the odds were learned, already raised it.
    fn expected(&self, child_mass: f64, max: f64, odds: f64) -> f64 {
        let assumed = INITIAL_SURE_OUTCOMES / self.sure_outcomes;
        with_odds(child_mass.min(max), odds).min(with_odds(max, odds.powf(assumed)))
    }

    /// Learns whether any child of an accepted node was accepted.
    fn observe(&mut self, row: &mut RowReliability, child_mass: f64, was_accepted: bool) {
        let was_accepted = f64::from(u8::from(was_accepted));
        let max = self.max_prob(0.0);
        let expected = self.expected(child_mass, max, self.odds(*row));
        if child_mass > max {
            self.sure_rejections += 1.0 - was_accepted;
            self.sure_outcomes += 1.0;
        }
        let error = was_accepted - expected;
        let weight = expected * (1.0 - expected);
        let total = 1.0 + weight * (self.bias.variance + row.0.variance);
        for bias in [&mut self.bias, &mut row.0] {
            bias.mean += bias.variance / total * error;
            bias.variance -= bias.variance.powi(2) * weight / total;
        }
    }
}

/// Moves an estimate towards its initial value, as each step does.
fn kept(estimate: f64, first: f64) -> f64 {
    RETENTION * estimate + (1.0 - RETENTION) * first
}

/// The probability of a node, or of the children of one, once its parent is accepted.
fn conditional(path_prob: f64, parent_prob: f64) -> f64 {
    if path_prob < parent_prob { path_prob / parent_prob } else { 1.0 }
}

/// Returns a probability whose odds are multiplied.
fn with_odds(prob: f64, odds: f64) -> f64 {
    odds * prob / (odds * prob + 1.0 - prob)
}

/// Returns the probabilities of a tree, or 1 for each node if the drafter gives none, and their sum over the children of
/// the context and of each node.
fn path_probs(tree: &TokenTree) -> (Vec<f64>, Vec<f64>) {
    let has_none = tree.probs().iter().all(|&prob| prob == 0.0);
    let path_prob = |&prob: &f32| if has_none { 1.0 } else { f64::from(prob) };
    let path_probs: Vec<_> = tree.probs().iter().map(path_prob).collect();
    let mut sums = vec![0.0; path_probs.len() + 1];
    for (&parent, path_prob) in tree.parents().iter().zip(&path_probs) {
        sums[usize::try_from(parent + 1).unwrap_or(0)] += path_prob;
    }
    (path_probs, sums)
}

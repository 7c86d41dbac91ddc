//! Reliability of the probabilities of a drafter, over all rows and of each row.

use crate::draft::token_tree::TokenTree;

/// The initial reliability. Cheap nodes are verified anyway, and where nodes are expensive, even
/// unverified first nodes yield evidence.
const FIRST: f64 = 0.7;
/// The variances of the bias of a drafter and of a row before any outcome.
const OF_DRAFTER: f64 = 1.0;
const OF_ROW: f64 = 0.5;
/// The fraction of what is known of a bias that is still known after a step.
const KEPT: f64 = 0.99;
/// The upper bound of the factor of a probability.
const MOST: f64 = 2.0;
/// The number of rejections, and of outcomes, of sure nodes that is assumed before the first outcome.
const FIRST_SURE: (f64, f64) = (2.0, 8.0);

/// A bias of log odds.
#[derive(Debug, Clone, Copy)]
struct Bias {
    mean: f64,
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
    bias: Bias,
    /// The number of rejections, and of outcomes, of the surest nodes; older outcomes count less.
    sure: (f64, f64),
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
        Self::from(FIRST)
    }
}

impl From<f64> for Reliability {
    fn from(first: f64) -> Self {
        Self { bias: Bias { mean: first.ln(), variance: OF_DRAFTER }, sure: FIRST_SURE }
    }
}

impl Default for RowReliability {
    fn default() -> Self {
        Self(Bias { mean: 0.0, variance: OF_ROW })
    }
}

impl Reliability {
    fn odds(&self, row: RowReliability) -> f64 {
        (self.bias.mean + row.0.mean).exp()
    }

    /// Returns the largest factor that a probability of these rows may need, at least 1.
    pub(crate) fn most(&self, rows: impl Iterator<Item = RowReliability>) -> f64 {
        rows.map(|row| self.odds(row)).fold(1.0, f64::max).min(MOST)
    }

    /// Returns the expected tokens of each node.
    pub(crate) fn gains(&self, row: RowReliability, tree: &TokenTree) -> Vec<f64> {
        let odds = self.odds(row);
        let (promises, sums) = promises(tree);
        let mut gains = Vec::with_capacity(promises.len());
        let mut nums_sure = Vec::with_capacity(promises.len());
        for (&parent, &promise) in tree.parents().iter().zip(&promises) {
            let parent = usize::try_from(parent).ok();
            let (before, gain) = parent.map_or((1.0, 1.0), |at| (promises[at], gains[at]));
            let any = share(sums[parent.map_or(0, |at| at + 1)], before);
            let num_sure = parent.map_or(0.0, |at| nums_sure[at]);
            let most = self.most_prob(num_sure);
            nums_sure.push(num_sure + f64::from(u8::from(any > most)));
            let expected = scaled(any.min(most), odds);
            let one = share(promise, before) * expected / any.max(f64::MIN_POSITIVE);
            gains.push((gain * one).min(scaled(promise, odds.max(1.0))));
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
            self.bias.forget(OF_DRAFTER);
            let (rejected, all) = self.sure;
            self.sure = (kept(rejected, FIRST_SURE.0), kept(all, FIRST_SURE.1));
        }
        for (row, tree, num_verified, emitted) in outcomes {
            row.0.forget(OF_ROW);
            let (promises, sums) = promises(&tree);
            // The children of each accepted node, verified or not, until one is rejected or was not verified.
            let (mut before, mut sum) = (1.0, sums[0]);
            let mut path = tree.follow(emitted).into_iter();
            for _ in emitted {
                if sum == 0.0 {
                    break;
                }
                let node = path.next();
                self.note(row, share(sum, before), node.is_some());
                let Some(node) = node.filter(|&node| node < num_verified) else { break };
                (before, sum) = (promises[node], sums[node + 1]);
            }
        }
    }

    /// Returns the upper bound of a probability, after this number of sure nodes that were accepted.
    fn most_prob(&self, num_sure: f64) -> f64 {
        1.0 - self.sure.0 / (self.sure.1 + num_sure)
    }

    /// Takes whether any child of an accepted node was accepted.
    fn note(&mut self, row: &mut RowReliability, promise: f64, came: bool) {
        let came = f64::from(u8::from(came));
        let most = self.most_prob(0.0);
        let expected = scaled(promise.min(most), self.odds(*row));
        if promise > most {
            self.sure = (self.sure.0 + 1.0 - came, self.sure.1 + 1.0);
        }
        let error = came - expected;
        let weight = expected * (1.0 - expected);
        let total = 1.0 + weight * (self.bias.variance + row.0.variance);
        for bias in [&mut self.bias, &mut row.0] {
            bias.mean += bias.variance / total * error;
            bias.variance -= bias.variance.powi(2) * weight / total;
        }
    }
}

/// Returns what a step keeps of an estimate; the rest returns to its first value.
fn kept(estimate: f64, first: f64) -> f64 {
    KEPT * estimate + (1.0 - KEPT) * first
}

fn share(promise: f64, before: f64) -> f64 {
    if promise < before { promise / before } else { 1.0 }
}

/// Returns a probability whose odds are multiplied.
fn scaled(prob: f64, odds: f64) -> f64 {
    odds * prob / (odds * prob + 1.0 - prob)
}

/// Returns the probabilities of a tree, or 1 for each node if the drafter gives none, and their sum over the children of
/// the context and of each node.
fn promises(tree: &TokenTree) -> (Vec<f64>, Vec<f64>) {
    let has_none = tree.probs().iter().all(|&prob| prob == 0.0);
    let promise = |&prob: &f32| if has_none { 1.0 } else { f64::from(prob) };
    let promises: Vec<_> = tree.probs().iter().map(promise).collect();
    let mut sums = vec![0.0; promises.len() + 1];
    for (&parent, promise) in tree.parents().iter().zip(&promises) {
        sums[usize::try_from(parent + 1).unwrap_or(0)] += promise;
    }
    (promises, sums)
}

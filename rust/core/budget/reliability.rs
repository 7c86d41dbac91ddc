//! Reliability of the probabilities of a drafter, by depth and by row.

use crate::draft::token_tree::TokenTree;

/// The decay of the counts with each step: after fifty steps a third remains.
const DECAY: f64 = 0.98;
/// The number of promised tokens that the reliability of the previous depth counts as.
const PRIOR_TOKENS: f64 = 2.0;
/// The number of promised tokens of one row that the reliability over all rows counts as.
const PRIOR_TOKENS_OF_ROW: f64 = 4.0;
/// The initial reliability. Cheap nodes are verified anyway, and where nodes are expensive, even
/// unverified first nodes yield evidence.
const FIRST: f64 = 0.7;
/// The number of depths with their own counts. Deeper nodes use the last one.
const DEPTHS: usize = 16;
/// The upper bound of a factor.
const MOST: f64 = 2.0;

/// Promised tokens and accepted tokens, decayed.
#[derive(Debug, Clone, Copy, Default)]
struct AcceptanceCounts {
    promised: f64,
    came: f64,
}

impl AcceptanceCounts {
    fn decay(&mut self) {
        self.promised *= DECAY;
        self.came *= DECAY;
    }

    /// Returns the accepted fraction, with a prior of `prior_tokens` tokens.
    fn factor(self, prior: f64, prior_tokens: f64) -> f64 {
        let promised = self.promised + prior_tokens;
        let factor = (self.came + prior_tokens * prior) / promised;
        if promised > 0.0 { factor.min(MOST) } else { 0.0 }
    }
}

/// The accepted fraction of the promised tokens over all requests of a drafter.
///
/// It depends on the depth, because drafters other than `fused` are more overconfident the deeper they
/// draft. A depth with few counts follows the previous one. The counts include the unverified children of
/// verified nodes, whose outcome every step shows, so a drafter can gain reliability although none of its
/// nodes are verified.
#[derive(Debug, Clone)]
pub(crate) struct Reliability {
    /// The counts of each depth, starting at depth 1.
    depths: [AcceptanceCounts; DEPTHS],
    /// The factor of each depth, computed from `depths`.
    factors: [f64; DEPTHS],
}

impl Default for Reliability {
    fn default() -> Self {
        Self::from(FIRST)
    }
}

impl From<f64> for Reliability {
    fn from(first: f64) -> Self {
        let mut depths = [AcceptanceCounts::default(); DEPTHS];
        depths[0] = AcceptanceCounts { promised: PRIOR_TOKENS, came: PRIOR_TOKENS * first };
        Self { depths, factors: [first; DEPTHS] }
    }
}

/// The reliability of one row relative to that over all rows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowReliability(AcceptanceCounts);

impl RowReliability {
    fn factor(self) -> f64 {
        self.0.factor(1.0, PRIOR_TOKENS_OF_ROW)
    }
}

impl Reliability {
    /// Returns the largest factor that a probability of these rows may need, at least 1.
    pub(crate) fn most(&self, rows: impl Iterator<Item = RowReliability>) -> f64 {
        let of_rows = rows.map(RowReliability::factor).fold(0.0, f64::max);
        let of_depths = self.factors.iter().copied().fold(0.0, f64::max);
        (of_rows * of_depths).clamp(1.0, MOST)
    }

    /// Returns the expected tokens of each node.
    pub(crate) fn gains(&self, row: RowReliability, tree: &TokenTree) -> Vec<f64> {
        let factor = row.factor();
        let nodes = tree.depths().into_iter().zip(promises(tree));
        let gain = |(depth, promise): (u32, f64)| {
            promise * (factor * self.factors[index(depth)]).min(MOST)
        };
        nodes.map(gain).map(|gain| gain.min(1.0)).collect()
    }

    /// Updates the counts by drafts, whose first nodes were verified, and the emitted tokens.
    pub(crate) fn learn<'a>(
        &mut self,
        outcomes: impl Iterator<Item = (&'a mut RowReliability, TokenTree, usize, &'a [u32])>,
    ) {
        let mut outcomes = outcomes.filter(|outcome| !outcome.1.is_empty()).peekable();
        if outcomes.peek().is_none() {
            return;
        }
        self.depths.iter_mut().for_each(AcceptanceCounts::decay);
        for (row, tree, num_verified, emitted) in outcomes {
            self.note(row, &tree, num_verified, emitted);
        }
        let mut factor = self.depths[0].factor(0.0, 0.0);
        self.factors[0] = factor;
        for (counts, of_depth) in self.depths.iter().zip(&mut self.factors).skip(1) {
            factor = counts.factor(factor, PRIOR_TOKENS);
            *of_depth = factor;
        }
    }

    fn note(
        &mut self,
        row: &mut RowReliability,
        tree: &TokenTree,
        num_verified: usize,
        emitted: &[u32],
    ) {
        row.0.decay();
        let path = tree.follow(emitted);
        let nodes = tree.parents().iter().zip(tree.depths());
        for (node, ((&parent, depth), promise)) in nodes.zip(promises(tree)).enumerate() {
            if usize::try_from(parent).is_ok_and(|parent| parent >= num_verified) {
                continue;
            }
            let came = f64::from(u8::from(path.contains(&node)));
            let counts = &mut self.depths[index(depth)];
            counts.promised += promise;
            counts.came += came;
            row.0.promised += promise * self.factors[index(depth)];
            row.0.came += came;
        }
    }
}

fn index(depth: u32) -> usize {
    (depth as usize).min(DEPTHS) - 1
}

/// Returns the probabilities of a tree, or 1 for each node if the drafter gives none.
fn promises(tree: &TokenTree) -> impl Iterator<Item = f64> {
    let has_none = tree.probs().iter().all(|&prob| prob == 0.0);
    let promise = move |&prob: &f32| if has_none { 1.0 } else { f64::from(prob) };
    tree.probs().iter().map(promise)
}

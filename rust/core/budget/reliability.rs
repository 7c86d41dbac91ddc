//! The trust in the probabilities that a drafter promises, by depth and by row.

use crate::draft::token_tree::TokenTree;

/// The weight of a step in the next one: after fifty steps it is a third.
const DECAY: f64 = 0.98;
/// The trust in the depth above counts as much as the evidence of so many promised tokens.
const PRIOR_TOKENS: f64 = 2.0;
/// The trust in all rows counts as much as the evidence of so many promised tokens of one row.
const PRIOR_TOKENS_OF_ROW: f64 = 4.0;
/// The trust in an unknown drafter. Cheap nodes are verified all the same; where nodes are expensive, its
/// first tokens tell as much at no cost.
const FIRST: f64 = 0.3;
/// Deeper nodes are trusted as the deepest of these.
const DEPTHS: usize = 16;
/// No probability is raised by a larger factor.
const MOST: f64 = 2.0;

/// The tokens that were promised, and those that came.
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

    /// The share that came, where `prior_tokens` tokens count as if `prior` of them had come.
    fn factor(self, prior: f64, prior_tokens: f64) -> f64 {
        let promised = self.promised + prior_tokens;
        let factor = (self.came + prior_tokens * prior) / promised;
        if promised > 0.0 { factor.min(MOST) } else { 0.0 }
    }
}

/// The share of the expected tokens that came, over all requests of a drafter.
///
/// It is by depth, since drafters other than `fused` exaggerate more the deeper they draft; a depth with little
/// evidence is trusted as the one above it. The evidence is the verified nodes and their children, whose
/// outcome every step shows: so a drafter none of whose nodes are verified can win trust.
#[derive(Debug, Clone)]
pub(crate) struct Reliability {
    /// From depth 1 on.
    depths: [AcceptanceCounts; DEPTHS],
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

/// The same of one row, beside the trust in all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowReliability(AcceptanceCounts);

impl RowReliability {
    fn factor(self) -> f64 {
        self.0.factor(1.0, PRIOR_TOKENS_OF_ROW)
    }
}

impl Reliability {
    /// The largest factor by which a probability of these rows may be too small, at least 1.
    pub(crate) fn most(&self, rows: impl Iterator<Item = RowReliability>) -> f64 {
        let of_rows = rows.map(RowReliability::factor).fold(0.0, f64::max);
        let of_depths = self.factors.iter().copied().fold(0.0, f64::max);
        (of_rows * of_depths).clamp(1.0, MOST)
    }

    /// The tokens to expect of each node.
    pub(crate) fn gains(&self, row: RowReliability, tree: &TokenTree) -> Vec<f64> {
        let factor = row.factor();
        let nodes = tree.depths().into_iter().zip(promises(tree));
        let gain = |(depth, promise): (u32, f64)| {
            promise * (factor * self.factors[index(depth)]).min(MOST)
        };
        nodes.map(gain).map(|gain| gain.min(1.0)).collect()
    }

    /// Compares drafts, whose first nodes were verified, with what was emitted.
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

/// The probabilities of a tree; 1 for each node if the drafter gives none.
fn promises(tree: &TokenTree) -> impl Iterator<Item = f64> {
    let has_none = tree.probs().iter().all(|&prob| prob == 0.0);
    let promise = move |&prob: &f32| if has_none { 1.0 } else { f64::from(prob) };
    tree.probs().iter().map(promise)
}

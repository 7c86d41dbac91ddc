//! Best-first construction of the tree with the highest expected acceptance.
//!
//! The likeliest path outside the tree becomes its next node, and the continuations of that node are
//! looked up and mixed. Every prefix of the nodes is therefore the best tree of its size.

use crate::draft::session::DraftLimits;
use crate::draft::token_tree::{Source, TokenTree};
use crate::fused::arena::{DraftArena, NodePrediction};
use crate::fused::calibration::{self, CalibrationPoint};
use crate::fused::effort::SearchLimits;
use crate::fused::mixer::{self, MixerInputs};
use crate::fused::registry::REGISTRY;
use crate::fused::source::{DraftSource, NodeView, SkipGrams, SourceInputs};
use crate::memory::group_text::GroupText;
use crate::memory::token_counts::TokenCounts;
use crate::portable_math::min_finite;
use crate::weights::adaptation::TenantAdaptation;
use crate::weights::initial::Weights;
use specds_index::Datastore;

/// The number of context tokens that matches may use.
const TAIL: usize = 32;

/// The minimum path probability: trees of a few hundred nodes contain none below it.
const MIN_PROB: f32 = 1.0 / 2048.0;

/// A child with at least this conditional probability is always expanded, even on an improbable path.
/// This lets copies run to the size limit although they start from a one-token match.
const ALWAYS_EXPAND_PROB: f32 = 0.75;

/// The minimum path probability of a chain.
const CHAIN_MIN_PATH_PROB: f32 = 1.0 / 256.0;
/// The minimum probability of a child in a chain, relative to its parent.
const CHAIN_MIN_CHILD_PROB: f32 = 0.1;

/// The maximum number of candidates of a node.
const MAX_CANDIDATES: usize = 32;

/// The maximum number of candidates of a node in a chain, which continues with only one of them.
const MAX_CANDIDATES_OF_CHAIN: usize = 8;

/// The part of the last draft that emitted tokens follow.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// The expanded nodes that precede the tokens, the root first.
    expanded: Vec<usize>,
    /// The tree nodes that the tokens follow.
    pub(crate) nodes: Vec<usize>,
}

/// A node whose continuations were predicted.
#[derive(Debug, Clone, Default)]
struct Expanded {
    prediction: NodePrediction,
    /// The index of the node in the tree; -1 for the root.
    index: i32,
}

/// A path that may become the next node.
#[derive(Debug, Clone, Copy)]
struct Pending {
    prob: f32,
    token: u32,
    source: Source,
    /// The index of the parent among the expanded nodes.
    parent: usize,
}

/// The state of a growing tree, whose buffers are reused by the next draft.
#[derive(Debug, Clone)]
pub(crate) struct TreeBuilder {
    pub(crate) sources: Vec<Box<dyn DraftSource>>,
    /// The skip-grams of the root, for each source.
    root_skip_grams: Vec<SkipGrams>,
    /// The skip-grams of the node that is being expanded.
    node_skip_grams: SkipGrams,
    pub(crate) tree: TokenTree,
    /// The calibration point of each node.
    points: Vec<CalibrationPoint>,
    /// The path probability of each node before calibration.
    path_probs: Vec<f32>,
    /// The depth of each node.
    depths: Vec<u32>,
    /// The index of each node among the expanded ones, or `None` for a leaf.
    expansion_index: Vec<Option<usize>>,
    /// The sum of `path_probs`.
    sum: f32,
    expanded: Vec<Expanded>,
    /// The likeliest paths that still fit, in ascending order.
    pending: Vec<Pending>,
    /// The last tokens of the context, then the path to the node that is being expanded.
    tail: Vec<u32>,
    /// The number of context tokens in `tail`.
    tail_length: usize,
    arena: DraftArena,
}

impl TreeBuilder {
    /// Opens the sources of [`REGISTRY`] with a wanted label.
    pub(crate) fn new(is_wanted: impl Fn(Source) -> bool) -> Self {
        let rows = REGISTRY.iter().copied().filter(|&(label, _)| is_wanted(label));
        let sources: Vec<_> = rows.map(|(label, open)| open(label)).collect();
        Self {
            root_skip_grams: vec![SkipGrams::default(); sources.len()],
            node_skip_grams: SkipGrams::default(),
            sources,
            tree: TokenTree::default(),
            points: Vec::new(),
            path_probs: Vec::new(),
            depths: Vec::new(),
            expansion_index: Vec::new(),
            sum: 0.0,
            expanded: Vec::new(),
            pending: Vec::new(),
            tail: Vec::new(),
            tail_length: 0,
            arena: DraftArena::default(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tree.truncate(0);
        self.points.clear();
        self.path_probs.clear();
        self.depths.clear();
        self.expansion_index.clear();
        self.sum = 0.0;
        self.expanded.clear();
        self.pending.clear();
        self.tail.clear();
        self.arena.clear();
        for source in &mut self.sources {
            source.clear();
        }
    }

    pub(crate) fn grow(
        &mut self,
        inputs: &SourceInputs<'_>,
        counts: &TokenCounts,
        limits: DraftLimits,
    ) -> &TokenTree {
        let request = DraftRequest { inputs, counts, limits };
        self.arena.swap_slots();
        self.start(&request);
        while self.tree.len() < limits.max_nodes
            && let Some(&next) = self.pending.last()
        {
            let sum = self.sum + next.prob;
            let points = CalibrationPoint::of(next.prob, sum);
            // Curves of different sums may cross, so monotonicity is enforced.
            let prob = points.calibrated(inputs.weights);
            let prob = min_finite(prob, self.tree.probs().last().copied().unwrap_or(1.0));
            if prob < limits.min_prob {
                break;
            }
            self.pending.pop();
            self.sum = sum;
            self.points.push(points);
            self.add_node(next, prob);
            let surplus = self.pending.len().saturating_sub(self.remaining(&request));
            self.pending.drain(..surplus);
            self.expand_children(&request, self.tree.len() - 1);
        }
        self.arena.swap_slots();
        &self.tree
    }

    fn start(&mut self, request: &DraftRequest<'_>) {
        if !self.tail.is_empty() {
            self.clear();
        }
        let tokens = request.inputs.context.tokens();
        let start = tokens.len().saturating_sub(TAIL);
        self.tail.extend_from_slice(&tokens[start..]);
        self.tail_length = self.tail.len();
        if request.limits.max_nodes.min(request.limits.max_depth) > 0 && !self.tail.is_empty() {
            let remaining = self.remaining(request);
            let least = self.threshold(request, 1.0, remaining);
            self.expand(request, None, -1, 1.0, least);
            self.add_pending(0, 1.0, remaining);
        }
    }

    fn add_node(&mut self, next: Pending, prob: f32) {
        let parent = self.expanded[next.parent].index;
        let depth = usize::try_from(parent).map_or(0, |parent| self.depths[parent]);
        self.tree.push(next.token, parent, prob, next.source);
        self.path_probs.push(next.prob);
        self.depths.push(depth + 1);
        self.expansion_index.push(None);
    }

    /// Returns the number of pending paths that may become nodes. A chain has room for one: the best
    /// child of its last node.
    fn remaining(&self, request: &DraftRequest<'_>) -> usize {
        let remaining = request.limits.max_nodes - self.tree.len();
        if request.limits.is_chain { remaining.min(1) } else { remaining }
    }

    /// Expands a node if one of its children may be among the next nodes.
    fn expand_children(&mut self, request: &DraftRequest<'_>, node: usize) {
        let DraftRequest { inputs, limits, .. } = *request;
        let path_prob = self.path_probs[node];
        let best_child_prob = path_prob * inputs.search.child_ratio;
        let is_end = |datastore: &Datastore| self.tree.token_ids()[node] == datastore.separator();
        let can_gain = || {
            limits.min_prob <= 0.0
                || CalibrationPoint::of(best_child_prob, self.sum).calibrated(inputs.weights)
                    >= limits.min_prob
        };
        let remaining = self.remaining(request);
        let least = self.threshold(request, path_prob, remaining);
        if remaining == 0
            || inputs.datastore.is_some_and(is_end)
            || self.depths[node] as usize >= limits.max_depth
            || best_child_prob <= least
            || !can_gain()
        {
            return;
        }
        let parent = self.tree.parents()[node];
        let parent = usize::try_from(parent).map_or(Some(0), |parent| self.expansion_index[parent]);
        let number = self.expanded.len();
        let index = i32::try_from(node).unwrap_or(i32::MAX);
        self.expand(request, parent, index, path_prob, least);
        self.expansion_index[node] = Some(number);
        self.add_pending(number, path_prob, remaining);
    }

    /// Returns the probability that a child must exceed: that of the least likely path that still fits
    /// or, in a chain, a fixed floor.
    fn threshold(&self, request: &DraftRequest<'_>, prob: f32, remaining: usize) -> f32 {
        if request.limits.is_chain {
            CHAIN_MIN_PATH_PROB.min(prob * CHAIN_MIN_CHILD_PROB)
        } else {
            self.kth_best(remaining).unwrap_or(0.0)
        }
    }

    /// Returns the probability of the `k`-th best pending path, or `None` if there are fewer.
    fn kth_best(&self, k: usize) -> Option<f32> {
        let least = self.pending.len().checked_sub(k)?;
        self.pending.get(least).map(|least| least.prob)
    }

    /// Adds the children of a node that are among the `remaining` likeliest paths.
    fn add_pending(&mut self, parent: usize, prob: f32, remaining: usize) {
        let candidates = self.expanded[parent].prediction.candidates.clone();
        for candidate in &self.arena.candidates[candidates] {
            let new = Pending {
                prob: prob * candidate.prob,
                token: candidate.token,
                source: candidate.source,
                parent,
            };
            let fits = self.kth_best(remaining).is_none_or(|least| new.prob > least);
            // Foreign weights may yield NaN, which never fits.
            if !fits || new.prob < floor(prob) || new.prob.is_nan() {
                continue;
            }
            // The first of equal paths is taken first.
            let at = self.pending.partition_point(|other| other.prob < new.prob);
            if self.pending.len() < remaining {
                self.pending.insert(at, new);
            } else {
                self.pending.copy_within(1..at, 0);
                self.pending[at - 1] = new;
            }
        }
    }

    fn expand(
        &mut self,
        request: &DraftRequest<'_>,
        parent: Option<usize>,
        index: i32,
        prob: f32,
        threshold: f32,
    ) {
        let inputs = request.inputs;
        let min_prob = floor(prob).max(inputs.search.prune_ratio * threshold);
        self.set_tail(index);
        self.arena.start();
        let node = NodeView {
            parent,
            tail: &self.tail,
            path: &self.tail[self.tail_length..],
            prob,
            min_child_prob: min_prob / prob,
        };
        for (source, root_skip_grams) in self.sources.iter_mut().zip(&self.root_skip_grams) {
            source.add_experts(inputs, &node, &mut self.arena);
            let skip_grams = match (parent, node.path.last()) {
                (Some(parent), Some(&token)) if prob >= inputs.search.full_search_min_prob => {
                    self.node_skip_grams.clear();
                    source.collect_skip_grams(
                        parent,
                        token,
                        inputs.search,
                        &mut self.node_skip_grams,
                    );
                    &self.node_skip_grams
                }
                (None, _) => root_skip_grams,
                _ => continue,
            };
            if !skip_grams.tokens.is_empty()
                && let Some((kind, decay)) = source.skip_gram_kind(inputs)
            {
                skip_grams.add_expert(kind, decay, &mut self.arena);
            }
        }
        let frequencies = inputs.datastore.map(Datastore::log_frequencies);
        let search = inputs.search;
        let max_candidates = if request.limits.is_chain {
            MAX_CANDIDATES_OF_CHAIN
        } else {
            request.limits.max_nodes.max(search.min_candidates)
        };
        let mixer_inputs = MixerInputs {
            tail: &self.tail,
            uses: request.counts,
            uses_of_group: inputs.group.map(GroupText::uses),
            frequencies: frequencies.unwrap_or_default(),
            min_child_prob: node.min_child_prob,
            max_candidates: max_candidates.min(MAX_CANDIDATES),
        };
        let prediction = mixer::predict(inputs.weights, &mut self.arena, &mixer_inputs);
        self.expanded.push(Expanded { prediction, index });
    }

    fn set_tail(&mut self, index: i32) {
        self.tail.truncate(self.tail_length);
        let mut index = index;
        while let Ok(node) = usize::try_from(index) {
            self.tail.push(self.tree.token_ids()[node]);
            index = self.tree.parents()[node];
        }
        self.tail[self.tail_length..].reverse();
    }

    /// Returns the part of the tree that `tokens` follow.
    pub(crate) fn accepted(&self, tokens: &[u32]) -> Accepted {
        let nodes = self.tree.follow(tokens);
        let root = (!self.expanded.is_empty()).then_some(0);
        let expansion_index = nodes.iter().map(|&node| self.expansion_index[node]);
        let expanded = std::iter::once(root).chain(expansion_index).take(tokens.len());
        Accepted { expanded: expanded.flatten().collect(), nodes }
    }

    pub(crate) fn learn(
        &self,
        start: &Weights,
        adaptation: &mut TenantAdaptation,
        accepted: &Accepted,
        num_verified: usize,
        tokens: &[u32],
    ) {
        let (points, depths) = (&self.points, &self.depths);
        calibration::learn(start, adaptation, &self.tree, num_verified, points, depths, tokens);
        for (&number, &token) in accepted.expanded.iter().zip(tokens) {
            let prediction = &self.expanded[number].prediction;
            mixer::learn(adaptation, &self.arena, prediction, token);
        }
    }

    /// Collects the skip-grams of the next root, and clears the tree.
    pub(crate) fn advance(&mut self, search: SearchLimits, accepted: &Accepted, tokens: &[u32]) {
        if let Some((&token, before)) = tokens.split_last() {
            let node = accepted.expanded.get(before.len());
            for (source, root_skip_grams) in self.sources.iter().zip(&mut self.root_skip_grams) {
                root_skip_grams.clear();
                if let Some(&node) = node {
                    source.collect_skip_grams(node, token, search, root_skip_grams);
                }
            }
        }
        self.clear();
    }

    pub(crate) fn match_length(&self) -> usize {
        let lengths = self.sources.iter().map(|source| source.match_length());
        lengths.max().unwrap_or(0)
    }
}

/// Returns the minimum path probability of a child, given the path probability of its parent.
fn floor(prob: f32) -> f32 {
    MIN_PROB.min(ALWAYS_EXPAND_PROB * prob)
}

struct DraftRequest<'a> {
    inputs: &'a SourceInputs<'a>,
    counts: &'a TokenCounts,
    limits: DraftLimits,
}

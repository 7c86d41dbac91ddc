//! The growth of the tree of which the target model is expected to accept most.
//!
//! The tree grows best-first: the likeliest path that is not in it becomes its next node, and what may
//! follow that node is looked up and mixed. So every prefix of the nodes is the best tree of its size.

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

/// How many tokens before a path are matched.
const TAIL: usize = 32;

/// The least probability of a path: no tree of a few hundred nodes has a less likely one.
const MIN_PROB: f32 = 1.0 / 2048.0;

/// A child that is this likely after its parent follows however unlikely the path is: so a copy goes on for as
/// long as there is room, though it began with a match of one token.
const ALWAYS_EXPAND_PROB: f32 = 0.75;

/// A chain seldom goes on with a path less likely than the first, or than the second times its parent.
const CHAIN_MIN_PATH_PROB: f32 = 1.0 / 256.0;
const CHAIN_MIN_CHILD_PROB: f32 = 0.1;

/// At most this many of a node's likeliest tokens are corrected by the weights.
const MAX_CANDIDATES: usize = 32;

/// The same limit for a chain, which goes on with one of them.
const MAX_CANDIDATES_OF_CHAIN: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// The numbers of the expanded nodes that the tokens came after, the root first.
    expanded: Vec<usize>,
    /// The nodes of the tree that the tokens follow.
    pub(crate) nodes: Vec<usize>,
}

/// A node whose children were expanded for.
#[derive(Debug, Clone, Default)]
struct Expanded {
    prediction: NodePrediction,
    /// The number of its node in the tree; -1 for the root, the last accepted token.
    index: i32,
}

/// A path that may become the next node.
#[derive(Debug, Clone, Copy)]
struct Pending {
    prob: f32,
    token: u32,
    source: Source,
    /// The number of its parent among the expanded nodes.
    parent: usize,
}

/// The state of a growing tree, whose buffers are kept for the next draft.
#[derive(Debug, Clone)]
pub(crate) struct TreeBuilder {
    pub(crate) sources: Vec<Box<dyn DraftSource>>,
    /// For each source, the skip-grams of the root; below them, those of the node that is expanded.
    root_skip_grams: Vec<SkipGrams>,
    node_skip_grams: SkipGrams,
    pub(crate) tree: TokenTree,
    /// For each node: where its probability is calibrated, its path's probability before calibration, its
    /// depth, and its number among the expanded nodes.
    points: Vec<CalibrationPoint>,
    path_probs: Vec<f32>,
    depths: Vec<u32>,
    expansion_index: Vec<Option<usize>>,
    /// The sum of the path probabilities of all nodes.
    sum: f32,
    expanded: Vec<Expanded>,
    /// The likeliest paths that fit in the tree, the likeliest last.
    pending: Vec<Pending>,
    /// The last tokens of the context, and the path to the node that is expanded for.
    tail: Vec<u32>,
    tail_length: usize,
    arena: DraftArena,
}

impl TreeBuilder {
    /// Asks those sources of [`REGISTRY`] whose label is wanted.
    pub(crate) fn new(is_wanted: impl Fn(Source) -> bool) -> Self {
        let rows = REGISTRY.into_iter().filter(|&(label, _)| is_wanted(label));
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
            // Curves of different sums may cross.
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

    /// How many pending paths may become nodes. A chain goes on with one: the likeliest child of its last
    /// node.
    fn remaining(&self, request: &DraftRequest<'_>) -> usize {
        let remaining = request.limits.max_nodes - self.tree.len();
        if request.limits.is_chain { remaining.min(1) } else { remaining }
    }

    /// Asks for the children of a node, if one of them may be among the next nodes.
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

    /// The probability that a child must exceed. In a tree, that is the least likely path that still
    /// fits; in a chain, a
    /// fixed floor.
    fn threshold(&self, request: &DraftRequest<'_>, prob: f32, remaining: usize) -> f32 {
        if request.limits.is_chain {
            CHAIN_MIN_PATH_PROB.min(prob * CHAIN_MIN_CHILD_PROB)
        } else {
            self.kth_best(remaining).unwrap_or(0.0)
        }
    }

    /// The least probability of the `room` likeliest pending paths; `None` where there are fewer.
    fn kth_best(&self, room: usize) -> Option<f32> {
        let least = self.pending.len().checked_sub(room)?;
        self.pending.get(least).map(|least| least.prob)
    }

    /// Adds those children of a node that are among the `remaining` likeliest paths.
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
            // Weights from elsewhere may give NaN: that fits nowhere.
            if !fits || new.prob < floor(prob) || new.prob.is_nan() {
                continue;
            }
            // Of equal paths, the first is taken first.
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

    /// Finds the path that `tokens` follow.
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

    /// Keeps what the next draft needs of this one.
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

/// The least probability of a path that goes on with a path of this probability.
fn floor(prob: f32) -> f32 {
    MIN_PROB.min(ALWAYS_EXPAND_PROB * prob)
}

struct DraftRequest<'a> {
    inputs: &'a SourceInputs<'a>,
    counts: &'a TokenCounts,
    limits: DraftLimits,
}

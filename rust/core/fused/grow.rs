//! Which tree of at most `max_nodes` nodes is the target model expected to accept most of?
//!
//! Best-first: the likeliest path that is not in the tree yet becomes its next node, and what may
//! come after that node is looked up and mixed. The nodes are then the likeliest paths of all, and
//! every beginning of their order is the best tree of its size.

use crate::base::portable_math::min_finite;
use crate::draft::token_tree::{Source, TokenTree};
use crate::fused::calibration::{self, Corners};
use crate::fused::effort::Reading;
use crate::fused::evidence::{Evidence, Kind, MAX_DEPTH, NodePrediction, TableSource};
use crate::fused::mixer::{self, Request, TokenCounts};
use crate::fused::sources::corpus::{self, Passages};
use crate::fused::sources::skip_gram::Skips;
use crate::fused::sources::text::{self, Places, Reach};
use crate::fused::weights::Weights;
use crate::lookup::datastore::Datastore;
use crate::lookup::holdout::Holdout;
use crate::memory::history::History;

/// How many tokens before a path are matched.
const TAIL: usize = 16;

/// Paths less likely than this are not drafted: a tree of some hundred nodes has none.
const MIN_PROB: f32 = 1.0 / 2048.0;

/// Kinds of texts.
const TEXTS: [Kind; 3] = [Kind::Context, Kind::Memory, Kind::Predicted];

/// What a draft is made of.
pub(crate) struct Sources<'a> {
    pub(crate) reading: Reading,
    pub(crate) weights: &'a Weights,
    pub(crate) datastore: Option<&'a Datastore>,
    /// In the order of [`TEXTS`].
    pub(crate) texts: [Option<&'a History>; 3],
    pub(crate) tables: [Option<&'a dyn TableSource>; 3],
    pub(crate) tokens: &'a [u32],
    pub(crate) uses: &'a TokenCounts,
}

/// How large a tree may grow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_nodes: usize,
    /// The least calibrated probability of a node.
    pub(crate) min_gain: f32,
}

/// A node whose children were looked up.
#[derive(Debug, Clone, Default)]
struct Node {
    known: NodePrediction,
    /// Its index in the tree; -1 for the last accepted token.
    index: i32,
    passages: corpus::Found,
    places: [text::Found; 3],
}

/// A path that may become the next node.
#[derive(Debug, Clone, Copy)]
struct Pending {
    prob: f32,
    token: u32,
    source: Source,
    /// The looked-up node that it is a child of.
    node: usize,
}

/// One draft, and what it takes to learn from it. Its memory is kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct TreeBuilder {
    tree: TokenTree,
    /// Of each node of the tree: where its probability is calibrated, its depth, and which of the
    /// looked-up nodes it is.
    corners: Vec<Corners>,
    depths: Vec<u32>,
    looked_up: Vec<Option<usize>>,
    /// How many nodes the target model is asked about.
    num_verified: usize,
    /// What the nodes' probabilities add up to, before calibration.
    sum: f32,
    nodes: Vec<Node>,
    /// The likeliest ones that fit into the tree, the likeliest last.
    pending: Vec<Pending>,
    /// The last tokens, and the path to the node that is looked up.
    tail: Vec<u32>,
    tail_length: usize,
    /// The budget of the draft.
    max_nodes: usize,
    evidence: Evidence,
    passages: Passages,
    places: Places,
    /// Of the node that is looked up, and of the next draft's root.
    skips: Skips,
    pub(crate) skips_of_root: Skips,
}

impl TreeBuilder {
    pub(crate) fn clear(&mut self) {
        self.tree.clear();
        self.corners.clear();
        self.depths.clear();
        self.looked_up.clear();
        self.num_verified = 0;
        self.sum = 0.0;
        self.nodes.clear();
        self.pending.clear();
        self.tail.clear();
        self.evidence.clear();
        self.passages.clear();
        self.places.clear();
    }

    /// Drafts from now on as if a document were not in the datastore.
    pub(crate) fn hide(&mut self, hidden: Holdout) {
        self.passages.hidden = Some(hidden);
    }

    /// Drafts a tree.
    pub(crate) fn grow(&mut self, sources: &Sources<'_>, limits: Limits) -> &TokenTree {
        self.clear();
        self.max_nodes = limits.max_nodes;
        let tokens = sources.tokens;
        self.tail
            .extend_from_slice(&tokens[tokens.len().saturating_sub(TAIL)..]);
        self.tail_length = self.tail.len();
        if limits.max_nodes > 0 && !self.tail.is_empty() {
            self.look_up(sources, None, -1, 1.0, MIN_PROB);
            self.add_pending(0, 1.0, limits.max_nodes);
        }
        while let Some(next) = self.pending.pop() {
            let sum = self.sum + next.prob;
            let corners = Corners::of(next.prob, sum);
            // Curves of different sums may cross.
            let prob = corners.calibrated(sources.weights);
            let prob = min_finite(prob, self.tree.probs().last().copied().unwrap_or(1.0));
            if prob < limits.min_gain {
                break;
            }
            self.sum = sum;
            self.corners.push(corners);
            let index = self.add_node(next, prob);
            let free = limits.max_nodes - self.tree.len();
            let surplus = self.pending.len().saturating_sub(free);
            self.pending.drain(..surplus);
            if self.may_have_children(sources, next, limits, free) {
                let least = self.least_of(free).unwrap_or(0.0);
                let min_prob = MIN_PROB.max(sources.reading.prune_ratio * least);
                self.look_up(sources, Some(next.node), index, next.prob, min_prob);
                self.looked_up.pop();
                self.looked_up.push(Some(self.nodes.len() - 1));
                self.add_pending(self.nodes.len() - 1, next.prob, free);
            }
        }
        self.num_verified = self.tree.len();
        &self.tree
    }

    /// Only the first `num_nodes` nodes are verified.
    pub(crate) fn cut(&mut self, num_nodes: usize) {
        self.num_verified = self.num_verified.min(num_nodes);
    }

    fn add_node(&mut self, next: Pending, prob: f32) -> i32 {
        let parent = self.nodes[next.node].index;
        let depth = usize::try_from(parent).map_or(0, |parent| self.depths[parent]);
        let index = i32::try_from(self.tree.len()).unwrap_or(i32::MAX);
        self.tree.push(next.token, parent, prob, next.source);
        self.depths.push(depth + 1);
        self.looked_up.push(None);
        index
    }

    /// Whether a child of the last node is likely enough to become one of the last `free` nodes.
    fn may_have_children(
        &self,
        sources: &Sources<'_>,
        next: Pending,
        limits: Limits,
        free: usize,
    ) -> bool {
        let hoped = next.prob * sources.reading.child_ratio;
        let least = self.least_of(free);
        let is_end = sources
            .datastore
            .is_some_and(|datastore| next.token == datastore.separator());
        free > 0
            && !is_end
            && self.depths.last().is_some_and(|&depth| depth < MAX_DEPTH)
            && least.is_none_or(|least| hoped > least)
            && (limits.min_gain <= 0.0
                || Corners::of(hoped, self.sum).calibrated(sources.weights) >= limits.min_gain)
    }

    /// The probability of the least likely path that fits into `free` nodes, where no other does.
    fn least_of(&self, free: usize) -> Option<f32> {
        let least = self.pending.first().filter(|_| self.pending.len() == free);
        least.map(|least| least.prob)
    }

    /// Adds the children of a node that are among the `free` likeliest paths.
    fn add_pending(&mut self, node: usize, prob: f32, free: usize) {
        let candidates = self.nodes[node].known.candidates.clone();
        for candidate in &self.evidence.candidates[candidates] {
            let new = Pending {
                prob: prob * candidate.prob,
                token: candidate.token,
                source: candidate.source,
                node,
            };
            let least = self.least_of(free);
            let fits = least.is_none_or(|least| new.prob > least);
            // Weights from elsewhere may make of it what is no number: that fits nowhere.
            if !fits || new.prob < MIN_PROB || new.prob.is_nan() {
                continue;
            }
            // What comes later stands before its equals, and is taken after them.
            let at = self.pending.partition_point(|other| other.prob < new.prob);
            if self.pending.len() < free {
                self.pending.insert(at, new);
            } else {
                self.pending.copy_within(1..at, 0);
                self.pending[at - 1] = new;
            }
        }
    }

    /// Looks up what may come after a node of the tree, and mixes it.
    fn look_up(
        &mut self,
        sources: &Sources<'_>,
        parent: Option<usize>,
        index: i32,
        prob: f32,
        min_prob: f32,
    ) {
        self.set_tail(index);
        self.evidence.start();
        let parent = parent.map(|parent| self.nodes[parent].clone());
        let min_share = min_prob / prob;
        let passages = self.match_datastore(sources, parent.as_ref(), prob, min_share);
        let mut places = <[text::Found; 3]>::default();
        for (slot, text) in sources.texts.iter().enumerate() {
            if let Some(text) = text {
                let parent = parent.as_ref().map(|parent| &parent.places[slot]);
                let reach = Reach::of(parent.map(|_| prob), text, sources.reading);
                places[slot] = self.places.find(text, parent, &self.tail, reach);
                self.places
                    .add_experts(&places[slot], TEXTS[slot], &mut self.evidence);
            }
        }
        self.count_skips(parent.as_ref(), prob, sources.reading);
        if let [Some(context), ..] = sources.texts {
            let path = &self.tail[self.tail_length..];
            let anchors = &sources.weights.anchors;
            anchors.add_experts(context, path, &mut self.evidence);
        }
        for table in sources.tables.iter().flatten() {
            table.add_experts(&self.tail, &mut self.evidence);
        }
        let next_tokens = sources.datastore.map(Datastore::next_tokens);
        let frequencies = next_tokens.map_or(&[][..], |next_tokens| &next_tokens.frequencies);
        let reading = sources.reading;
        let max_candidates = self.max_nodes.max(reading.least_candidates);
        let request = Request {
            tail: &self.tail,
            uses: sources.uses,
            frequencies,
            min_share,
            max_candidates: max_candidates.min(reading.candidates),
        };
        let known = mixer::predict(sources.weights, &mut self.evidence, &request);
        self.nodes.push(Node {
            known,
            index,
            passages,
            places,
        });
    }

    fn count_skips(&mut self, parent: Option<&Node>, prob: f32, reading: Reading) {
        let Some((parent, &token)) = parent.zip(self.tail.last()) else {
            self.skips_of_root.add_experts(&mut self.evidence);
            return;
        };
        if prob >= reading.skip_from {
            let (passages, places) = (&self.passages, &self.places);
            skip(passages, places, parent, token, reading, &mut self.skips);
            self.skips.add_experts(&mut self.evidence);
        }
    }

    fn match_datastore(
        &mut self,
        sources: &Sources<'_>,
        parent: Option<&Node>,
        prob: f32,
        min_share: f32,
    ) -> corpus::Found {
        let (Some(datastore), Some(&token)) = (sources.datastore, self.tail.last()) else {
            return 0..0;
        };
        let found = if let Some(parent) = parent {
            let found = self.passages.follow(&parent.passages, token);
            if prob < sources.reading.requery_min_prob {
                found
            } else {
                let document = document_of(&self.tail, datastore);
                self.passages.refresh(datastore, document, &found)
            }
        } else {
            let document = document_of(&self.tail, datastore);
            self.passages.look_up(datastore, document, sources.reading)
        };
        let rank = self.passages.add_experts(&found, &mut self.evidence);
        self.passages
            .count_followers(datastore, token, rank, min_share, &mut self.evidence);
        found
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

    /// Learns from the tokens that came instead of the tree, or as it said.
    pub(crate) fn learn(&self, weights: &mut Weights, tokens: &[u32]) {
        let verified = self.num_verified;
        calibration::learn(
            weights,
            &self.tree,
            verified,
            &self.corners,
            &self.depths,
            tokens,
        );
        for (node, &token) in self.along(tokens).zip(tokens) {
            mixer::learn(weights, &self.evidence, &node.known, token);
        }
    }

    /// Makes `skips`, which are those of this draft's root, what the next one's is to know of the node
    /// before it, once `tokens` have come: how its matches go on where the last of them is another one.
    pub(crate) fn skip_after(&self, tokens: &[u32], reading: Reading, skips: &mut Skips) {
        let Some(&last) = tokens.last() else {
            return;
        };
        skips.clear();
        if let Some(node) = self.along(tokens).nth(tokens.len() - 1) {
            skip(&self.passages, &self.places, node, last, reading, skips);
        }
    }

    /// The looked-up nodes that these tokens came after, one by one, until one is no child of its node
    /// or was not looked up.
    fn along<'a>(&'a self, tokens: &'a [u32]) -> impl Iterator<Item = &'a Node> {
        let mut looked_up = Some(0);
        tokens.iter().map_while(move |&token| {
            let node = self.nodes.get(looked_up?)?;
            let child = self.child(node.index, token);
            looked_up = child.and_then(|child| self.looked_up[child]);
            Some(node)
        })
    }

    fn child(&self, parent: i32, token: u32) -> Option<usize> {
        let mut edges = self.tree.parents().iter().zip(self.tree.token_ids());
        edges.position(|edge| edge == (&parent, &token))
    }

    /// The sources of the nodes along `tokens`.
    pub(crate) fn accepted<'a>(&'a self, tokens: &'a [u32]) -> impl Iterator<Item = Source> + 'a {
        let mut index = -1;
        tokens.iter().map_while(move |&token| {
            let child = self.child(index, token)?;
            index = i32::try_from(child).ok()?;
            (child < self.num_verified).then(|| self.tree.sources()[child])
        })
    }

    /// The length of the longest match of the last token, in any source.
    pub(crate) fn match_length(&self) -> usize {
        self.nodes.first().map_or(0, |root| {
            let longest = root.places.iter().map(|found| self.places.longest(found));
            longest.fold(self.passages.longest(&root.passages), usize::max)
        })
    }

    /// Where in the memory the longest match of the last token goes on.
    pub(crate) fn place_in_memory(&self) -> Option<usize> {
        self.places.place_of_longest(&self.nodes.first()?.places[1])
    }
}

/// What of `tail` is of one document.
fn document_of<'a>(tail: &'a [u32], datastore: &Datastore) -> &'a [u32] {
    let separator = datastore.separator();
    let mut documents = tail.rsplit(|&token| token == separator);
    documents.next().unwrap_or_default()
}

/// What the matches of a node go on with after any other token than `token`.
fn skip(
    passages: &Passages,
    places: &Places,
    node: &Node,
    token: u32,
    reading: Reading,
    skips: &mut Skips,
) {
    skips.clear();
    passages.skip(&node.passages, token, &mut skips.datastore);
    for (found, skipped) in node.places.iter().zip(&mut skips.texts) {
        places.skip(found, token, reading.skipped_places, skipped);
    }
}

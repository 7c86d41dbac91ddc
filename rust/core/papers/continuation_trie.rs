//! Which continuations share their beginnings, and which beginnings are the most frequent?

use crate::base::portable_math::saturating_u32;
use crate::draft::token_tree::{Source, TokenTree};
use crate::lookup::continuations::Samples;

/// The most continuations of a trie.
pub(crate) const MAX_CONTINUATIONS: usize = 1 << 16;

/// The most tokens of a continuation.
pub(crate) const MAX_DEPTH: usize = 1 << 10;

/// The trie of some continuations, each node weighted with the number of continuations through it.
///
/// It is filled again and again: its memory is kept between drafts.
#[derive(Debug, Default, Clone)]
pub(crate) struct ContinuationTrie {
    /// Depth first, children by token: the order of nodes is the lexicographic order of paths.
    nodes: Vec<Node>,
    num_continuations: u32,
    /// The nodes of the path of the last continuation.
    open: Vec<u32>,
    ranking: Vec<u64>,
    /// The place of a node in the draft.
    places: Vec<i32>,
}

/// The parent of nodes of depth 1.
const ROOT: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Node {
    token: u32,
    parent: u32,
    depth: u32,
    count: u32,
}

impl ContinuationTrie {
    /// Replaces the trie by that of `samples`, at most [`MAX_CONTINUATIONS`] of at most
    /// [`MAX_DEPTH`] tokens. O(tokens), without a map: what shares a beginning stands together, so
    /// a path that was left never comes back.
    pub(crate) fn fill(&mut self, samples: &Samples) {
        self.nodes.clear();
        self.num_continuations = 0;
        let mut last: &[u32] = &[];
        for continuation in samples.iter() {
            let pairs = last.iter().zip(continuation);
            let shared = pairs.take_while(|(last, token)| last == token).count();
            self.close(shared);
            self.open(&continuation[shared..]);
            self.num_continuations += 1;
            last = continuation;
        }
        self.close(0);
    }

    /// Continues the open path. Until a node is closed, its count is the number of continuations
    /// before the first one through it.
    fn open(&mut self, tokens: &[u32]) {
        let mut parent = self.open.last().copied().unwrap_or(ROOT);
        for (depth, &token) in (saturating_u32(self.open.len()) + 1..).zip(tokens) {
            let node = saturating_u32(self.nodes.len());
            self.nodes.push(Node {
                token,
                parent,
                depth,
                count: self.num_continuations,
            });
            self.open.push(node);
            parent = node;
        }
    }

    /// Leaves the open path below its first `depth` nodes.
    fn close(&mut self, depth: usize) {
        for node in &self.open[depth..] {
            let count = &mut self.nodes[*node as usize].count;
            *count = self.num_continuations - *count;
        }
        self.open.truncate(depth);
    }

    /// The `max_nodes` most frequent nodes as a tree: count descending, then depth ascending, then path
    /// in lexicographic order, so a node comes after its parent. A node's probability is its share of the
    /// continuations. O(n + c log c) for c of n nodes.
    pub(crate) fn select(&mut self, max_nodes: usize) -> TokenTree {
        self.ranking.clear();
        self.ranking
            .extend((0..).zip(&self.nodes).map(|(index, node)| node.rank(index)));
        if max_nodes < self.ranking.len() {
            self.ranking.select_nth_unstable(max_nodes);
            self.ranking.truncate(max_nodes);
        }
        self.ranking.sort_unstable();
        self.draft()
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^24")]
    fn draft(&mut self) -> TokenTree {
        self.places.clear();
        self.places.resize(self.nodes.len(), -1);
        let mut tree = TokenTree::with_capacity(self.ranking.len());
        for (place, rank) in (0..).zip(&self.ranking) {
            let index = Node::index(*rank);
            let node = &self.nodes[index];
            let parent = self
                .places
                .get(node.parent as usize)
                .map_or(-1, |&place| place);
            let prob = node.count as f32 / self.num_continuations as f32;
            tree.push(node.token, parent, prob, Source::Datastore);
            self.places[index] = place;
        }
        tree
    }
}

impl Node {
    /// Count descending, then depth ascending, then index, packed into one number: it is compared
    /// in half the time of a tuple.
    fn rank(&self, index: u64) -> u64 {
        let rarity = MAX_CONTINUATIONS as u64 - u64::from(self.count);
        (rarity << Self::DEPTH_BITS | u64::from(self.depth)) << Self::INDEX_BITS | index
    }

    fn index(rank: u64) -> usize {
        (rank & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    const DEPTH_BITS: u32 = (MAX_DEPTH + 1).next_power_of_two().trailing_zeros();
    const INDEX_BITS: u32 = (MAX_CONTINUATIONS * MAX_DEPTH)
        .next_power_of_two()
        .trailing_zeros();
}

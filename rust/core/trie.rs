//! Which continuations share their beginnings, and which beginnings are the most frequent?

use std::cmp::Reverse;

use crate::datastore::Continuations;
use crate::tree::TokenTree;

/// The trie of some continuations, each node weighted with the number of continuations through it.
///
/// It is filled again and again: its memory is kept between drafts.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    /// Depth first, children by token: the order of nodes is the lexicographic order of paths.
    nodes: Vec<Node>,
    num_continuations: u32,
    /// The nodes of the path of the last continuation, from the root on.
    open: Vec<usize>,
    ranking: Vec<Rank>,
    /// The place of a node in the draft.
    places: Vec<i32>,
}

#[derive(Debug)]
struct Node {
    token: u32,
    parent: Option<u32>,
    depth: u32,
    count: u32,
}

/// Count descending, then depth ascending, then path: a node comes after its parent, whose count is
/// not smaller and whose depth is. So every beginning of the ranking is a tree.
type Rank = (Reverse<u32>, u32, usize);

impl Trie {
    /// Replaces the trie by that of `continuations`. O(tokens), without a map: they are sorted, so a
    /// path that one of them leaves never comes back.
    pub(crate) fn fill(&mut self, continuations: &Continuations) {
        self.nodes.clear();
        self.num_continuations = 0;
        for continuation in continuations.iter() {
            self.insert(continuation);
            self.num_continuations += 1;
        }
        self.close(0);
    }

    fn insert(&mut self, continuation: &[u32]) {
        let nodes = &self.nodes;
        let open = self.open.iter().map(|&node| nodes[node].token);
        let shared = open
            .zip(continuation)
            .take_while(|(open, token)| open == *token)
            .count();
        self.close(shared);
        for &token in &continuation[shared..] {
            let parent = self.open.last().map(|&parent| index_u32(parent));
            let depth = index_u32(self.open.len()) + 1;
            self.open.push(self.nodes.len());
            self.nodes.push(Node {
                token,
                parent,
                depth,
                count: self.num_continuations,
            });
        }
    }

    /// Leaves the path below its first `depth` nodes. Until then a node's count is the number of
    /// continuations before the first one through it.
    fn close(&mut self, depth: usize) {
        for node in self.open.drain(depth..) {
            let count = &mut self.nodes[node].count;
            *count = self.num_continuations - *count;
        }
    }

    /// The `max_nodes` most frequent nodes as a tree, most frequent first: count descending, then
    /// depth ascending, then path in lexicographic order. A node's probability is its share of the
    /// continuations. O(n + c log c) for c of n nodes.
    pub(crate) fn select(&mut self, max_nodes: usize) -> TokenTree {
        let rank = |(index, node): (usize, &Node)| (Reverse(node.count), node.depth, index);
        self.ranking.clear();
        self.ranking.extend(self.nodes.iter().enumerate().map(rank));
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
        for (place, &(Reverse(count), _, index)) in (0..).zip(&self.ranking) {
            let node = &self.nodes[index];
            let parent = node
                .parent
                .map_or(-1, |parent| self.places[parent as usize]);
            tree.push(
                node.token,
                parent,
                count as f32 / self.num_continuations as f32,
            );
            self.places[index] = place;
        }
        tree
    }
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("samples and their length are limited to 2^26 tokens together")
}

//! Drafts as trees of tokens.

use specds_index::{Error, Result};

macro_rules! sources {
    ($($(#[$doc:meta])* $source:ident = $name:literal,)*) => {
        /// The source of a drafted token.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(u8)]
        pub enum Source {
            #[default]
            $($(#[$doc])* $source,)*
        }

        impl Source {
            /// The names of the sources in lower case, by number.
            pub const NAMES: &[&str] = &[$($name),*];
        }
    };
}

// Snapshots and statistics have the number of a source, so new ones are appended.
sources! {
    /// A drafter outside this crate.
    Other = "other",
    /// The corpus of a datastore.
    Datastore = "datastore",
    /// The tokens of the request itself.
    Context = "context",
    /// Earlier requests of the tenant.
    Memory = "memory",
    /// A matrix of tri-grams.
    Trigram = "trigram",
    /// The target model's predictions at nodes that it has verified.
    Recycled = "recycled",
    /// The predicted output that the caller passed.
    PredictedOutput = "predicted_output",
    /// The target model's predictions after one token without a context.
    Bigram = "bigram",
    /// The target model's predictions without any context.
    Unigram = "unigram",
    /// An external proposal.
    Suggested = "suggested",
    /// Earlier requests of the same group.
    Group = "group",
}

/// A tree of drafted tokens as flat arrays. The parent -1 is the last accepted token. Mask, depths and
/// paths are derived views.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenTree {
    token_ids: Vec<u32>,
    parents: Vec<i32>,
    probs: Vec<f32>,
    sources: Vec<Source>,
}

impl TokenTree {
    /// Creates a tree from one element per node: the token, the index of the parent, and the estimated
    /// probability that the target model emits the whole path. All nodes have [`Source::Other`]. O(n log
    /// n).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if lengths differ, a parent is not an earlier node or -1, a probability is not in 0
    /// to 1, or siblings have the same token.
    pub fn new(token_ids: Vec<u32>, parents: Vec<i32>, probs: Vec<f32>) -> Result<Self> {
        if parents.len() != token_ids.len() {
            return Err(unequal("parents", parents.len(), token_ids.len()));
        }
        if probs.len() != token_ids.len() {
            return Err(unequal("probs", probs.len(), token_ids.len()));
        }
        for (node, &parent) in parents.iter().enumerate() {
            if parent < -1 || usize::try_from(parent).is_ok_and(|parent| parent >= node) {
                let reason = format!("must lie in -1..{node} at node {node}, not {parent}");
                return Err(Error::invalid("parents", reason));
            }
        }
        if let Some(prob) = probs.iter().find(|prob| !(0.0..=1.0).contains(*prob)) {
            let reason = format!("must lie in 0.0..=1.0, not {prob}");
            return Err(Error::invalid("probs", reason));
        }
        let mut edges: Vec<_> = parents.iter().zip(&token_ids).collect();
        edges.sort_unstable();
        if let Some(twins) = edges.windows(2).find(|edges| edges[0] == edges[1]) {
            let (parent, token) = twins[0];
            let reason = format!("must differ below a node, {token} comes twice below {parent}");
            return Err(Error::invalid("token_ids", reason));
        }
        Ok(Self { sources: vec![Source::Other; token_ids.len()], token_ids, parents, probs })
    }

    /// The maximum size of a proposal, because each node of a draft scans all its nodes.
    pub(crate) const MAX_SUGGESTED: usize = 1024;

    /// The probability that paths share. It is below 1, because a model may split a forced string into other tokens.
    const FORCED_PROB: f32 = 0.97;

    /// Returns the tree of paths that are equally likely, for [`Session::suggest`](crate::draft::Session): its
    /// probabilities are those after each parent. A path ends before a token that is not below `known_tokens`.
    #[must_use]
    pub fn of_paths(paths: &[Vec<u32>], known_tokens: u32) -> Self {
        let (mut tree, mut counts) = (Self::default(), Vec::new());
        let most = Self::MAX_SUGGESTED / paths.len().max(1);
        for path in paths {
            let mut parent = -1;
            for &token in path.iter().take(most).take_while(|&&token| token < known_tokens) {
                let node = tree.child(parent, token).unwrap_or(tree.len());
                if node == tree.len() {
                    tree.push(token, parent, 0.0, Source::Other);
                    counts.push(0.0);
                }
                counts[node] += 1.0;
                parent = i32::try_from(node).unwrap_or(i32::MAX);
            }
        }
        for node in 0..tree.len() {
            let of_parent = tree.parent(node).map_or(paths.len() as f32, |parent| counts[parent]);
            tree.probs[node] = Self::FORCED_PROB * counts[node] / of_parent;
        }
        tree
    }

    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            token_ids: Vec::with_capacity(capacity),
            parents: Vec::with_capacity(capacity),
            probs: Vec::with_capacity(capacity),
            sources: Vec::with_capacity(capacity),
        }
    }

    /// Removes all nodes from this index on, and retains the allocation.
    pub(crate) fn truncate(&mut self, num_nodes: usize) {
        self.token_ids.truncate(num_nodes);
        self.parents.truncate(num_nodes);
        self.probs.truncate(num_nodes);
        self.sources.truncate(num_nodes);
    }

    /// Sets the probability of each node. The caller maintains the invariants of [`TokenTree::new`].
    #[expect(clippy::cast_possible_truncation, reason = "probabilities")]
    pub(crate) fn set_probs(&mut self, probs: &[f64]) {
        self.probs = probs.iter().map(|&prob| prob as f32).collect();
    }

    /// Adds a node. The caller maintains the invariants of [`TokenTree::new`].
    pub(crate) fn push(&mut self, token: u32, parent: i32, prob: f32, source: Source) {
        self.token_ids.push(token);
        self.parents.push(parent);
        self.probs.push(prob);
        self.sources.push(source);
    }

    pub fn len(&self) -> usize {
        self.token_ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.token_ids.is_empty()
    }

    pub fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// The parent of each node; -1 is the last accepted token.
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// The probability of the path to each node.
    pub fn probs(&self) -> &[f32] {
        &self.probs
    }

    /// Returns the source of each node; of several, the one with the largest part of its probability.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The depth of each node; children of the last accepted token have depth 1. O(n).
    pub fn depths(&self) -> Vec<u32> {
        let mut depths: Vec<u32> = Vec::with_capacity(self.len());
        for node in 0..self.len() {
            depths.push(self.parent(node).map_or(0, |parent| depths[parent]) + 1);
        }
        depths
    }

    /// Returns the tree attention mask, row-major of shape `(n, n)`: true if node `column` is node `row`
    /// or an ancestor of it. O(n²).
    pub fn mask(&self) -> Vec<bool> {
        let n = self.len();
        let mut mask = vec![false; n * n];
        for row in 0..n {
            if let Some(parent) = self.parent(row) {
                mask.copy_within(parent * n..parent * n + row, row * n);
            }
            mask[row * n + row] = true;
        }
        mask
    }

    /// The nodes from a child of the last accepted token down to each leaf, by the index of the leaf. O(the
    /// sum of their lengths).
    pub fn paths(&self) -> Vec<Vec<usize>> {
        let mut is_leaf = vec![true; self.len()];
        for node in 0..self.len() {
            if let Some(parent) = self.parent(node) {
                is_leaf[parent] = false;
            }
        }
        let leaves = (0..self.len()).filter(|&node| is_leaf[node]);
        leaves.map(|leaf| self.path(leaf)).collect()
    }

    /// Returns the accepted nodes and the emitted tokens for a target model that predicts one token after
    /// the context, the first of `predictions`, and one after each node. The last emitted token is the
    /// model's own. O(n).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is one prediction more than nodes.
    pub fn accept(&self, predictions: &[u32]) -> Result<(Vec<usize>, Vec<u32>)> {
        let (found, expected) = (predictions.len(), self.len() + 1);
        if found != expected {
            let reason = format!(
                "must have one token for the context and each node: {expected}, not {found}"
            );
            return Err(Error::invalid("predictions", reason));
        }
        let (mut path, mut tokens) = (Vec::new(), vec![predictions[0]]);
        while let Some(node) = self.next(&path, tokens[path.len()]) {
            path.push(node);
            tokens.push(predictions[node + 1]);
        }
        Ok((path, tokens))
    }

    /// Returns the longest path whose tokens are a prefix of `text`. O(n).
    pub fn follow(&self, text: &[u32]) -> Vec<usize> {
        let mut path = Vec::new();
        for &token in text {
            let Some(node) = self.next(&path, token) else {
                break;
            };
            path.push(node);
        }
        path
    }

    fn next(&self, path: &[usize], token: u32) -> Option<usize> {
        let last = |&node: &usize| i32::try_from(node).unwrap_or(i32::MAX);
        self.child(path.last().map_or(-1, last), token)
    }

    /// Returns the child of a node, or of the context for -1, with this token. O(n).
    pub fn child(&self, parent: i32, token: u32) -> Option<usize> {
        // A child comes after its parent, so that following a path looks at each node once.
        let first = usize::try_from(parent.saturating_add(1)).unwrap_or(0);
        let is_it = |&node: &usize| (self.parents[node], self.token_ids[node]) == (parent, token);
        (first..self.len()).find(is_it)
    }

    /// Returns the first `max_nodes` of the nodes within `max_depth`. Drafters put the best nodes first,
    /// so this is the best tree of that size. O(n).
    #[must_use]
    pub fn limited(mut self, max_nodes: usize, max_depth: usize) -> Self {
        if self.len() > max_depth {
            self = self.up_to_depth(max_depth);
        }
        self.truncate(max_nodes);
        self
    }

    fn up_to_depth(&self, max_depth: usize) -> Self {
        let mut kept = Self::default();
        let mut new_places = vec![-1; self.len()];
        for (node, depth) in self.depths().into_iter().enumerate() {
            if depth as usize <= max_depth {
                new_places[node] = i32::try_from(kept.len()).unwrap_or(i32::MAX);
                let parent = self.parent(node).map_or(-1, |parent| new_places[parent]);
                kept.push_of(self, node, parent);
            }
        }
        kept
    }

    /// Returns the nodes before the first one whose token is outside a vocabulary. O(n).
    #[must_use]
    pub fn known(mut self, vocab_size: u32) -> Self {
        let tokens = self.token_ids.iter();
        self.truncate(tokens.take_while(|&&token| token < vocab_size).count());
        self
    }

    /// Removes nodes and those below them, shares their probability among their siblings in proportion, and
    /// returns the `max_nodes` likeliest of the others, best first. O(n log n).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `removed` has an element for each node.
    pub fn pruned(&self, removed: &[bool], max_nodes: usize) -> Result<Self> {
        /// The least sum by which siblings are divided, and the most that a share may raise one to.
        const LEAST: f32 = 0.1;
        const MOST: f32 = 0.99;
        if removed.len() != self.len() {
            return Err(unequal("removed", removed.len(), self.len()));
        }
        let share = |node: usize| {
            let of_parent = self.parent(node).map_or(1.0, |parent| self.probs[parent]);
            if of_parent > 0.0 { (self.probs[node] / of_parent).min(1.0) } else { 0.0 }
        };
        let mut left = vec![1.0; self.len() + 1];
        for node in (0..self.len()).filter(|&node| removed[node]) {
            left[self.parent(node).map_or(0, |parent| parent + 1)] -= share(node);
        }
        // The probability of each node after its removed siblings; `None` if it goes.
        let mut probs: Vec<Option<f32>> = Vec::with_capacity(self.len());
        for (node, &is_removed) in removed.iter().enumerate() {
            let parent = self.parent(node);
            let above = parent.map_or(Some(1.0), |parent| probs[parent]);
            let left = left[parent.map_or(0, |parent| parent + 1)];
            let (share, of_left) = (share(node), f32::max(left, LEAST));
            let prob = above.map(|above| above * (share / of_left).min(share.max(MOST)));
            probs.push(prob.filter(|_| !is_removed));
        }
        let mut order: Vec<(usize, f32)> =
            probs.iter().enumerate().filter_map(|(node, prob)| Some((node, (*prob)?))).collect();
        // A parent is at least as likely as its children, and a stable sort leaves it before them.
        order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        order.truncate(max_nodes);
        let mut places = vec![-1; self.len()];
        let mut kept = Self::with_capacity(order.len());
        for (place, (node, prob)) in (0..).zip(order) {
            places[node] = place;
            let parent = self.parent(node).map_or(-1, |parent| places[parent]);
            kept.push(self.token_ids[node], parent, prob, self.sources[node]);
        }
        Ok(kept)
    }

    /// Returns the path with the largest sum of probabilities; of equal ones the longest, then the first.
    /// Without probabilities, this is the longest path. O(n).
    #[must_use]
    pub fn best_chain(&self) -> Self {
        let mut sums: Vec<f32> = Vec::with_capacity(self.len());
        for node in 0..self.len() {
            sums.push(self.parent(node).map_or(0.0, |parent| sums[parent]) + self.probs[node]);
        }
        let depths = self.depths();
        let order = |&a: &usize, &b: &usize| {
            let sums = sums[a].total_cmp(&sums[b]);
            sums.then(depths[a].cmp(&depths[b]))
        };
        let best = (0..self.len()).rev().max_by(order);
        let mut chain = Self::default();
        for (place, node) in (-1..).zip(best.map_or(Vec::new(), |best| self.path(best))) {
            chain.push_of(self, node, place);
        }
        chain
    }

    fn push_of(&mut self, other: &Self, node: usize, parent: i32) {
        let (token, prob) = (other.token_ids[node], other.probs[node]);
        self.push(token, parent, prob, other.sources[node]);
    }

    fn parent(&self, node: usize) -> Option<usize> {
        usize::try_from(self.parents[node]).ok()
    }

    fn path(&self, leaf: usize) -> Vec<usize> {
        let mut path: Vec<_> =
            std::iter::successors(Some(leaf), |&node| self.parent(node)).collect();
        path.reverse();
        path
    }
}

fn unequal(name: &'static str, found: usize, expected: usize) -> Error {
    Error::invalid(name, format!("must have one element a node: {expected}, not {found}"))
}

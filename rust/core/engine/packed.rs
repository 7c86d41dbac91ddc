//! How do the drafts of a batch lie in arrays of fixed shapes, as engines take them?

use crate::draft::token_tree::TokenTree;

/// Chains as arrays of shape `(rows, k)`.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedChains {
    /// The tokens, then -1.
    pub token_ids: Vec<i64>,
    /// The probability of each path, then 0.
    pub probs: Vec<f32>,
    /// The number of tokens of each row.
    pub lengths: Vec<i64>,
}

impl PackedChains {
    /// Packs chains; what is longer than `k` is cut.
    pub fn new(chains: &[&TokenTree], k: usize) -> Self {
        let mut packed = Self {
            token_ids: vec![-1; chains.len() * k],
            probs: vec![0.0; chains.len() * k],
            lengths: Vec::with_capacity(chains.len()),
        };
        for (row, chain) in chains.iter().enumerate() {
            let nodes = chain.token_ids().iter().zip(chain.probs()).take(k);
            for (place, (&token, &prob)) in (row * k..).zip(nodes) {
                packed.token_ids[place] = token.into();
                packed.probs[place] = prob;
            }
            packed.lengths.push(number(chain.len().min(k)));
        }
        packed
    }
}

/// Trees of exactly n nodes as arrays of shapes `(rows, n)` and `(rows, n, n)`. Node 0 is the last token
/// of the context.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedTrees {
    /// The tokens.
    pub token_ids: Vec<i64>,
    /// Whether node j is node i or an ancestor of it.
    pub mask: Vec<bool>,
    /// How many nodes of each row are drafted; the others fill it up.
    pub lengths: Vec<i64>,
}

impl PackedTrees {
    /// Packs trees, each below the last token of its context; what does not fit into n is cut.
    ///
    /// What fills a row up are children of the root with tokens that are not drafted there, so that no
    /// node has two children with the same token: engines that sample would take it twice as often.
    pub fn new(trees: &[&TokenTree], last_tokens: &[u32], n: usize) -> Self {
        let mut packed = Self {
            token_ids: vec![0; trees.len() * n],
            mask: vec![false; trees.len() * n * n],
            lengths: Vec::with_capacity(trees.len()),
        };
        for (row, (tree, &last)) in trees.iter().zip(last_tokens).enumerate() {
            let num_nodes = tree.len().min(n.saturating_sub(1));
            packed.lengths.push(number(num_nodes));
            let token_ids = &mut packed.token_ids[row * n..(row + 1) * n];
            fill_tokens(token_ids, tree, num_nodes, last);
            let mask = &mut packed.mask[row * n * n..(row + 1) * n * n];
            fill_mask(mask, n, &tree.parents()[..num_nodes]);
        }
        packed
    }
}

fn fill_tokens(token_ids: &mut [i64], tree: &TokenTree, num_nodes: usize, last: u32) {
    let Some((root, nodes)) = token_ids.split_first_mut() else {
        return;
    };
    *root = last.into();
    let drafted = &tree.token_ids()[..num_nodes];
    let is_drafted = |token: &u32| {
        let mut edges = tree.parents().iter().zip(drafted);
        edges.any(|edge| edge == (&-1, token))
    };
    let filling = (0..).filter(|token| !is_drafted(token));
    for (node, token) in nodes.iter_mut().zip(drafted.iter().copied().chain(filling)) {
        *node = token.into();
    }
}

fn fill_mask(mask: &mut [bool], n: usize, parents: &[i32]) {
    for node in 0..n {
        let parent = node.checked_sub(1).and_then(|node| parents.get(node));
        let parent = parent.map_or(0, |&parent| usize::try_from(parent + 1).unwrap_or(0));
        mask.copy_within(parent * n..parent * n + node, node * n);
        mask[node * n] = true;
        mask[node * n + node] = true;
    }
}

fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

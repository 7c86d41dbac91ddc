//! Drafts of a batch as arrays of fixed shapes.

use crate::draft::token_tree::{Source, TokenTree};

/// Chains as arrays of shape `(rows, k)`.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedChains {
    /// The tokens of each chain, padded with -1.
    pub token_ids: Vec<i64>,
    /// The probability of each path, padded with 0.
    pub probs: Vec<f32>,
    pub lengths: Vec<i64>,
}

impl PackedChains {
    /// Packs chains; a longer one is cut to `k` tokens.
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

/// Trees of exactly n nodes as arrays of shapes `(rows, n)` and `(rows, n, n)`. Node 0 is the last token.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedTrees {
    pub token_ids: Vec<i64>,
    /// The ancestor mask: true at [i, j] if node j is node i or an ancestor of it.
    pub mask: Vec<bool>,
    /// Number of drafted nodes of each row; the others are padding.
    pub lengths: Vec<i64>,
}

impl PackedTrees {
    /// Packs each tree below its last token, cut to `n` nodes.
    ///
    /// Padding nodes are children of the root with tokens that were not drafted: an engine that samples would
    /// otherwise accept a duplicated token twice as often.
    pub fn new(trees: &[&TokenTree], last_tokens: &[u32], n: usize) -> Self {
        let mut packed = Self {
            token_ids: Vec::with_capacity(trees.len() * n),
            mask: Vec::with_capacity(trees.len() * n * n),
            lengths: Vec::with_capacity(trees.len()),
        };
        for (tree, &last) in trees.iter().zip(last_tokens) {
            let num_nodes = tree.len().min(n.saturating_sub(1));
            packed.lengths.push(number(num_nodes));
            let filled = filled(tree, num_nodes, last, n);
            let token_ids = filled.token_ids().iter().copied();
            packed.token_ids.extend(token_ids.map(i64::from));
            packed.mask.extend(filled.mask());
        }
        packed
    }
}

fn filled(tree: &TokenTree, num_nodes: usize, last: u32, n: usize) -> TokenTree {
    let mut filled = TokenTree::with_capacity(n);
    let nodes = tree.token_ids().iter().zip(tree.parents());
    let nodes = nodes.map(|(&token, &parent)| (token, parent + 1));
    let nodes = || nodes.clone().take(num_nodes);
    let filling = (0..).filter(|&token| !nodes().any(|node| node == (token, 0)));
    let filling = filling.map(|token| (token, 0));
    let all = [(last, -1)].into_iter().chain(nodes()).chain(filling);
    for (token, parent) in all.take(n) {
        filled.push(token, parent, 0.0, Source::Other);
    }
    filled
}

fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

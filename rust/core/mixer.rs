//! What do several sources make of the next tokens together?

use std::collections::BTreeMap;

use crate::tree::{Source, TokenTree};

/// What one source drafted, all of its nodes, and how long a match it drafted from.
pub(crate) struct Candidates<'a> {
    pub(crate) source: Source,
    pub(crate) tree: &'a TokenTree,
    pub(crate) match_length: usize,
}

/// The `max_nodes` likeliest nodes of several sources: likelihood descending, then depth ascending,
/// then path in lexicographic order.
///
/// The sources count alike: a node's likelihood is the mean of what they give its path, 0 where they
/// lack it. A source gives a path its own share, times (L + 1) / (L + 2) for each token, L being the
/// length of its match: a text that foretold L tokens in a row foretells the next one with that
/// probability, by Laplace's rule of succession. It is below 1, so that a node is less likely than
/// its parent and every beginning of the order is a tree.
pub(crate) fn mix(sources: &[Candidates<'_>], max_nodes: usize) -> TokenTree {
    let mut nodes = BTreeMap::<Vec<u32>, Mixed>::new();
    for source in sources {
        for (path, likelihood) in paths(source) {
            let share = likelihood / count(sources.len());
            let node = nodes.entry(path).or_default();
            node.likelihood += share;
            if share > node.largest_share {
                node.largest_share = share;
                node.source = source.source;
            }
        }
    }
    let mut ranking: Vec<_> = nodes.iter().collect();
    // Stable, so that ties stay in the order of the paths.
    ranking.sort_by(|(a, p), (b, q)| {
        let likelier_first = q.likelihood.total_cmp(&p.likelihood);
        likelier_first.then(a.len().cmp(&b.len()))
    });
    ranking.truncate(max_nodes);
    draft(&ranking)
}

#[derive(Debug, Default)]
struct Mixed {
    likelihood: f64,
    largest_share: f64,
    source: Source,
}

fn paths(source: &Candidates<'_>) -> Vec<(Vec<u32>, f64)> {
    let tree = source.tree;
    let succession = count(source.match_length + 1) / count(source.match_length + 2);
    let mut paths: Vec<(Vec<u32>, f64)> = Vec::with_capacity(tree.len());
    let mut trust: Vec<f64> = Vec::with_capacity(tree.len());
    let nodes = tree
        .token_ids()
        .iter()
        .zip(tree.parents())
        .zip(tree.probs());
    for ((&token, &parent), &prob) in nodes {
        let parent = usize::try_from(parent).ok();
        let mut path = parent.map_or_else(Vec::new, |parent| paths[parent].0.clone());
        path.push(token);
        trust.push(parent.map_or(1.0, |parent| trust[parent]) * succession);
        paths.push((path, f64::from(prob) * trust[trust.len() - 1]));
    }
    paths
}

fn draft(ranking: &[(&Vec<u32>, &Mixed)]) -> TokenTree {
    let mut tree = TokenTree::with_capacity(ranking.len());
    let mut places = BTreeMap::<&[u32], i32>::new();
    for (place, (path, node)) in (0..).zip(ranking) {
        if let Some((&token, beginning)) = path.split_last() {
            let parent = places.get(beginning).copied().unwrap_or(-1);
            #[expect(clippy::cast_possible_truncation, reason = "a probability")]
            tree.push(token, parent, node.likelihood as f32, node.source);
            places.insert(path, place);
        }
    }
    tree
}

#[expect(
    clippy::cast_precision_loss,
    reason = "lengths and numbers of sources are small"
)]
fn count(number: usize) -> f64 {
    number as f64
}

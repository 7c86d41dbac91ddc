//! Monte Carlo tree search of ADED for likely sentences.

use crate::draft::token_tree::{Source, TokenTree};
use crate::papers::aded::adaptive::TrigramReader;
use crate::papers::aded::config::AdedConfig;
use crate::papers::aded::trigrams::{Prefix, Word};

/// Splitmix64: the same numbers on every machine.
#[derive(Debug, Clone, Copy)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ (number >> 31)
    }

    /// From 0 up to 1, at an even distance.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Debug, Default)]
struct SearchNode<'a> {
    token: u32,
    prob: f64,
    parent: usize,
    depth: usize,
    /// The words that can follow.
    row: &'a [Word],
    prefix: Prefix,
    /// The nodes of the first of these words.
    children: Vec<usize>,
    visits: u32,
    /// The visits that continued to a child.
    passes: usize,
    score: f64,
    /// 1 plus the probabilities of the words of the path.
    path_score: f64,
}

/// Algorithm 1 of ADED: Monte Carlo tree search for sentences.
///
/// Where the paper is ambiguous, this implementation follows its stated results:
///
/// * A sentence has `depth` tokens, without the root, which is the last token of the context.
/// * `Q(s, a)` is the mean of the scores that were backed up ("the average reward", Appendix E), and 0
///   before the first visit. A sum would grow with each visit, so one child would soon get all visits.
/// * An expansion continues with `children.last()`, the likeliest word. Children with equal PUCT are
///   ordered by probability, then by token.
/// * Sentences are the paths to visited leaves, ordered by the sum of the scores that were backed up to
///   the leaf, then by the time of the first visit.
///
/// Only visited children have nodes. PUCT visits the children of a row in the order of their
/// probabilities, so the visited ones are always the first of the row.
pub(crate) struct Search<'a> {
    reader: &'a TrigramReader<'a>,
    config: &'a AdedConfig,
    exploration: &'a [f64],
    random: SplitMix64,
    nodes: Vec<SearchNode<'a>>,
}

impl<'a> Search<'a> {
    pub(crate) fn run(
        reader: &'a TrigramReader<'a>,
        config: &'a AdedConfig,
        exploration: &'a [f64],
        root: Prefix,
    ) -> Self {
        let mut search = Self {
            reader,
            config,
            exploration,
            random: SplitMix64(config.seed),
            nodes: Vec::with_capacity(2 * config.searches + 1),
        };
        search.nodes.push(SearchNode {
            prob: 1.0,
            row: reader.row(root),
            prefix: root,
            path_score: 1.0,
            ..SearchNode::default()
        });
        for _ in 0..config.searches {
            let leaf = search.descend();
            let score = search.simulate(leaf);
            search.back_up(leaf, score);
        }
        search
    }

    /// Selection and expansion.
    fn descend(&mut self) -> usize {
        let mut node = 0;
        while !self.nodes[node].children.is_empty() {
            node = self.select(node);
        }
        self.expand(node).unwrap_or(node)
    }

    /// The child that PUCT takes (ADED, Eq. 2): Q + E · P · √ΣN / (1 + N).
    fn select(&mut self, parent: usize) -> usize {
        let SearchNode { passes, row, ref children, .. } = self.nodes[parent];
        let (e, root) = (self.exploration[passes], (passes as f64).sqrt());
        let (mut best, mut best_puct) = (parent, f64::NEG_INFINITY);
        for &child in children {
            let node = &self.nodes[child];
            let visits = f64::from(node.visits);
            let puct = node.score / visits + e * node.prob * root / (1.0 + visits);
            if puct > best_puct {
                (best, best_puct) = (child, puct);
            }
        }
        match row.get(children.len()) {
            Some(word) if e * f64::from(word.prob) * root > best_puct => {
                self.expand(parent).unwrap_or(best)
            }
            _ => best,
        }
    }

    fn expand(&mut self, parent: usize) -> Option<usize> {
        let index = self.nodes.len();
        let node = &mut self.nodes[parent];
        let &Word { token, prob } = node.row.get(node.children.len())?;
        node.children.push(index);
        let (prob, depth) = (f64::from(prob), node.depth + 1);
        let prefix = self.reader.then(node.prefix, token);
        let path_score = node.path_score + prob;
        let row = if depth < self.config.depth { self.reader.row(prefix) } else { &[] };
        self.nodes.push(SearchNode {
            token,
            prob,
            parent,
            depth,
            row,
            prefix,
            path_score,
            ..SearchNode::default()
        });
        Some(index)
    }

    /// Completes a sentence from a node at random, and returns its score.
    fn simulate(&mut self, node: usize) -> f64 {
        let SearchNode { depth, mut row, mut prefix, path_score: mut score, .. } = self.nodes[node];
        for depth in depth + 1..=self.config.depth {
            let Some(word) = sample(row, &mut self.random) else {
                break;
            };
            score += f64::from(word.prob);
            if depth < self.config.depth {
                prefix = self.reader.then(prefix, word.token);
                row = self.reader.row(prefix);
            }
        }
        score
    }

    fn back_up(&mut self, leaf: usize, score: f64) {
        let mut index = leaf;
        loop {
            let node = &mut self.nodes[index];
            node.visits += 1;
            node.passes += usize::from(index != leaf);
            node.score += score;
            if index == 0 {
                return;
            }
            index = node.parent;
        }
    }

    /// Returns at most `max_nodes` nodes of the best sentences, ordered by the sum of the scores that were
    /// backed up to them; no child has a larger sum than its parent. A node's probability is its fraction of
    /// the sum of the root: with the paper's large `c1`, visits follow the probabilities of words.
    pub(crate) fn tree(&self, max_nodes: usize) -> TokenTree {
        let nodes = &self.nodes;
        let by_score =
            |a: &usize, b: &usize| nodes[*b].score.total_cmp(&nodes[*a].score).then(a.cmp(b));
        let mut leaves: Vec<_> =
            (1..nodes.len()).filter(|&node| nodes[node].children.is_empty()).collect();
        leaves.sort_unstable_by(by_score);
        leaves.truncate(self.config.candidates);
        let mut is_drafted = vec![false; nodes.len()];
        for mut node in leaves {
            while node != 0 && !is_drafted[node] {
                is_drafted[node] = true;
                node = nodes[node].parent;
            }
        }
        let mut drafted: Vec<_> = (1..nodes.len()).filter(|&node| is_drafted[node]).collect();
        drafted.sort_unstable_by(by_score);
        drafted.truncate(max_nodes);
        let mut places = vec![-1; nodes.len()];
        let mut tree = TokenTree::with_capacity(drafted.len());
        for (node, place) in drafted.into_iter().zip(0..) {
            let SearchNode { token, parent, score, .. } = nodes[node];
            #[expect(clippy::cast_possible_truncation, reason = "as precise as a probability is")]
            let prob = (score / nodes[0].score) as f32;
            tree.push(token, places[parent], prob, Source::Trigram);
            places[node] = place;
        }
        tree
    }
}

/// Draws a word by its probability.
fn sample(row: &[Word], random: &mut SplitMix64) -> Option<Word> {
    let last = row.last()?;
    let prob = |word: &Word| f64::from(word.prob);
    let target = random.share() * row.iter().map(prob).sum::<f64>();
    let mut sum = 0.0;
    let is_it = |word: &&Word| {
        sum += prob(word);
        target < sum
    };
    row.iter().find(is_it).or(Some(last)).copied()
}

/// Drafts the likeliest word at each position, ADED's ablation. This gives one sentence, and the
/// probability of a node is that of its path.
pub(crate) fn greedy(reader: &TrigramReader<'_>, root: Prefix, depth: usize) -> TokenTree {
    let (mut prefix, mut prob) = (root, 1.0);
    let mut tree = TokenTree::default();
    for parent in (-1..).take(depth) {
        let Some(word) = reader.row(prefix).first() else {
            break;
        };
        prob *= word.prob;
        tree.push(word.token, parent, prob, Source::Trigram);
        prefix = reader.then(prefix, word.token);
    }
    tree
}

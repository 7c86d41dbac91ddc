//! N-Grammys: short n-grams from the tables of the model and from the request itself.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::iter::successors;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::draft::model_tables::ModelTables;
use crate::draft::session::{DraftLimits, Session, draft_on_trial};
use crate::draft::token_tree::{Source, TokenTree};
use crate::memory::indexed_tokens::IndexedTokens;
use specds_index::base::checks::{check_tokens, check_within};
use specds_index::{Error, Result};

/// The source of the rows of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Rows from the request first, the rest from the extended bigram.
    #[default]
    Mixed,
    /// Continuations of earlier occurrences of the last tokens of the context.
    Context,
    /// The likeliest tokens after the last one: rows of one token.
    Bigram,
    /// The likeliest tokens after the last one, each continued greedily by bigrams.
    ExtendedBigram,
    /// The likeliest tokens by the model's embeddings alone: rows of one token.
    Unigram,
}

/// Options of N-Grammys, with the defaults of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NGrammysConfig {
    /// The number of rows, up to 1024.
    pub k: usize,
    /// The number of tokens of a row, up to 1024, which is the depth of the tree.
    pub w: usize,
    /// The number of last tokens that are searched for in the context.
    pub q: usize,
    pub strategy: Strategy,
}

impl Default for NGrammysConfig {
    fn default() -> Self {
        Self { k: 10, w: 10, q: 1, strategy: Strategy::Mixed }
    }
}

impl NGrammysConfig {
    const MOST: usize = 1024;

    fn check(&self, tables: Option<&ModelTables>) -> Result<()> {
        for (name, value) in [("k", self.k), ("w", self.w), ("q", self.q)] {
            check_within(name, value, 1..=Self::MOST)?;
        }
        if self.strategy == Strategy::Context {
            return Ok(());
        }
        let Some(tables) = tables else {
            let reason = "are needed for all strategies but context: make them of the target model";
            return Err(Error::invalid("tables", reason));
        };
        if self.strategy != Strategy::Unigram && self.k > tables.k() {
            let reason = format!(
                "must not exceed the {} tokens that the tables know after each, it is {}: make \
                 wider tables",
                tables.k(),
                self.k
            );
            return Err(Error::invalid("k", reason));
        }
        Ok(())
    }
}

/// A request that drafts without a corpus: N-Grammys (Stewart et al., 2024).
///
/// A draft is `k` rows of `w` tokens, merged into a tree by common prefixes, the first row first. Context
/// rows are the distinct sequences of `w` tokens after earlier occurrences of the last `q` tokens, the
/// most frequent first, then the latest. Row i of the extended bigram starts with the i-th likeliest
/// token after the last one, and continues with the likeliest token after each.
///
/// The probability of a node depends on its source: the fraction of earlier occurrences that continue
/// with its path, the product of the bigrams along it, or 0 for unigrams, which are only ranked.
#[derive(Debug, Clone)]
pub struct NGrammysSession {
    tables: Option<Arc<ModelTables>>,
    config: NGrammysConfig,
    history: IndexedTokens,
    match_length: usize,
}

impl NGrammysSession {
    /// All strategies but [`Strategy::Context`] need tables.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an option is out of its range, or tables are missing.
    pub fn new(tables: Option<Arc<ModelTables>>, config: NGrammysConfig) -> Result<Self> {
        config.check(tables.as_deref())?;
        Ok(Self { tables, config, history: IndexedTokens::default(), match_length: 0 })
    }

    /// Returns the rows, each with its fraction of the matches.
    fn context_rows(&self) -> Vec<(&[u32], f64)> {
        let tokens = self.history.tokens();
        let NGrammysConfig { k, w, q, .. } = self.config;
        let query = &tokens[tokens.len().saturating_sub(q)..];
        let Some(&last) = query.last() else {
            return Vec::new();
        };
        let mut counts = HashMap::<&[u32], usize>::new();
        let mut rows = Vec::new();
        for end in self.history.of_token(last).map(|position| position + 1) {
            let row = tokens.get(end..end + w);
            if let Some(row) = row.filter(|_| query.len() == q && tokens[..end].ends_with(query)) {
                let count = counts.entry(row).or_default();
                *count += 1;
                if *count == 1 {
                    rows.push(row);
                }
            }
        }
        let num_matches: usize = counts.values().sum();
        // Matches come latest first, and the sort is stable.
        rows.sort_by_key(|row| Reverse(counts[row]));
        rows.truncate(k);
        let share = |row| counts[row] as f64 / num_matches as f64;
        rows.into_iter().map(|row| (row, share(row))).collect()
    }
}

impl Session for NGrammysSession {
    fn observe(&mut self, tokens: &[u32], _num_verified: Option<usize>) -> Result<()> {
        if let Some(tables) = &self.tables {
            check_tokens(tokens, tables.vocab_size())?;
        }
        self.history.extend(tokens);
        Ok(())
    }

    /// O(earlier occurrences of the last token, times `w`).
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree> {
        let NGrammysConfig { k, w, q, strategy } = self.config;
        let mut tree = DraftRows::new(limits.max_nodes);
        let mut num_rows = 0;
        self.match_length = 0;
        if matches!(strategy, Strategy::Mixed | Strategy::Context) {
            let rows = self.context_rows();
            num_rows = rows.len();
            for (row, share) in rows {
                tree.add_context(row, share);
            }
            self.match_length = if num_rows > 0 { q } else { 0 };
        }
        if let (Some(tables), Some(&last)) = (&self.tables, self.history.tokens().last()) {
            match strategy {
                Strategy::Mixed | Strategy::ExtendedBigram => {
                    tree.add_bigrams(tables, last, k - num_rows, w);
                }
                Strategy::Bigram => tree.add_bigrams(tables, last, k, 1),
                Strategy::Unigram => tree.add_unigrams(tables, k),
                Strategy::Context => {}
            }
            if !matches!(strategy, Strategy::Context | Strategy::Unigram) {
                self.match_length = self.match_length.max(1);
            }
        }
        Ok(limits.cut(tree.finish()))
    }

    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        draft_on_trial(self.clone(), tokens, max_nodes)
    }

    fn match_length(&self) -> usize {
        self.match_length
    }
}

/// A tree that merges rows by common prefixes.
struct DraftRows {
    max_nodes: usize,
    nodes: Vec<RowNode>,
    children: HashMap<(i32, u32), usize>,
}

struct RowNode {
    token: u32,
    parent: i32,
    /// Double precision: rounded shares add up to at most 1.
    prob: f64,
    source: Source,
}

impl DraftRows {
    fn new(max_nodes: usize) -> Self {
        Self { max_nodes, nodes: Vec::new(), children: HashMap::new() }
    }

    fn add_context(&mut self, row: &[u32], share: f64) {
        let mut parent = None;
        for &token in row {
            parent = self.child(parent, token, 0.0, Source::Context);
            let Some(node) = parent else { return };
            self.nodes[node].prob += share;
        }
    }

    fn add_bigrams(&mut self, tables: &ModelTables, last: u32, num_rows: usize, depth: usize) {
        for first in tables.after(last).take(num_rows) {
            let best = |&(token, _): &(u32, f32)| tables.after(token).next();
            let mut parent = None;
            for (token, prob) in successors(Some(first), best).take(depth) {
                let path = parent.map_or(1.0, |parent: usize| self.nodes[parent].prob);
                let prob = path * f64::from(prob);
                parent = self.child(parent, token, prob, Source::Bigram);
                if parent.is_none() {
                    break;
                }
            }
        }
    }

    fn add_unigrams(&mut self, tables: &ModelTables, num_rows: usize) {
        for &token in tables.unigram().iter().take(num_rows) {
            self.child(None, token, 0.0, Source::Unigram);
        }
    }

    /// Returns the child of a node or the context with `token`, and adds it with `prob` if it is new.
    /// Returns `None` if the tree is full.
    fn child(
        &mut self,
        parent: Option<usize>,
        token: u32,
        prob: f64,
        source: Source,
    ) -> Option<usize> {
        let parent = parent.map_or(Some(-1), |parent| i32::try_from(parent).ok())?;
        if let Some(&node) = self.children.get(&(parent, token)) {
            return Some(node);
        }
        let node = self.nodes.len();
        (node < self.max_nodes).then(|| {
            self.children.insert((parent, token), node);
            self.nodes.push(RowNode { token, parent, prob, source });
            node
        })
    }

    fn finish(self) -> TokenTree {
        let mut tree = TokenTree::with_capacity(self.nodes.len());
        for node in self.nodes {
            #[expect(clippy::cast_possible_truncation, reason = "a probability")]
            tree.push(node.token, node.parent, node.prob as f32, node.source);
        }
        tree
    }
}

//! REST: continuations of the longest context suffix in a datastore.

use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::draft::session::{DraftLimits, Session, draft_on_trial};
use crate::draft::token_tree::{Source, TokenTree};
use specds_index::base::checks::{check_match_lengths, check_within};
use specds_index::{Datastore, Match, Result, Samples};

const MAX_DEPTH: usize = 1 << 10;
const MAX_SAMPLES: usize = 1 << 16;

/// Options of REST.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RestConfig {
    /// The maximum length of a match.
    pub max_match: usize,
    /// The minimum length of a match.
    pub min_match: usize,
    /// The length of a continuation, up to 1024, which is the depth of the tree.
    pub continuation: usize,
    /// The maximum number of continuations of a match, up to 65,536. An even sample ranks the nodes in
    /// bounded time.
    pub max_samples: usize,
}

impl Default for RestConfig {
    fn default() -> Self {
        Self { max_match: 16, min_match: 1, continuation: 10, max_samples: 256 }
    }
}

impl RestConfig {
    fn check(&self) -> Result<()> {
        check_match_lengths(self.max_match, self.min_match)?;
        check_within("continuation", self.continuation, 1..=MAX_DEPTH)?;
        check_within("max_samples", self.max_samples, 1..=MAX_SAMPLES)
    }
}

/// A request that drafts from a datastore alone: REST (He et al., 2024).
///
/// The draft is the most frequent nodes of the trie of continuations of the longest context suffix. Two
/// differences from the authors' program increase acceptance: continuations are an even sample of all
/// occurrences instead of the lexicographically first ones, and the draft has exactly the requested
/// number of nodes, the most frequent ones.
#[derive(Debug, Clone)]
pub struct RestSession {
    datastore: Arc<Datastore>,
    config: RestConfig,
    /// The last `max_match` tokens of the context after the last separator.
    context: Vec<u32>,
    /// The maximum length of a context suffix that can occur in the datastore.
    longest_possible: usize,
    found: Match,
    samples: Samples,
    frontier: Frontier,
}

impl RestSession {
    /// Creates a session without a context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if an option is out of its range.
    pub fn new(datastore: Arc<Datastore>, config: RestConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            datastore,
            config,
            context: Vec::new(),
            longest_possible: 0,
            found: Match::default(),
            samples: Samples::default(),
            frontier: Frontier::default(),
        })
    }
}

impl Session for RestSession {
    fn observe(&mut self, tokens: &[u32], _num_verified: Option<usize>) -> Result<()> {
        self.datastore.check_tokens(tokens)?;
        let separator = self.datastore.separator();
        if let Some(last) = tokens.iter().rposition(|&token| token == separator) {
            self.context.clear();
            self.context.extend_from_slice(&tokens[last + 1..]);
        } else {
            self.context.extend_from_slice(tokens);
        }
        let surplus = self.context.len().saturating_sub(self.config.max_match);
        self.context.drain(..surplus);
        // A longer match would have been one before these tokens came.
        let longest = self.longest_possible.saturating_add(tokens.len());
        self.longest_possible = longest.min(self.context.len());
        Ok(())
    }

    /// A node's probability is its share of the sampled continuations. A few microseconds on 10⁸ tokens.
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree> {
        let (datastore, found) = (&self.datastore, &mut self.found);
        let RestConfig { min_match, continuation, max_samples, .. } = self.config;
        datastore.lookup_into(&self.context, self.longest_possible, min_match, found);
        self.longest_possible = found.length.max(min_match - 1);
        let samples = &mut self.samples;
        datastore.sample_into(found, continuation, max_samples, &[], samples);
        Ok(limits.cut(self.frontier.grow(samples, limits.max_nodes)))
    }

    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        draft_on_trial(self.clone(), tokens, max_nodes)
    }

    fn match_length(&self) -> usize {
        self.found.length
    }
}

/// A priority queue of candidate children, each with its parent.
///
/// A child is at most as frequent as its parent, so nodes leave the queue in the order of the whole trie,
/// most of which is never built.
#[derive(Debug, Clone, Default)]
struct Frontier(BinaryHeap<(Rank, i32)>);

/// The order of nodes: count descending, depth ascending, and first row ascending, which is the
/// lexicographic order of paths.
type Rank = u64;

const ROW_BITS: u32 = MAX_SAMPLES.ilog2();
const DEPTH_BITS: u32 = MAX_DEPTH.ilog2() + 1;

impl Frontier {
    /// Returns the tree of the `max_nodes` most frequent prefixes of continuations.
    fn grow(&mut self, samples: &Samples, max_nodes: usize) -> TokenTree {
        let num_rows = samples.len();
        let mut tree = TokenTree::with_capacity(max_nodes.min(samples.num_tokens()));
        self.0.clear();
        self.open(samples, 0..num_rows, 0, -1);
        for place in (0..).take(max_nodes) {
            let Some((rank, parent)) = self.0.pop() else {
                break;
            };
            let (rows, depth) = place_of(rank);
            let token = samples.row(rows.start)[depth - 1];
            let prob = rows.len() as f32 / num_rows as f32;
            tree.push(token, parent, prob, Source::Datastore);
            self.open(samples, rows, depth, place);
        }
        tree
    }

    /// Adds the children of the node `place` at `depth`, whose continuations are `rows`.
    fn open(&mut self, samples: &Samples, rows: Range<usize>, depth: usize, place: i32) {
        let next = |row| samples.row(row).get(depth);
        let mut first = rows.start;
        while first < rows.end {
            let token = next(first);
            let is_other = |&row: &usize| next(row) != token;
            let end = (first + 1..rows.end).find(is_other).unwrap_or(rows.end);
            if token.is_some() {
                self.0.push((rank(first..end, depth + 1), place));
            }
            first = end;
        }
    }
}

fn rank(rows: Range<usize>, depth: usize) -> Rank {
    let count = rows.len() as u64;
    let (depth, first) = (MAX_DEPTH - depth, MAX_SAMPLES - 1 - rows.start);
    (count << DEPTH_BITS | depth as u64) << ROW_BITS | first as u64
}

#[expect(clippy::cast_possible_truncation, reason = "what was joined fits")]
fn place_of(rank: Rank) -> (Range<usize>, usize) {
    let part = |shift: u32, bits: u32| (rank >> shift) as usize & ((1 << bits) - 1);
    let start = MAX_SAMPLES - 1 - part(0, ROW_BITS);
    let depth = MAX_DEPTH - part(ROW_BITS, DEPTH_BITS);
    (start..start + (rank >> (ROW_BITS + DEPTH_BITS)) as usize, depth)
}

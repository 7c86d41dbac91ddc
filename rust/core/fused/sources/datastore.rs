//! Source of continuations after the longest matches in the datastore.

use std::ops::Range;

use crate::draft::token_tree::Source;
use crate::fused::arena::{DraftArena, END, Matched};
use crate::fused::effort::SearchLimits;
use crate::fused::source::{DraftSource, NodeView, SkipGrams, SourceInputs};
use crate::portable_math::saturating_u32;
use crate::weights::kind::{ExpertKind, MatchForm};
use specds_index::base::runs::runs;
use specds_index::{Datastore, Match, Samples};

const KIND: ExpertKind = ExpertKind::of(Source::Datastore, MatchForm::Exact);
const SKIP_KIND: ExpertKind = ExpertKind::of(Source::Datastore, MatchForm::SkipGram);

/// The length of a continuation.
const CONTINUATION_LENGTH: usize = 8;

/// The maximum number of matches of the context that are read, longest first.
const MAX_MATCHES: usize = 3;

/// The maximum number of continuations for a node that is queried again.
const MAX_CONTINUATIONS_OF_NODE: usize = 32;

/// A node that keeps this many of its parent's continuations is not queried again.
const ENOUGH_CONTINUATIONS: usize = 16;

/// A match with this many continuations covers a node: shorter matches read fewer.
const COVERED: usize = 8;

/// The suffix lengths of the context that are searched for.
const ORDERS: [usize; 9] = [2, 3, 4, 5, 6, 7, 8, 12, 16];

/// The suffix lengths of likely nodes that are queried again, as indices of [`ORDERS`].
const REQUERY: [usize; 2] = [1, 0];

#[derive(Debug, Default, Clone)]
pub(crate) struct DatastoreSource {
    continuations: Continuations,
    /// The continuation groups of each expanded node.
    nodes: Vec<CorpusMatch>,
}

impl DraftSource for DatastoreSource {
    fn add_experts(
        &mut self,
        inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    ) {
        let (Some(datastore), Some(&token)) = (inputs.datastore, node.tail.last()) else {
            self.nodes.push(0..0);
            return;
        };
        let search = inputs.search;
        let parent = node.parent.map(|parent| &self.nodes[parent]);
        let found = self.continuations.find(datastore, parent, node, search);
        let rank = self.continuations.add_experts(&found, arena);
        if rank == 0 || node.prob >= search.full_search_min_prob {
            add_next_tokens(datastore, token, rank, node.min_child_prob, arena);
        }
        self.nodes.push(found);
    }

    fn skip_gram_kind(&self, inputs: &SourceInputs<'_>) -> Option<(ExpertKind, f32)> {
        inputs.datastore.map(|_| (SKIP_KIND, 1.0))
    }

    fn collect_skip_grams(
        &self,
        node: usize,
        token: u32,
        _search: SearchLimits,
        skip_grams: &mut SkipGrams,
    ) {
        self.continuations.collect_skip_grams(&self.nodes[node], token, skip_grams);
    }

    fn clear(&mut self) {
        self.continuations.clear();
        self.nodes.clear();
    }

    fn match_length(&self) -> usize {
        self.nodes.first().map_or(0, |found| self.continuations.longest(found))
    }
}

/// Returns the part of `tail` in its last document: matches do not cross separators.
fn last_document<'t>(datastore: &Datastore, tail: &'t [u32]) -> &'t [u32] {
    let separator = datastore.separator();
    let mut documents = tail.rsplit(|&token| token == separator);
    documents.next().unwrap_or_default()
}

/// Adds the expert for the continuations of a node's last token alone, with a probability of at least
/// `min_child_prob`.
fn add_next_tokens(
    datastore: &Datastore,
    token: u32,
    rank: usize,
    min_child_prob: f32,
    arena: &mut DraftArena,
) {
    let next_tokens = datastore.next_tokens(token);
    if let Some(next_tokens) = next_tokens {
        let matched = Matched { kind: KIND, order: 1, rank, num_matches: next_tokens.num_matches };
        let min_count = min_child_prob * next_tokens.num_samples;
        let matter = |&&(_, count): &&(u32, f32)| count >= min_count;
        let counts = next_tokens.counts.iter().take_while(matter).copied();
        arena.add(matched, Some(next_tokens.num_samples), counts);
    }
}

/// The sampled continuations of one match.
#[derive(Debug, Clone)]
struct ContinuationGroup {
    /// The length of the match.
    order: usize,
    /// The number of occurrences of the match.
    num_matches: f32,
    rows: Range<usize>,
}

/// The continuation groups of one node, the longest match first.
type CorpusMatch = Range<usize>;

#[derive(Debug, Default, Clone)]
struct Continuations {
    groups: Vec<ContinuationGroup>,
    /// The position in `tokens` of each continuation of each group.
    rows: Vec<u32>,
    /// The tokens of all continuations, each followed by [`END`].
    tokens: Vec<u32>,
    /// The last match of each of [`ORDERS`].
    found: Vec<Match>,
    samples: Samples,
}

impl Continuations {
    fn clear(&mut self) {
        self.groups.clear();
        self.rows.clear();
        self.tokens.clear();
    }

    /// Queries the root. Other nodes filter the continuations of their parent, and likely ones query
    /// again if few remain.
    fn find(
        &mut self,
        datastore: &Datastore,
        parent: Option<&CorpusMatch>,
        node: &NodeView<'_>,
        search: SearchLimits,
    ) -> CorpusMatch {
        let Some(parent) = parent else {
            return self.look_up(datastore, last_document(datastore, node.tail), search);
        };
        let token = node.tail.last().copied().unwrap_or(END);
        let found = self.follow(parent, token);
        if node.prob < search.requery_min_prob {
            found
        } else {
            self.requery(datastore, last_document(datastore, node.tail), &found)
        }
    }

    /// Searches for suffixes of increasing length until all occurrences of one are read. Longer matches
    /// then need no search: they are its continuations with a longer context overlap.
    fn look_up(
        &mut self,
        datastore: &Datastore,
        tail: &[u32],
        search: SearchLimits,
    ) -> CorpusMatch {
        let start = self.groups.len();
        self.found.resize(ORDERS.len(), Match::default());
        let max_continuations = search.max_continuations as u64;
        let mut complete = 0;
        while complete < ORDERS.len() && self.search(datastore, tail, complete) > max_continuations
        {
            complete += 1;
        }
        if complete < ORDERS.len() {
            self.read_complete(datastore, tail, complete, search);
        }
        for index in (0..complete).rev() {
            let groups = &self.groups[start..];
            let longer = groups.last();
            let num_longer = longer.map_or(0.0, |group| group.num_matches);
            if groups.len() == MAX_MATCHES || num_longer >= max_continuations as f32 {
                break;
            }
            let max_continuations = match longer {
                Some(group) if group.rows.len() >= COVERED => search.max_continuations_if_covered,
                _ => search.max_continuations,
            };
            // A match that is as frequent as a longer one adds nothing.
            if self.found[index].count() as f32 > num_longer {
                self.read(datastore, index, max_continuations);
            }
        }
        start..self.groups.len()
    }

    /// Searches for the suffix of one of [`ORDERS`], and returns its number of occurrences.
    fn search(&mut self, datastore: &Datastore, tail: &[u32], index: usize) -> u64 {
        let found = &mut self.found[index];
        match tail.len().checked_sub(ORDERS[index]) {
            Some(start) => datastore.find_into(&tail[start..], found),
            None => *found = Match::default(),
        }
        found.count()
    }

    /// Reads all continuations of a match, and adds the groups of the longest matches among them.
    fn read_complete(
        &mut self,
        datastore: &Datastore,
        tail: &[u32],
        index: usize,
        search: SearchLimits,
    ) {
        let shortest = ORDERS[index];
        let before = &tail[..tail.len().saturating_sub(shortest)];
        datastore.sample_into(
            &self.found[index],
            CONTINUATION_LENGTH,
            search.max_continuations,
            before,
            &mut self.samples,
        );
        let (first, first_group) = (self.keep_samples(), self.groups.len());
        let mut num_longer = 0;
        for &order in ORDERS[index..].iter().rev() {
            let context_overlap = order - shortest;
            let overlaps = self.samples.overlaps();
            let count = overlaps.filter(|&of_row| of_row >= context_overlap).count();
            if count > num_longer {
                num_longer = count;
                self.add_group(order, count as f32, first, context_overlap);
            }
            if self.groups.len() - first_group == MAX_MATCHES {
                break;
            }
        }
    }

    fn read(&mut self, datastore: &Datastore, index: usize, max_continuations: usize) {
        let found = &self.found[index];
        let (order, count) = (found.length, found.count() as f32);
        datastore.sample_into(
            found,
            CONTINUATION_LENGTH,
            max_continuations,
            &[],
            &mut self.samples,
        );
        let first = self.keep_samples();
        self.add_group(order, count, first, 0);
    }

    /// Stores the samples as continuations, and returns the position of the first.
    fn keep_samples(&mut self) -> u32 {
        let first = saturating_u32(self.tokens.len());
        for row in self.samples.iter() {
            self.tokens.extend_from_slice(row);
            self.tokens.push(END);
        }
        first
    }

    /// Adds the samples with at least this context overlap. `first` is the position of the first sample.
    fn add_group(&mut self, order: usize, num_matches: f32, first: u32, context_overlap: usize) {
        let (start, mut next) = (self.rows.len(), first);
        for (row, of_row) in self.samples.iter().zip(self.samples.overlaps()) {
            if of_row >= context_overlap {
                self.rows.push(next);
            }
            next += saturating_u32(row.len()) + 1;
        }
        self.groups.push(ContinuationGroup { order, num_matches, rows: start..self.rows.len() });
    }

    /// Adds the continuations of the parent that continue with `token`.
    fn follow(&mut self, parent: &CorpusMatch, token: u32) -> CorpusMatch {
        let first = self.groups.len();
        for group in parent.clone() {
            let group = self.groups[group].clone();
            let start = self.rows.len();
            for index in group.rows.clone() {
                let row = self.rows[index];
                if self.tokens[row as usize] == token {
                    self.rows.push(row + 1);
                }
            }
            let num_rows = self.rows.len() - start;
            if num_rows > 0 {
                let scale = group.num_matches / group.rows.len() as f32;
                self.groups.push(ContinuationGroup {
                    order: group.order + 1,
                    num_matches: scale * num_rows as f32,
                    rows: start..self.rows.len(),
                });
            }
        }
        first..self.groups.len()
    }

    /// Queries the last tokens of a likely node if the continuations of its parent are too few.
    fn requery(&mut self, datastore: &Datastore, tail: &[u32], found: &CorpusMatch) -> CorpusMatch {
        let [longest, ..] = REQUERY.map(|index| ORDERS[index]);
        let is_sparse = |group: &ContinuationGroup| {
            let num_rows = group.rows.len();
            group.order <= longest
                && num_rows < ENOUGH_CONTINUATIONS
                && (num_rows as f32) < group.num_matches
        };
        let groups = &self.groups[found.clone()];
        let num_retained = groups.iter().position(is_sparse).unwrap_or(groups.len());
        self.groups.truncate(found.start + num_retained);
        for index in REQUERY {
            let shortest = self.groups[found.start..].last();
            if shortest.is_none_or(|group| group.order > ORDERS[index]) {
                let num_longer = shortest.map_or(0.0, |group| group.num_matches);
                if self.search(datastore, tail, index) as f32 > num_longer {
                    self.read(datastore, index, MAX_CONTINUATIONS_OF_NODE);
                }
            }
        }
        found.start..self.groups.len()
    }

    /// Adds an expert for each match that is more frequent than all longer ones, and returns their
    /// number.
    fn add_experts(&self, found: &CorpusMatch, arena: &mut DraftArena) -> usize {
        let (mut rank, mut last) = (0, 0.0);
        for group in &self.groups[found.clone()] {
            if group.num_matches > last {
                last = group.num_matches;
                let rows = self.rows[group.rows.clone()].iter();
                let matched = Matched {
                    kind: KIND,
                    order: group.order,
                    rank,
                    num_matches: group.num_matches,
                };
                // Continuations are sorted, so equal first tokens are adjacent.
                let next = runs(rows.map(|&row| self.tokens[row as usize]));
                rank += usize::from(arena.add(matched, None, next));
            }
        }
        rank
    }

    /// Collects the second tokens of continuations whose first token is not `token`, after the longest
    /// match of at least two tokens that has enough.
    fn collect_skip_grams(&self, found: &CorpusMatch, token: u32, skip_grams: &mut SkipGrams) {
        const MIN_CONTINUATIONS: usize = 4;
        let mut groups = self.groups[found.clone()].iter();
        let has_some =
            |group: &&ContinuationGroup| group.order > 1 && group.rows.len() >= MIN_CONTINUATIONS;
        let Some(group) = groups.find(has_some) else {
            return;
        };
        let order = saturating_u32(group.order);
        for &row in &self.rows[group.rows.clone()] {
            if let [next, after, ..] = self.tokens[row as usize..]
                && next != END
                && next != token
            {
                skip_grams.add(order, after);
            }
        }
    }

    fn longest(&self, found: &CorpusMatch) -> usize {
        let longest = self.groups[found.clone()].first();
        longest.map_or(0, |group| group.order)
    }
}

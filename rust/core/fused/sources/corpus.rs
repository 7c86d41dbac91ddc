//! What followed the longest matches in a datastore, and how does it go on along a path?

use std::ops::Range;

use crate::base::portable_math::saturating_u32;
use crate::fused::effort::Reading;
use crate::fused::evidence::{END, Evidence, Kind, Matched};
use crate::fused::sources::skip_gram::Skipped;
use crate::lookup::continuations::{Samples, runs};
use crate::lookup::datastore::Datastore;
use crate::lookup::holdout::Holdout;
use crate::lookup::matches::Match;
use crate::lookup::next_tokens::look_up_elsewhere;

/// How many tokens of a passage are read.
const LENGTH: usize = 8;

/// At most this many passages are read of a match of a node that is looked up again.
const MAX_PASSAGES_OF_NODE: usize = 32;

/// A child that inherits at least this many of its parent's passages is not looked up again.
const ENOUGH: usize = 16;

/// Where a match has at least this many passages, fewer are read of a shorter match.
const ENOUGH_BESIDE: usize = 8;

/// The lengths of context suffixes that are told apart.
const ORDERS: [usize; 9] = [2, 3, 4, 5, 6, 7, 8, 12, 16];

/// The lengths that likely nodes are looked up with, by their places in [`ORDERS`].
const OF_NODE: [usize; 2] = [1, 0];

/// Passages that follow one match.
#[derive(Debug, Clone)]
struct Group {
    order: usize,
    num_matches: f32,
    rows: Range<usize>,
}

/// The passages of all nodes of a draft.
#[derive(Debug, Default)]
pub(crate) struct Passages {
    groups: Vec<Group>,
    /// For each passage of each group, where in `tokens` it goes on.
    rows: Vec<u32>,
    /// Passages one after the other, each with its end.
    tokens: Vec<u32>,
    found: Vec<Match>,
    samples: Samples,
    /// A document that is drafted for as if it were not in the datastore.
    pub(crate) hidden: Option<Holdout>,
}

/// The groups of one node, the longest match first.
pub(crate) type Found = Range<usize>;

impl Passages {
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.rows.clear();
        self.tokens.clear();
    }

    /// Reads what followed the longest matches of `tail`, of two tokens or more, up to one that occurs
    /// at least as often as passages are read of it.
    ///
    /// Where all passages of a match are read, no longer one is searched for: its passages are those
    /// of them that the same tokens come before.
    #[expect(clippy::cast_precision_loss, reason = "as precise as a weight is")]
    pub(crate) fn look_up(
        &mut self,
        datastore: &Datastore,
        tail: &[u32],
        reading: Reading,
    ) -> Found {
        let start = self.groups.len();
        self.found.resize(ORDERS.len(), Match::default());
        let most = reading.passages as u64;
        let mut whole = 0;
        while whole < ORDERS.len() && self.search(datastore, tail, whole) > most {
            whole += 1;
        }
        if whole < ORDERS.len() {
            self.read_whole(datastore, tail, whole, reading);
        }
        for index in (0..whole).rev() {
            let groups = &self.groups[start..];
            let longer = groups.last();
            let num_longer = longer.map_or(0.0, |group| group.num_matches);
            if groups.len() == reading.matches || num_longer >= most as f32 {
                break;
            }
            let max_passages = match longer {
                Some(group) if group.rows.len() >= ENOUGH_BESIDE => reading.passages_if_covered,
                _ => reading.passages,
            };
            // What occurs no more often than something longer says nothing else.
            if self.found[index].count() as f32 > num_longer {
                self.read(datastore, index, max_passages, num_longer);
            }
        }
        start..self.groups.len()
    }

    /// Searches for a suffix of one of [`ORDERS`], and gives how often it occurs.
    fn search(&mut self, datastore: &Datastore, tail: &[u32], index: usize) -> u64 {
        let found = &mut self.found[index];
        match tail.len().checked_sub(ORDERS[index]) {
            Some(start) => datastore.shards().find(&tail[start..], found),
            None => *found = Match::default(),
        }
        found.count()
    }

    /// Reads all passages of a match, and with them those of the longest ones.
    #[expect(clippy::cast_precision_loss, reason = "a number of passages is small")]
    fn read_whole(&mut self, datastore: &Datastore, tail: &[u32], index: usize, reading: Reading) {
        let shortest = ORDERS[index];
        let before = &tail[..tail.len().saturating_sub(shortest)];
        self.sample(datastore, index, reading.passages, before);
        let (first, first_group) = (self.keep_samples(), self.groups.len());
        let mut num_longer = 0;
        for &order in ORDERS[index..].iter().rev() {
            let reach = order - shortest;
            let rows = self.samples.rows.iter();
            let count = rows.filter(|row| row.reach >= reach).count();
            if count > num_longer {
                num_longer = count;
                self.add_group(order, count as f32, first, reach);
            }
            if self.groups.len() - first_group == reading.matches {
                break;
            }
        }
    }

    /// Reads passages of a match, unless all but `num_longer` of them, those of a longer match, are
    /// hidden.
    #[expect(clippy::cast_precision_loss, reason = "as precise as a weight is")]
    fn read(&mut self, datastore: &Datastore, index: usize, max_passages: usize, num_longer: f32) {
        let count = self.sample(datastore, index, max_passages, &[]) as f32;
        if count > num_longer {
            let first = self.keep_samples();
            self.add_group(self.found[index].length, count, first, 0);
        }
    }

    /// Samples passages of a match, and gives how often it occurs.
    fn sample(
        &mut self,
        datastore: &Datastore,
        index: usize,
        max_passages: usize,
        before: &[u32],
    ) -> u64 {
        let found = &self.found[index];
        let elsewhere = self.hidden.as_ref().and_then(|hidden| {
            hidden.samples_elsewhere(datastore.shards(), found, LENGTH, max_passages, before)
        });
        if let Some((count, samples)) = elsewhere {
            self.samples = samples;
            return count;
        }
        let samples = &mut self.samples;
        datastore
            .shards()
            .read_samples(found, LENGTH, max_passages, before, samples);
        found.count()
    }

    /// Keeps the passages of the samples, and gives where the first of them is.
    fn keep_samples(&mut self) -> u32 {
        let first = saturating_u32(self.tokens.len());
        for row in self.samples.iter() {
            self.tokens.extend_from_slice(row);
            self.tokens.push(END);
        }
        first
    }

    /// Adds a group of those samples whose matches reach so far back; the first is kept at `first`.
    fn add_group(&mut self, order: usize, num_matches: f32, first: u32, reach: usize) {
        let (start, mut next) = (self.rows.len(), first);
        for row in &self.samples.rows {
            if row.reach >= reach {
                self.rows.push(next);
            }
            next += saturating_u32(row.tokens.len()) + 1;
        }
        self.groups.push(Group {
            order,
            num_matches,
            rows: start..self.rows.len(),
        });
    }

    /// What of the groups of a parent goes on with `token`.
    #[expect(clippy::cast_precision_loss, reason = "a number of passages is small")]
    pub(crate) fn follow(&mut self, parent: &Found, token: u32) -> Found {
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
                self.groups.push(Group {
                    order: group.order + 1,
                    num_matches: scale * num_rows as f32,
                    rows: start..self.rows.len(),
                });
            }
        }
        first..self.groups.len()
    }

    /// Reads what followed the last tokens of a likely node, where its parent's passages do not say
    /// enough of it.
    #[expect(clippy::cast_precision_loss, reason = "as precise as a weight is")]
    pub(crate) fn refresh(&mut self, datastore: &Datastore, tail: &[u32], found: &Found) -> Found {
        let [longest, ..] = OF_NODE.map(|index| ORDERS[index]);
        let says_little = |group: &Group| {
            let num_rows = group.rows.len();
            group.order <= longest && num_rows < ENOUGH && (num_rows as f32) < group.num_matches
        };
        let groups = &self.groups[found.clone()];
        let num_kept = groups.iter().position(says_little).unwrap_or(groups.len());
        self.groups.truncate(found.start + num_kept);
        for index in OF_NODE {
            let shortest = self.groups[found.start..].last();
            if shortest.is_none_or(|group| group.order > ORDERS[index]) {
                let num_longer = shortest.map_or(0.0, |group| group.num_matches);
                if self.search(datastore, tail, index) as f32 > num_longer {
                    self.read(datastore, index, MAX_PASSAGES_OF_NODE, num_longer);
                }
            }
        }
        found.start..self.groups.len()
    }

    /// Adds an expert for each match that occurs oftener than all longer ones.
    pub(crate) fn add_experts(&self, found: &Found, evidence: &mut Evidence) -> usize {
        let (mut rank, mut last) = (0, 0.0);
        for group in &self.groups[found.clone()] {
            if group.num_matches > last {
                last = group.num_matches;
                let rows = self.rows[group.rows.clone()].iter();
                let matched = Matched {
                    kind: Kind::Datastore,
                    order: group.order,
                    rank,
                    num_matches: group.num_matches,
                };
                // Passages are sorted: what they begin with stands together.
                let next = runs(rows.map(|&row| self.tokens[row as usize]));
                rank += usize::from(evidence.add(matched, None, next));
            }
        }
        rank
    }

    /// What follows where passages go on with another token than `token`: those of the longest match
    /// that is of more than one token and that some passages follow.
    pub(crate) fn skip(&self, found: &Found, token: u32, skipped: &mut Skipped) {
        const ENOUGH: usize = 4;
        let mut groups = self.groups[found.clone()].iter();
        let Some(group) = groups.find(|group| group.order > 1 && group.rows.len() >= ENOUGH) else {
            return;
        };
        for &row in &self.rows[group.rows.clone()] {
            if let [next, after, ..] = self.tokens[row as usize..]
                && next != END
                && next != token
            {
                skipped.add(group.order, after);
            }
        }
    }

    pub(crate) fn longest(&self, found: &Found) -> usize {
        self.groups[found.clone()]
            .first()
            .map_or(0, |group| group.order)
    }

    /// Adds the expert for what follows a node's token; `min_share` is the least share of a token
    /// that matters.
    pub(crate) fn count_followers(
        &self,
        datastore: &Datastore,
        token: u32,
        rank: usize,
        min_share: f32,
        evidence: &mut Evidence,
    ) {
        let hidden = self.hidden.as_ref();
        let elsewhere =
            hidden.and_then(|hidden| look_up_elsewhere(datastore.shards(), token, hidden));
        let next_tokens = elsewhere
            .as_ref()
            .or_else(|| datastore.next_tokens().of(datastore.shards(), token));
        if let Some(next_tokens) = next_tokens {
            let matched = Matched {
                kind: Kind::Datastore,
                order: 1,
                rank,
                num_matches: next_tokens.num_matches,
            };
            let min_count = min_share * next_tokens.num_samples;
            let matter = |&&(_, count): &&(u32, f32)| count >= min_count;
            let counts = next_tokens.counts.iter().take_while(matter).copied();
            evidence.add(matched, Some(next_tokens.num_samples), counts);
        }
    }
}

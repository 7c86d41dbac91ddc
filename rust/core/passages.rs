//! What followed in the datastore?

use std::ops::Range;

use crate::datastore::{Datastore, Match, Samples};
use crate::evidence::END;
use crate::stride::Stride;

/// How many tokens of a passage are read.
pub(crate) const LENGTH: usize = 12;

/// Samples of what followed a match.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) order: usize,
    pub(crate) num_matches: f32,
    /// Whether no match is left out.
    pub(crate) is_whole: bool,
    pub(crate) rows: Range<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Passages {
    pub(crate) groups: Vec<Group>,
    /// Places in `tokens`.
    pub(crate) rows: Vec<u32>,
    pub(crate) tokens: Vec<u32>,
    found: Match,
    samples: Samples,
    pub num_finds: usize,
    pub num_rows: usize,
}

impl Passages {
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.rows.clear();
        self.tokens.clear();
    }

    pub(crate) fn longest(&mut self, datastore: &Datastore, tail: &[u32], max: usize) -> usize {
        datastore.find_longest(tail, max.min(tail.len()), 1, &mut self.found);
        self.found.length
    }

    pub(crate) fn count(&mut self, datastore: &Datastore, pattern: &[u32]) -> u64 {
        self.num_finds += 1;
        datastore.find(pattern, &mut self.found);
        self.found.count()
    }

    /// Adds the group of the last count.
    pub(crate) fn add(&mut self, datastore: &Datastore, cap: usize) {
        let count = self.found.count();
        let stride = Stride::new(count, cap as u64);
        if self.found.is_in_one_shard() || stride.num_samples() == count {
            datastore.gather(&self.found, LENGTH, stride, &mut self.samples);
        } else {
            self.samples = datastore.samples(&self.found, LENGTH, cap);
        }
        let start = self.rows.len();
        for row in self.samples.iter() {
            self.num_rows += 1;
            self.rows.push(self.tokens.len() as u32);
            self.tokens.extend_from_slice(row);
            self.tokens.push(END);
            if row.len() < LENGTH {
                self.tokens.push(END);
            }
        }
        self.groups.push(Group {
            order: self.found.length,
            num_matches: count as f32,
            is_whole: stride.num_samples() == count,
            rows: start..self.rows.len(),
        });
    }

    /// Adds what of a group goes on with `token`.
    pub(crate) fn follow(&mut self, group: usize, token: u32) -> Group {
        let Group { order, num_matches, is_whole, rows } = self.groups[group].clone();
        let start = self.rows.len();
        let total = rows.len();
        for index in rows {
            let row = self.rows[index] as usize;
            if self.tokens[row] == token && self.tokens[row + 1] != END {
                self.rows.push(row as u32 + 1);
            }
        }
        let num_rows = self.rows.len() - start;
        Group {
            order: order + 1,
            num_matches: if is_whole {
                num_rows as f32
            } else {
                num_matches * num_rows as f32 / total as f32
            },
            is_whole,
            rows: start..self.rows.len(),
        }
    }
}

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
    found: Vec<Match>,
    samples: Samples,
    pub num_finds: usize,
    pub num_rows: usize,
}

const ORDERS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16];
/// The place in [`ORDERS`] that is tried first.
const FIRST: usize = 3;

impl Passages {
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.rows.clear();
        self.tokens.clear();
    }

    fn find(&mut self, datastore: &Datastore, tail: &[u32], index: usize) -> u64 {
        let order = ORDERS[index];
        if order > tail.len() {
            return 0;
        }
        self.num_finds += 1;
        let found = &mut self.found[index];
        datastore.find(&tail[tail.len() - order..], found);
        found.count()
    }

    /// The groups of the longest matches; gives the length of the longest.
    pub(crate) fn look_up(&mut self, datastore: &Datastore, tail: &[u32], max: usize, cap: usize) -> usize {
        self.found.resize(ORDERS.len(), Match::default());
        let mut index = FIRST;
        let mut longest = None;
        while index < ORDERS.len() && self.find(datastore, tail, index) > 0 {
            longest = Some(index);
            index += 1;
        }
        let mut last = 0;
        let mut num = 0;
        let mut searched = FIRST;
        for index in (1..longest.map_or(FIRST, |longest| longest + 1)).rev() {
            let count = if index < searched {
                searched = index;
                self.find(datastore, tail, index)
            } else {
                self.found[index].count()
            };
            if count > last {
                longest = longest.or(Some(index));
                last = count;
                self.add(datastore, index, cap);
                num += 1;
                if num == max {
                    break;
                }
            }
        }
        longest.map_or(0, |longest| ORDERS[longest])
    }

    fn add(&mut self, datastore: &Datastore, index: usize, cap: usize) {
        let found = &self.found[index];
        let count = found.count();
        let stride = Stride::new(count, cap as u64);
        if found.is_in_one_shard() || stride.num_samples() == count {
            datastore.gather(found, LENGTH, stride, &mut self.samples);
        } else {
            self.samples = datastore.samples(found, LENGTH, cap);
        }
        let start = self.rows.len();
        for row in self.samples.iter() {
            self.num_rows += 1;
            self.rows.push(self.tokens.len() as u32);
            self.tokens.extend_from_slice(row);
            self.tokens.extend([END, END]);
        }
        self.groups.push(Group {
            order: found.length,
            num_matches: count as f32,
            is_whole: stride.num_samples() == count,
            rows: start..self.rows.len(),
        });
    }

    /// Adds what of a group goes on with `token`.
    pub(crate) fn follow(&mut self, group: usize, token: u32) {
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
        if num_rows > 0 {
            self.groups.push(Group {
                order: order + 1,
                num_matches: if is_whole {
                    num_rows as f32
                } else {
                    num_matches * num_rows as f32 / total as f32
                },
                is_whole,
                rows: start..self.rows.len(),
            });
        }
    }
}

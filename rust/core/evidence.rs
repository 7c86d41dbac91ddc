//! What do the sources say comes next at a node of the tree?

use std::ops::Range;

/// Stands for the end of a text, where no token comes next.
pub(crate) const END: u32 = u32::MAX;

/// What an expert looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Datastore,
    Context,
    Memory,
    /// The datastore, past one token that differs.
    DatastoreGap,
    ContextGap,
    MemoryGap,
}

impl Kind {
    pub(crate) const COUNT: usize = 6;

    pub(crate) fn is_gap(self) -> bool {
        self as usize >= Self::DatastoreGap as usize
    }
}

/// The counts of what followed one match of one source.
#[derive(Debug, Clone)]
pub(crate) struct Expert {
    pub(crate) kind: Kind,
    /// The length of the match.
    pub(crate) order: usize,
    /// How many experts of its kind have longer matches.
    pub(crate) rank: usize,
    /// How often the match occurs.
    pub(crate) num_matches: f32,
    /// What its counts add up to.
    pub(crate) total: f32,
    pub(crate) counts: Range<usize>,
    /// Its most frequent token, by place.
    pub(crate) top: u16,
    /// Keys into the tables of weights.
    pub(crate) keys: [u32; 3],
    pub(crate) trust_key: u32,
    pub(crate) weight: f32,
}

impl Expert {
    pub(crate) fn num_distinct(&self) -> usize {
        self.counts.len()
    }
}

/// How often a token followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count {
    /// The place of the token among those of the node.
    pub(crate) place: u16,
    pub(crate) count: f32,
}

/// A token that may come next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) token: u32,
    /// Its place among the tokens of the node.
    pub(crate) place: u16,
    pub(crate) cache_key: u32,
    pub(crate) token_key: u32,
    pub(crate) recent_key: u32,
    pub(crate) prob: f32,
}

/// What is known at one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) experts: Range<usize>,
    /// All tokens that any expert names.
    pub(crate) tokens: Range<usize>,
    /// The likeliest ones.
    pub(crate) candidates: Range<usize>,
    /// The weight of no expert.
    pub(crate) none: f32,
    /// What is left to tokens that are no candidates.
    pub(crate) rest: f32,
}

/// What is known at the nodes of one draft.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) experts: Vec<Expert>,
    pub(crate) counts: Vec<Count>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) shares: Vec<f32>,
    pub(crate) candidates: Vec<Candidate>,
    places: Places,
}

impl Evidence {
    pub(crate) fn clear(&mut self) {
        self.experts.clear();
        self.counts.clear();
        self.tokens.clear();
        self.shares.clear();
        self.candidates.clear();
    }

    pub(crate) fn start_node(&mut self) -> Known {
        self.places.clear();
        Known {
            experts: self.experts.len()..self.experts.len(),
            tokens: self.tokens.len()..self.tokens.len(),
            candidates: 0..0,
            none: 1.0,
            rest: 1.0,
        }
    }

    pub(crate) fn finish_node(&mut self, known: &mut Known) {
        known.experts.end = self.experts.len();
        known.tokens.end = self.tokens.len();
        self.shares.resize(self.tokens.len(), 0.0);
    }

    /// Starts the counts of an expert.
    pub(crate) fn start_expert(&mut self) -> usize {
        self.places.num_experts += 1;
        self.counts.len()
    }

    pub(crate) fn count(&mut self, known: &Known, token: u32, count: f32) {
        if token == END {
            return;
        }
        let first = known.tokens.start;
        let num_experts = self.places.num_experts;
        let Some(entry) = self.places.entry(token) else {
            return;
        };
        if entry.place == NEW {
            entry.place = u16::try_from(self.tokens.len() - first).unwrap_or(0);
            self.tokens.push(token);
        }
        if entry.expert == num_experts {
            self.counts[entry.count as usize].count += count;
        } else {
            entry.expert = num_experts;
            entry.count = self.counts.len() as u32;
            self.counts.push(Count {
                place: entry.place,
                count,
            });
        }
    }

    /// Adds the expert whose counts were made since `start`, unless there are none.
    pub(crate) fn finish_expert(
        &mut self,
        known: &Known,
        start: usize,
        kind: Kind,
        order: usize,
        rank: usize,
        num_matches: f32,
    ) -> bool {
        let counts = &self.counts[start..];
        let mut total = 0.0;
        let mut top: Option<Count> = None;
        let token = |place: u16| self.tokens[known.tokens.start + place as usize];
        for &count in counts {
            total += count.count;
            let is_top = top.is_none_or(|top| {
                count.count > top.count
                    || (count.count == top.count && token(count.place) < token(top.place))
            });
            if is_top {
                top = Some(count);
            }
        }
        let Some(top) = top else { return false };
        self.experts.push(Expert {
            kind,
            order,
            rank,
            num_matches,
            total,
            counts: start..self.counts.len(),
            top: top.place,
            keys: [0; 3],
            trust_key: 0,
            weight: 0.0,
        });
        true
    }

    pub(crate) fn token(&self, known: &Known, place: u16) -> u32 {
        self.tokens[known.tokens.start + place as usize]
    }
}

const NEW: u16 = u16::MAX;
const NUM_ENTRIES: usize = 1024;

/// Where the tokens of a node are.
#[derive(Debug)]
struct Places {
    entries: Vec<Entry>,
    epoch: u32,
    num_experts: u32,
    num_used: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    epoch: u32,
    token: u32,
    expert: u32,
    count: u32,
    place: u16,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            entries: vec![Entry::default(); NUM_ENTRIES],
            epoch: 0,
            num_experts: 0,
            num_used: 0,
        }
    }
}

impl Places {
    fn clear(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.entries.fill(Entry::default());
            self.epoch = 1;
        }
        self.num_used = 0;
        self.num_experts = 0;
    }

    fn entry(&mut self, token: u32) -> Option<&mut Entry> {
        let mut index = (token.wrapping_mul(0x9E37_79B1) >> 22) as usize;
        loop {
            let entry = &self.entries[index];
            if entry.epoch != self.epoch {
                if self.num_used * 2 >= NUM_ENTRIES {
                    return None;
                }
                self.num_used += 1;
                self.entries[index] = Entry {
                    epoch: self.epoch,
                    token,
                    expert: 0,
                    count: 0,
                    place: NEW,
                };
                return Some(&mut self.entries[index]);
            }
            if entry.token == token {
                return Some(&mut self.entries[index]);
            }
            index = (index + 1) % NUM_ENTRIES;
        }
    }
}

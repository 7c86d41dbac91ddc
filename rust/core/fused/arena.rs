//! What the sources say comes next at the nodes of a draft.

use std::cell::RefCell;
use std::hint::select_unpredictable;
use std::ops::Range;

use crate::draft::token_tree::Source;
use crate::portable_math::{hash, rank_of, saturating_u32};
use crate::weights::adaptation::Keys;
use crate::weights::kind::ExpertKind;

/// Stands for the end of a text, where no token comes next.
pub(crate) const END: u32 = u32::MAX;

/// The match behind an expert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matched {
    pub(crate) kind: ExpertKind,
    /// The length of the match, at least 1.
    pub(crate) order: usize,
    /// How many experts of its kind have longer matches; of an edited match, how many more tokens than one
    /// are the same since the edit.
    pub(crate) rank: usize,
    /// How often the match occurs.
    pub(crate) num_matches: f32,
}

/// A match and the counts of what followed it.
#[derive(Debug, Clone)]
pub(crate) struct Expert {
    pub(crate) matched: Matched,
    pub(crate) counts: Range<usize>,
    /// The sum of the counts of all tokens that followed, including tokens that are not listed.
    pub(crate) total: f32,
    /// The slot of its most frequent token.
    pub(crate) top_slot: usize,
    pub(crate) keys: Keys,
    pub(crate) reliability_key: usize,
    /// The sum of its weights; below it, its share of the mixture.
    pub(crate) score: f32,
    pub(crate) weight: f32,
}

/// How often a token followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count {
    /// The index of the token among the named tokens of the node.
    pub(crate) slot: u32,
    pub(crate) count: f32,
}

/// A token that some expert of a node names.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScoredToken {
    pub(crate) token: u32,
    /// Its probability by the mixture of experts.
    pub(crate) prob: f32,
    /// The largest share that one expert gives it; below it, the kind of that expert.
    pub(crate) largest_prob: f32,
    pub(crate) kind: ExpertKind,
    /// The sum of trust times log ratio over the experts that name this token, less their share for tokens that
    /// they do not name.
    pub(crate) log_factor: f32,
}

/// One of the likeliest tokens of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) token: u32,
    pub(crate) slot: usize,
    pub(crate) keys: Keys,
    /// The sum of its weights and of the experts' opinions; below it, the probability that comes of the sum.
    pub(crate) score: f32,
    pub(crate) prob: f32,
    pub(crate) source: Source,
}

/// Where the experts, the named tokens and the candidates of one node lie in [`DraftArena`].
#[derive(Debug, Clone, Default)]
pub(crate) struct NodePrediction {
    pub(crate) experts: Range<usize>,
    pub(crate) scored: Range<usize>,
    pub(crate) candidates: Range<usize>,
}

/// The experts, named tokens and candidates of all nodes of one draft, node after node.
#[derive(Debug, Default, Clone)]
pub(crate) struct DraftArena {
    pub(crate) experts: Vec<Expert>,
    pub(crate) counts: Vec<Count>,
    pub(crate) scored: Vec<ScoredToken>,
    pub(crate) candidates: Vec<Candidate>,
    /// Those of the named tokens that may be candidates, as [`rank_of`] orders them, and their places.
    pub(crate) ranked: Vec<(u64, u32)>,
    slots: TokenSlots,
    first_expert: usize,
    first_scored: usize,
}

impl DraftArena {
    pub(crate) fn clear(&mut self) {
        self.experts.clear();
        self.counts.clear();
        self.scored.clear();
        self.candidates.clear();
    }

    /// Takes the thread's table of places, or gives it back: one for all requests that a thread drafts
    /// for, as the caches hold no table for each of a batch.
    pub(crate) fn swap_slots(&mut self) {
        SLOTS.with_borrow_mut(|slots| std::mem::swap(slots, &mut self.slots));
    }

    /// Starts a node; the experts added next are its own.
    pub(crate) fn start(&mut self) {
        self.slots.clear();
        self.first_expert = self.experts.len();
        self.first_scored = self.scored.len();
    }

    /// The node whose experts were added last.
    pub(crate) fn node(&self) -> NodePrediction {
        NodePrediction {
            experts: self.first_expert..self.experts.len(),
            scored: self.first_scored..self.scored.len(),
            candidates: self.candidates.len()..self.candidates.len(),
        }
    }

    /// Adds an expert, unless nothing followed: counts of tokens, and what they add up to where they
    /// are not all.
    pub(crate) fn add(
        &mut self,
        matched: Matched,
        total: Option<f32>,
        counts: impl IntoIterator<Item = (u32, f32)>,
    ) -> bool {
        let first = self.counts.len();
        self.slots.num_experts += 1;
        for (token, count) in counts {
            self.count(token, count);
        }
        self.add_counted(matched, total, first)
    }

    /// Adds the expert whose counts are there, from `first` on. This is one function for all kinds of counts, as
    /// there is little room in the processor's cache for instructions.
    #[inline(never)]
    fn add_counted(&mut self, matched: Matched, total: Option<f32>, first: usize) -> bool {
        if first == self.counts.len() {
            return false;
        }
        let scored = &self.scored[self.first_scored..];
        let (mut listed, mut top) = (0.0, (0, 0));
        for count in &self.counts[first..] {
            listed += count.count;
            let rank = rank_of(count.count, scored[count.slot as usize].token);
            top = select_unpredictable(rank > top.0, (rank, count.slot), top);
        }
        self.experts.push(Expert {
            matched,
            counts: first..self.counts.len(),
            total: total.unwrap_or(listed),
            top_slot: top.1 as usize,
            keys: Keys::default(),
            reliability_key: 0,
            score: 0.0,
            weight: 0.0,
        });
        true
    }

    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    #[inline(always)]
    fn count(&mut self, token: u32, count: f32) {
        let num_experts = self.slots.num_experts;
        let num_scored = self.scored.len() - self.first_scored;
        if token == END {
            return;
        }
        let Some(entry) = self.slots.slot_of(token, num_scored) else {
            return;
        };
        if entry.slot as usize == num_scored {
            self.scored.push(ScoredToken { token, ..ScoredToken::default() });
        }
        if entry.expert == num_experts {
            self.counts[entry.count as usize].count += count;
        } else {
            entry.expert = num_experts;
            entry.count = saturating_u32(self.counts.len());
            self.counts.push(Count { slot: entry.slot, count });
        }
    }
}

const ENTRIES_BITS: u32 = 10;
const NUM_ENTRIES: usize = 1 << ENTRIES_BITS;

/// The most tokens of a node: those named later are left out.
pub(crate) const MAX_SCORED: usize = NUM_ENTRIES / 2;

thread_local! {
    static SLOTS: RefCell<TokenSlots> = RefCell::default();
}

/// Where the tokens of a node are: an open hash table that fits into the nearest cache and is
/// emptied by a change of epoch. It takes no memory before it is used.
#[derive(Debug, Clone, Default)]
struct TokenSlots {
    entries: Vec<TokenSlot>,
    epoch: u32,
    num_experts: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct TokenSlot {
    epoch: u32,
    token: u32,
    slot: u32,
    /// The last expert that named the token; below it, the place of its count.
    expert: u32,
    count: u32,
}

impl TokenSlots {
    fn clear(&mut self) {
        self.num_experts = 0;
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 || self.entries.is_empty() {
            self.entries.clear();
            self.entries.resize(NUM_ENTRIES, TokenSlot::default());
            self.epoch = 1;
        }
    }

    /// The slot of a token; a new token gets the index `num_scored`. `None` where there is no room.
    fn slot_of(&mut self, token: u32, num_scored: usize) -> Option<&mut TokenSlot> {
        let mut index = hash::<ENTRIES_BITS>(token);
        loop {
            let entry = &self.entries[index];
            if entry.epoch != self.epoch {
                if num_scored == MAX_SCORED {
                    return None;
                }
                self.entries[index] = TokenSlot {
                    epoch: self.epoch,
                    token,
                    slot: saturating_u32(num_scored),
                    expert: 0,
                    count: 0,
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

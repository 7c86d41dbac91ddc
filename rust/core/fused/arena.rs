//! Storage for the experts, scored tokens and candidates of all nodes of a draft.

use std::cell::RefCell;
use std::hint::select_unpredictable;
use std::ops::Range;

use crate::draft::token_tree::Source;
use crate::portable_math::{hash, rank_of, saturating_u32};
use crate::weights::adaptation::AdaptationKeys;
use crate::weights::kind::ExpertKind;

/// Stands for the end of a text, where no token comes next.
pub(crate) const END: u32 = u32::MAX;

/// The match behind an expert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matched {
    pub(crate) kind: ExpertKind,
    /// The length of the match, at least 1.
    pub(crate) order: usize,
    /// The number of experts of the same kind with longer matches. For a gapped match, the number of
    /// tokens, less one, that match after the gap.
    pub(crate) rank: usize,
    /// The number of occurrences of the match.
    pub(crate) num_matches: f32,
}

/// A match and the counts of what followed it.
#[derive(Debug, Clone)]
pub(crate) struct Expert {
    pub(crate) matched: Matched,
    /// The range of this expert in [`DraftArena::counts`].
    pub(crate) counts: Range<usize>,
    /// The sum of the counts of all tokens that followed, including tokens that are not listed.
    pub(crate) total: f32,
    /// The slot of the most frequent continuation.
    pub(crate) top_slot: usize,
    /// The weights that are summed up to `score`.
    pub(crate) keys: AdaptationKeys,
    /// The weight of this expert's log-likelihood ratios.
    pub(crate) reliability_key: usize,
    /// The sum of the weights selected by `keys`.
    pub(crate) score: f32,
    /// The probability mass of this expert in the mixture.
    pub(crate) weight: f32,
}

/// The number of times that a token followed a match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count {
    /// The index of the token among the scored tokens of the node.
    pub(crate) slot: u32,
    pub(crate) count: f32,
}

/// A token that at least one expert of a node proposes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScoredToken {
    pub(crate) token: u32,
    /// The probability of the token in the mixture of experts.
    pub(crate) prob: f32,
    /// The largest probability mass that one expert contributes.
    pub(crate) largest_prob: f32,
    /// The kind of the expert that contributes `largest_prob`.
    pub(crate) kind: ExpertKind,
    /// The sum of reliability times log-likelihood ratio over the experts that propose this token, minus
    /// what these experts assign to tokens they do not propose.
    pub(crate) log_factor: f32,
}

/// One of the likeliest tokens of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) token: u32,
    /// The index of the token among the scored tokens of the node.
    pub(crate) slot: usize,
    pub(crate) keys: AdaptationKeys,
    /// The sum of the candidate's weights and of the weighted log-likelihood ratios of the experts.
    pub(crate) score: f32,
    /// The probability after the correction by `score`.
    pub(crate) prob: f32,
    pub(crate) source: Source,
}

/// Ranges of the experts, scored tokens and candidates of one node in [`DraftArena`].
#[derive(Debug, Clone, Default)]
pub(crate) struct NodePrediction {
    pub(crate) experts: Range<usize>,
    pub(crate) scored: Range<usize>,
    pub(crate) candidates: Range<usize>,
}

/// The experts, scored tokens and candidates of all nodes of one draft, node after node.
#[derive(Debug, Default, Clone)]
pub(crate) struct DraftArena {
    pub(crate) experts: Vec<Expert>,
    pub(crate) counts: Vec<Count>,
    pub(crate) scored: Vec<ScoredToken>,
    pub(crate) candidates: Vec<Candidate>,
    /// Tokens of the current node that may become candidates: their rank by [`rank_of`] and their slot.
    pub(crate) ranked: Vec<(u64, u32)>,
    /// The table that maps a token of the current node to its slot.
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

    /// Swaps in the table of the current thread, or returns it. All requests that a thread drafts for
    /// share one table: a table per request would not fit the cache in a batch.
    pub(crate) fn swap_slots(&mut self) {
        SLOTS.with_borrow_mut(|slots| std::mem::swap(slots, &mut self.slots));
    }

    /// Starts a node. Experts added next belong to it.
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

    /// Adds an expert unless `counts` is empty. `total` is the sum of all counts if `counts` is
    /// incomplete.
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

    /// Adds the expert for `counts[first..]`. One function serves all iterators, because the instruction
    /// cache is small.
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
            keys: AdaptationKeys::default(),
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

/// The maximum number of scored tokens of a node. Further tokens are ignored.
pub(crate) const MAX_SCORED: usize = NUM_ENTRIES / 2;

thread_local! {
    static SLOTS: RefCell<TokenSlots> = RefCell::default();
}

/// An open-addressing hash table from token to slot. It fits the L1 cache, a change of epoch empties it,
/// and it allocates on first use.
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
    /// The last expert that proposed the token.
    expert: u32,
    /// The index of the token's count for that expert.
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

    /// Returns the entry of a token. A new token gets the slot `num_scored`, or `None` if the node is
    /// full.
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

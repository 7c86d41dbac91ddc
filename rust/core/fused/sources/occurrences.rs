//! Earlier occurrences of the end of a path in a growing token sequence.

use std::ops::Range;

use crate::fused::arena::{DraftArena, END, Matched};
use crate::fused::effort::SearchLimits;
use crate::fused::source::SkipGrams;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::portable_math::saturating_u32;
use crate::weights::kind::ExpertKind;

/// The maximum match length that is computed.
const MAX_LENGTH: usize = 32;

/// The largest length bucket, because buckets are bits of a 64-bit number.
const LONGEST: u32 = u64::BITS - 1;

/// The minimum gapped length for which a gapped match is an expert.
const MIN_GAPPED: u32 = 3;

/// The number of longest match lengths that are experts of their own.
const MAX_EXPERTS: usize = 3;

/// The count of an occurrence relative to the next later one.
pub(super) const DECAY: f32 = 0.95;

/// The maximum length of a near sequence, which fits the cache of a core.
const NEAR: usize = 1 << 17;

/// The number of latest occurrences in a near sequence that a node of probability 1 reads; others read
/// proportionally fewer.
const OCCURRENCES_AT_ONE: f32 = 512.0;

/// Limits of the search for one node.
#[derive(Debug, Clone, Copy)]
pub(super) struct OccurrenceLimits {
    /// The maximum number of occurrences of the last two tokens.
    bigrams: usize,
    /// The maximum number of occurrences of the last token alone.
    unigrams: usize,
    /// A node that keeps this many of its parent's occurrences is not searched for. With this many of its
    /// last two tokens, it does not search for the last one alone.
    enough: usize,
    /// Compute `gapped_len`.
    match_gapped: bool,
}

impl OccurrenceLimits {
    /// Returns the limits for the root, or for a child of this probability. In a sequence that is not
    /// near, each occurrence costs a main memory access.
    pub(super) fn of(child: Option<f32>, text: &IndexedTokens, search: SearchLimits) -> Self {
        let prob = child.unwrap_or(1.0);
        let is_near = text.tokens().len() <= NEAR;
        let (most, limits) = if is_near {
            (search.max_occurrences, OCCURRENCES_AT_ONE)
        } else {
            (search.max_occurrences / 2, OCCURRENCES_AT_ONE / 2.0)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a probability is not negative, and the product is limited"
        )]
        let bigrams = ((prob * limits) as usize).clamp(8, most);
        let has_bigrams = is_near || prob >= search.requery_min_prob_long_text;
        let unigrams = match child {
            _ if is_near => bigrams / 4,
            None => search.max_unigram_occurrences,
            Some(_) => 0,
        };
        Self {
            bigrams: if has_bigrams { bigrams } else { 0 },
            unigrams,
            enough: search.min_occurrences,
            match_gapped: search.match_gapped,
        }
    }
}

/// An occurrence of the last tokens of a path.
#[derive(Debug, Clone, Copy)]
struct Occurrence {
    /// The position of the continuation.
    next: u32,
    /// The token at `next`.
    token: u32,
    /// The token after `token`.
    after: u32,
    /// The number of tokens before `next` that equal the end of the path.
    length: u32,
    /// The number of tokens that match before these if one token was changed, inserted or deleted.
    gapped_len: u32,
}

/// The occurrences of one node, in [`Occurrences`].
#[derive(Debug, Clone, Default)]
pub(super) struct NodeOccurrences {
    range: Range<usize>,
    /// Set if the search stopped at a limit.
    is_cut: bool,
}

/// The occurrences of all nodes of a draft, node after node.
#[derive(Debug, Default, Clone)]
pub(super) struct Occurrences(Vec<Occurrence>);

impl Occurrences {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the parent's occurrences that continue with the node's token if they are enough, else the
    /// latest occurrences of the end of `tail`.
    pub(super) fn find(
        &mut self,
        text: &IndexedTokens,
        parent: Option<&NodeOccurrences>,
        tail: &[u32],
        limits: OccurrenceLimits,
    ) -> NodeOccurrences {
        let start = self.0.len();
        let Some((&last, before)) = tail.split_last() else {
            return NodeOccurrences::default();
        };
        let before = before.last().copied();
        let mut is_cut = true;
        if let Some(parent) = parent {
            self.follow(text, parent, last);
            is_cut = parent.is_cut;
        }
        let mut searched = self.0.len();
        if is_cut && limits.bigrams > 0 && self.0.len() - start < limits.enough {
            self.0.truncate(start);
            searched = start;
            is_cut = before
                .is_some_and(|before| self.add_after_bigram(text, before, tail, limits.bigrams));
        }
        if limits.unigrams > 0 && self.0.len() - start < limits.enough {
            is_cut |= self.add_after_unigram(text, before, last, limits.unigrams);
        } else {
            is_cut = true;
        }
        if limits.match_gapped {
            for occurrence in &mut self.0[searched..] {
                let before = &text.tokens()[..occurrence.next as usize];
                occurrence.gapped_len = gapped_len(before, tail, occurrence.length as usize);
            }
        }
        NodeOccurrences { range: start..self.0.len(), is_cut }
    }

    fn follow(&mut self, text: &IndexedTokens, parent: &NodeOccurrences, token: u32) {
        let tokens = text.tokens();
        for index in parent.range.clone() {
            let occurrence = self.0[index];
            let next = occurrence.next as usize + 1;
            if occurrence.token == token && next < tokens.len() {
                self.0.push(Occurrence {
                    next: occurrence.next + 1,
                    token: occurrence.after,
                    after: token_at(text, next + 1),
                    length: (occurrence.length + 1).min(LONGEST),
                    gapped_len: occurrence.gapped_len,
                });
            }
        }
    }

    /// Adds occurrences of the last two tokens, and returns true if there are more.
    fn add_after_bigram(
        &mut self,
        text: &IndexedTokens,
        before: u32,
        tail: &[u32],
        limit: usize,
    ) -> bool {
        let last = tail[tail.len() - 1];
        let tokens = text.tokens();
        let start = self.0.len();
        let is_cut = self.add(text, text.of_pair(before, last), limit);
        // A separate loop, so that the memory reads of each loop overlap.
        for occurrence in &mut self.0[start..] {
            let pairs = tokens[..occurrence.next as usize].iter().rev().zip(tail.iter().rev());
            let is_same = |(a, b): &(&u32, &u32)| a == b;
            occurrence.length = saturating_u32(pairs.take(MAX_LENGTH).take_while(is_same).count());
        }
        is_cut
    }

    /// Adds occurrences of the last token after a different token, and returns true if there are more.
    fn add_after_unigram(
        &mut self,
        text: &IndexedTokens,
        before: Option<u32>,
        last: u32,
        limit: usize,
    ) -> bool {
        let start = self.0.len();
        let is_cut = self.add(text, text.of_token(last), limit);
        let tokens = text.tokens();
        let mut end = start;
        for index in start..self.0.len() {
            let occurrence = self.0[index];
            let before_it = (occurrence.next as usize).checked_sub(2).map(|index| tokens[index]);
            if before_it.is_none() || before_it != before {
                self.0[end] = occurrence;
                end += 1;
            }
        }
        self.0.truncate(end);
        is_cut
    }

    /// Adds at most `limit` occurrences, and returns true if there are more.
    fn add(
        &mut self,
        text: &IndexedTokens,
        mut ends: impl Iterator<Item = usize>,
        limit: usize,
    ) -> bool {
        let mut end = ends.next();
        // The end of the context itself has no continuation.
        if end.is_some_and(|end| end + 1 == text.tokens().len()) {
            end = ends.next();
        }
        for _ in 0..limit {
            let Some(last) = end else {
                return false;
            };
            self.0.push(Occurrence {
                next: saturating_u32(last + 1),
                token: token_at(text, last + 1),
                after: token_at(text, last + 2),
                length: 1,
                gapped_len: 0,
            });
            end = ends.next();
        }
        end.is_some()
    }

    /// Adds an expert for each of the longest lengths, from the occurrences of at least that length. An
    /// occurrence counts once more for each token of its gapped length.
    pub(super) fn add_experts(
        &self,
        found: &NodeOccurrences,
        kind: ExpertKind,
        arena: &mut DraftArena,
    ) {
        let occurrences = &self.0[found.range.clone()];
        // One bit for each length that occurs.
        let mut lengths = 0_u64;
        for occurrence in occurrences {
            lengths |= 1 << occurrence.length;
        }
        for rank in 0..MAX_EXPERTS {
            let Some(length) = lengths.checked_ilog2() else {
                return;
            };
            lengths ^= 1 << length;
            let occurrences = occurrences.iter().filter(|occurrence| occurrence.length >= length);
            let matched = Matched {
                kind,
                order: length as usize,
                rank,
                num_matches: occurrences.clone().count() as f32,
            };
            let mut count = 1.0 / DECAY;
            let counts = occurrences.map(|occurrence| {
                count *= DECAY;
                (occurrence.token, count * (1.0 + occurrence.gapped_len as f32))
            });
            arena.add(matched, None, counts);
        }
    }

    /// Adds an expert for occurrences with a long gapped match: a name, a value or a word changed, and
    /// the rest is the same.
    pub(super) fn add_gapped(
        &self,
        found: &NodeOccurrences,
        kind: ExpertKind,
        arena: &mut DraftArena,
    ) {
        let occurrences = self.0[found.range.clone()].iter();
        let occurrences = occurrences.filter(|occurrence| occurrence.gapped_len >= MIN_GAPPED);
        let (mut number, mut length, mut gapped_len) = (0.0, 1, 0);
        for occurrence in occurrences.clone() {
            number += 1.0;
            length = occurrence.length.max(length);
            gapped_len = occurrence.gapped_len.max(gapped_len);
        }
        let matched = Matched {
            kind,
            order: gapped_len as usize,
            rank: length as usize - 1,
            num_matches: number,
        };
        let counts = std::iter::successors(Some(1.0), |count| Some(count * DECAY));
        arena.add(matched, None, occurrences.map(|occurrence| occurrence.token).zip(counts));
    }

    /// Collects the second tokens after occurrences whose first is not `token`, at most `max_skip_grams`,
    /// latest first.
    pub(super) fn collect_skip_grams(
        &self,
        found: &NodeOccurrences,
        token: u32,
        max_skip_grams: usize,
        skip_grams: &mut SkipGrams,
    ) {
        for occurrence in &self.0[found.range.clone()] {
            if occurrence.token != END && occurrence.token != token {
                skip_grams.add(occurrence.length, occurrence.after);
                if skip_grams.tokens.len() == max_skip_grams {
                    break;
                }
            }
        }
    }

    pub(super) fn longest(&self, found: &NodeOccurrences) -> usize {
        let lengths = self.0[found.range.clone()].iter().map(|occurrence| occurrence.length);
        lengths.max().unwrap_or(0) as usize
    }
}

/// Returns the number of equal tokens before a match of `length` and one further token of the text, of
/// the tail, or of both.
fn gapped_len(text: &[u32], tail: &[u32], length: usize) -> u32 {
    if length >= MAX_LENGTH {
        return 0;
    }
    let common = |(in_text, in_tail)| {
        let text = &text[..text.len().saturating_sub(length + in_text)];
        let tail = &tail[..tail.len().saturating_sub(length + in_tail)];
        let pairs = text.iter().rev().zip(tail.iter().rev());
        pairs.take(MAX_LENGTH).take_while(|(a, b)| a == b).count()
    };
    let edits = [(1, 1), (0, 1), (1, 0)];
    saturating_u32(edits.into_iter().map(common).max().unwrap_or(0))
}

fn token_at(text: &IndexedTokens, position: usize) -> u32 {
    text.tokens().get(position).copied().unwrap_or(END)
}

#[cfg(test)]
mod tests {
    use super::{NEAR, NodeOccurrences, OccurrenceLimits, Occurrences};
    use crate::fused::effort::Effort;
    use crate::memory::indexed_tokens::IndexedTokens;

    /// Returns the continuations of 1, 2 in a text of more than `num_tokens` tokens: 3, and 4 where only
    /// the 2 matches.
    fn tokens_found(num_tokens: usize, child: Option<f32>, effort: Effort) -> Vec<u32> {
        let mut text = IndexedTokens::default();
        text.extend(&vec![0; num_tokens]);
        text.extend(&[1, 2, 3, 0, 5, 2, 4]);
        let limits = OccurrenceLimits::of(child, &text, effort.search_limits());
        let parent = child.map(|_| NodeOccurrences { range: 0..0, is_cut: true });
        let mut occurrences = Occurrences::default();
        let found = occurrences.find(&text, parent.as_ref(), &[1, 2], limits);
        let occurrences = occurrences.0[found.range].iter();
        occurrences.map(|occurrence| occurrence.token).collect()
    }

    #[test]
    fn children_search_less_in_a_long_sequence() {
        for child in [None, Some(0.5), Some(0.05)] {
            assert_eq!(tokens_found(0, child, Effort::Low), [3, 4]);
        }
        for effort in [Effort::Low, Effort::Normal] {
            assert_eq!(tokens_found(NEAR, None, effort), [3, 4]);
            assert_eq!(tokens_found(NEAR, Some(0.5), effort), [3]);
            assert_eq!(tokens_found(NEAR, Some(0.05), effort), [0; 0]);
        }
        assert_eq!(tokens_found(NEAR, Some(0.2), Effort::Low), [0; 0]);
        assert_eq!(tokens_found(NEAR, Some(0.2), Effort::Normal), [3]);
    }

    #[test]
    fn unigram_occurrences_are_limited_in_a_long_sequence() {
        for (effort, expected) in [(Effort::Low, 8), (Effort::Normal, 64)] {
            let mut text = IndexedTokens::default();
            text.extend(&vec![0; NEAR]);
            text.extend(&[5, 2].repeat(100));
            let mut occurrences = Occurrences::default();
            let limits = OccurrenceLimits::of(None, &text, effort.search_limits());
            let found = occurrences.find(&text, None, &[1, 2], limits);
            assert_eq!(found.range.len(), expected);
            assert!(found.is_cut);
        }
    }
}

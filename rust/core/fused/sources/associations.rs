//! Source of tokens that follow associated tokens in the context.
//!
//! See [`TokenAssociations`](crate::weights::associations) for their definition.

use crate::draft::token_tree::Source;
use crate::fused::arena::{DraftArena, Matched};
use crate::fused::source::{DraftSource, NodeView, SourceInputs};
use crate::memory::indexed_tokens::IndexedTokens;
use crate::weights::adaptation::TenantAdaptation;
use crate::weights::associations::{NUM_ASSOCIATIONS, TokenAssociations};
use crate::weights::kind::{ExpertKind, MatchForm};

const KIND: ExpertKind = ExpertKind::of(Source::Context, MatchForm::Associated);

/// The maximum number of latest occurrences of a token that are read.
const MAX_OCCURRENCES: usize = 8;
/// The maximum number of associations that one token updates.
const MAX_LEARNED: usize = 4;

/// Associations that were right in less than one of this many cases are ignored.
const MAX_CASES_PER_HIT: u32 = 5;

#[derive(Debug, Clone, Copy)]
pub(crate) struct AssociationSource;

impl DraftSource for AssociationSource {
    fn add_experts(
        &mut self,
        inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    ) {
        let associations = &inputs.weights.adaptation.associations;
        add_expert(associations, inputs.context, node.path, arena);
    }

    fn learn(&self, adaptation: &mut TenantAdaptation, context: &IndexedTokens, token: u32) {
        learn(&mut adaptation.associations, context, token);
    }
}

/// Updates the associations: `token` came after `text`.
fn learn(associations: &mut TokenAssociations, text: &IndexedTokens, token: u32) {
    if let Some(&last) = text.tokens().last() {
        associations.learn(last, associated_with(text, token));
    }
}

/// Adds an expert for the tokens that follow the associated tokens of the last token. `path` comes after
/// `text`.
fn add_expert(
    associations: &TokenAssociations,
    text: &IndexedTokens,
    path: &[u32],
    arena: &mut DraftArena,
) {
    let last = path.last().or_else(|| text.tokens().last());
    let Some(known) = last.and_then(|&last| associations.of(last)) else {
        return;
    };
    let mut followers = Followers::default();
    for (associated, count) in known.counts() {
        let is_often_right = u32::from(count) * MAX_CASES_PER_HIT >= u32::from(known.total);
        if is_often_right && let Some(token) = follower(text, path, associated) {
            followers.add(token, count);
        }
    }
    followers.add_expert(known.total, arena);
}

/// The tokens that follow associated tokens, each with the largest of their counts.
#[derive(Default)]
struct Followers {
    tokens: [(u32, u8); NUM_ASSOCIATIONS],
    number: usize,
}

impl Followers {
    fn add(&mut self, token: u32, count: u8) {
        let mut known = self.tokens[..self.number].iter_mut();
        if let Some((_, known)) = known.find(|(other, _)| *other == token) {
            *known = count.max(*known);
        } else {
            self.tokens[self.number] = (token, count);
            self.number += 1;
        }
    }

    fn add_expert(&self, total: u8, arena: &mut DraftArena) {
        let counts = self.tokens[..self.number].iter();
        let counts = counts.map(|&(token, count)| (token, f32::from(count)));
        let largest = counts.clone().map(|(_, count)| count).fold(0.0, f32::max);
        let sum: f32 = counts.clone().map(|(_, count)| count).sum();
        let total = f32::from(total) + 1.0;
        let matched =
            Matched { kind: KIND, order: confidence(largest / total), rank: 0, num_matches: total };
        // Several associations may have been right at once.
        arena.add(matched, Some(total.max(sum)), counts);
    }
}

/// Returns the fraction of cases in which an association was right, in eighths, counted from 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is from 0 to 1"
)]
fn confidence(share: f32) -> usize {
    1 + (8.0 * share) as usize
}

/// Returns the tokens whose latest successor in the text is `token`.
fn associated_with(text: &IndexedTokens, token: u32) -> impl Iterator<Item = u32> {
    let positions = text.of_token(token).take(MAX_OCCURRENCES);
    let associations = positions.filter_map(move |position| {
        let before = position.checked_sub(1)?;
        let associated = text.tokens()[before];
        (latest(text, associated, text.tokens().len() - 1) == Some(before)).then_some(associated)
    });
    associations.take(MAX_LEARNED)
}

/// Returns the latest occurrence of a token before `end`.
fn latest(text: &IndexedTokens, token: u32, end: usize) -> Option<usize> {
    text.of_token(token).find(|&position| position < end)
}

/// Returns the token after the latest occurrence of a token that has a successor.
fn follower(text: &IndexedTokens, path: &[u32], associated: u32) -> Option<u32> {
    let (before, after) = (path, path.get(1..).unwrap_or_default());
    let in_path = before.iter().zip(after).rev().find(|(token, _)| **token == associated);
    if let Some((_, &token)) = in_path {
        return Some(token);
    }
    let tokens = text.tokens();
    let end = if path.is_empty() { tokens.len() - 1 } else { tokens.len() };
    let next = latest(text, associated, end)? + 1;
    tokens.get(next).or(path.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::{add_expert, learn};
    use crate::fused::arena::DraftArena;
    use crate::memory::indexed_tokens::IndexedTokens;
    use crate::weights::associations::{TokenAssociations, index};

    fn adaptation(tokens: &[u32]) -> TokenAssociations {
        let (mut associations, mut text) = (TokenAssociations::default(), IndexedTokens::default());
        for &token in tokens {
            learn(&mut associations, &text, token);
            text.extend(&[token]);
        }
        associations
    }

    /// Returns the tokens that the associations propose, likeliest first.
    fn expected(associations: &TokenAssociations, text: &[u32]) -> Vec<u32> {
        let (mut history, mut arena) = (IndexedTokens::default(), DraftArena::default());
        history.extend(text);
        arena.start();
        add_expert(associations, &history, &[], &mut arena);
        let known = arena.node();
        let mut counts = arena.counts.clone();
        counts.sort_by(|a, b| b.count.total_cmp(&a.count));
        let tokens = counts.iter();
        let tokens = tokens.map(|count| arena.scored[known.scored.clone()][count.slot as usize]);
        tokens.map(|scored| scored.token).collect()
    }

    fn bytes_of(associations: &TokenAssociations) -> Vec<u8> {
        let mut bytes = Vec::new();
        associations.put(&mut bytes);
        bytes
    }

    /// Returns sums with new results, each of which is repeated once.
    fn sums(results: std::ops::Range<u32>) -> Vec<u32> {
        let sum = |result| [EQUALS, result, THEN, result, 3];
        results.flat_map(sum).collect()
    }

    const EQUALS: u32 = 1;
    const THEN: u32 = 2;
    const NOTHING: [u32; 0] = [];

    #[test]
    fn most_frequent_associations_survive_eviction() {
        let mut text = Vec::new();
        for round in 0..60 {
            // Each time another token leads to the result besides.
            text.extend([EQUALS, 1000 + round, 100 + round, 1000 + round]);
            text.extend([THEN, 1000 + round]);
        }
        let associations = adaptation(&text);
        assert_eq!(expected(&associations, &[EQUALS, 99, THEN]), [99]);
    }

    #[test]
    fn associations_that_stop_occurring_are_evicted() {
        let mut text = sums(10..30);
        for result in 1000..1600 {
            text.extend([4, result, THEN, result, EQUALS, 5]);
        }
        let associations = adaptation(&text);
        let known = associations.of(THEN).unwrap();
        assert!(known.total >= u8::MAX / 2);
        assert_eq!(expected(&associations, &[4, 98, EQUALS, 99, THEN])[0], 98);
        assert!(known.counts().all(|(associated, count)| associated != EQUALS || count != 20));
    }

    #[test]
    fn tokens_that_share_a_slot_evict_each_other_by_frequency() {
        let mut others = THEN + 1..u32::MAX;
        let other = others.find(|&token| index(token) == index(THEN)).unwrap();
        let mut text = sums(10..20);
        text.extend([other, EQUALS]);
        assert_eq!(expected(&adaptation(&text), &[EQUALS, 99, THEN])[0], 99);
        for _ in 0..10 {
            text.extend([other, EQUALS]);
        }
        let associations = adaptation(&text);
        assert_eq!(expected(&associations, &[EQUALS, 99, THEN]), NOTHING);
        assert_eq!(expected(&associations, &[other, 99, other]), [99]);
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        let bytes = bytes_of(&adaptation(&sums(10..20)));
        let twice = [&bytes[..], &bytes].concat();
        let mut none = bytes.clone();
        *none.last_mut().unwrap() = 0;
        for wrong in [&bytes[1..], &bytes[..bytes.len() - 1], &twice, &none] {
            assert_eq!(TokenAssociations::take(wrong), None);
        }
        assert_eq!(TokenAssociations::take(&[]), Some(TokenAssociations::default()));
    }
}

//! What the request repeats after the anchors of the last token.
//!
//! [`Anchors`](crate::weights::anchors) says what they are.

use crate::draft::token_tree::Source;
use crate::fused::evidence::{Evidence, Matched};
use crate::fused::source::{DraftSource, Inputs, NodeView};
use crate::memory::indexed_tokens::IndexedTokens;
use crate::weights::anchors::{Anchors, NUM_ANCHORS};
use crate::weights::kind::{ExpertKind, Form};
use crate::weights::learned::Learned;

const KIND: ExpertKind = ExpertKind::of(Source::Context, Form::Echo);

/// At most this many of the latest places of a token are read, and at most this many anchors are
/// learned from them.
const MAX_PLACES: usize = 8;
const MAX_LEARNED: usize = 4;

/// Anchors that were right in less than one of this many cases are not followed.
const RARELY: u32 = 5;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo;

impl DraftSource for Echo {
    fn add_experts(&mut self, inputs: &Inputs<'_>, node: &NodeView<'_>, evidence: &mut Evidence) {
        let anchors = &inputs.weights.learned.anchors;
        add_expert(anchors, inputs.context, node.path, evidence);
    }

    fn learn(&self, learned: &mut Learned, context: &IndexedTokens, token: u32) {
        learn(&mut learned.anchors, context, token);
    }
}

/// Learns that `token` came after a text.
fn learn(anchors: &mut Anchors, text: &IndexedTokens, token: u32) {
    if let Some(&last) = text.tokens().last() {
        anchors.learn(last, anchors_of(text, token));
    }
}

/// Adds an expert for what the anchors of the last token of a path lead to: `path` comes after `text`.
fn add_expert(anchors: &Anchors, text: &IndexedTokens, path: &[u32], evidence: &mut Evidence) {
    let last = path.last().or_else(|| text.tokens().last());
    let Some(known) = last.and_then(|&last| anchors.of(last)) else {
        return;
    };
    let mut led_to = LedTo::default();
    for (anchor, count) in known.counts() {
        let is_often_right = u32::from(count) * RARELY >= u32::from(known.total);
        if is_often_right && let Some(token) = follower(text, path, anchor) {
            led_to.add(token, count);
        }
    }
    led_to.add_expert(known.total, evidence);
}

/// The tokens that anchors lead to, each with the largest of their counts.
#[derive(Default)]
struct LedTo {
    tokens: [(u32, u8); NUM_ANCHORS],
    number: usize,
}

impl LedTo {
    fn add(&mut self, token: u32, count: u8) {
        let mut known = self.tokens[..self.number].iter_mut();
        if let Some((_, known)) = known.find(|(other, _)| *other == token) {
            *known = count.max(*known);
        } else {
            self.tokens[self.number] = (token, count);
            self.number += 1;
        }
    }

    fn add_expert(&self, total: u8, evidence: &mut Evidence) {
        let counts = self.tokens[..self.number].iter();
        let counts = counts.map(|&(token, count)| (token, f32::from(count)));
        let largest = counts.clone().map(|(_, count)| count).fold(0.0, f32::max);
        let sum: f32 = counts.clone().map(|(_, count)| count).sum();
        let total = f32::from(total) + 1.0;
        let matched =
            Matched { kind: KIND, order: confidence(largest / total), rank: 0, num_matches: total };
        // Several anchors may have been right at once.
        evidence.add(matched, Some(total.max(sum)), counts);
    }
}

/// The share of the cases in which an anchor was right, in eighths, from 1 on.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is from 0 to 1"
)]
fn confidence(share: f32) -> usize {
    1 + (8.0 * share) as usize
}

/// The tokens whose latest follower in the text is `token`.
fn anchors_of(text: &IndexedTokens, token: u32) -> impl Iterator<Item = u32> {
    let places = text.of_token(token).take(MAX_PLACES);
    let anchors = places.filter_map(move |place| {
        let before = place.checked_sub(1)?;
        let anchor = text.tokens()[before];
        (latest(text, anchor, text.tokens().len() - 1) == Some(before)).then_some(anchor)
    });
    anchors.take(MAX_LEARNED)
}

/// The latest place of a token before `end`.
fn latest(text: &IndexedTokens, token: u32, end: usize) -> Option<usize> {
    text.of_token(token).find(|&place| place < end)
}

/// What came after the latest place of a token that anything comes after.
fn follower(text: &IndexedTokens, path: &[u32], anchor: u32) -> Option<u32> {
    let (before, after) = (path, path.get(1..).unwrap_or_default());
    let in_path = before.iter().zip(after).rev().find(|(token, _)| **token == anchor);
    if let Some((_, &token)) = in_path {
        return Some(token);
    }
    let tokens = text.tokens();
    let end = if path.is_empty() { tokens.len() - 1 } else { tokens.len() };
    let next = latest(text, anchor, end)? + 1;
    tokens.get(next).or(path.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::{add_expert, learn};
    use crate::fused::evidence::Evidence;
    use crate::memory::indexed_tokens::IndexedTokens;
    use crate::weights::anchors::{Anchors, index};

    fn learned(tokens: &[u32]) -> Anchors {
        let (mut anchors, mut text) = (Anchors::default(), IndexedTokens::default());
        for &token in tokens {
            learn(&mut anchors, &text, token);
            text.extend(&[token]);
        }
        anchors
    }

    /// What comes next by the anchors, the likeliest first.
    fn expected(anchors: &Anchors, text: &[u32]) -> Vec<u32> {
        let (mut history, mut evidence) = (IndexedTokens::default(), Evidence::default());
        history.extend(text);
        evidence.start();
        add_expert(anchors, &history, &[], &mut evidence);
        let known = evidence.node();
        let mut counts = evidence.counts.clone();
        counts.sort_by(|a, b| b.count.total_cmp(&a.count));
        let tokens = counts.iter();
        let tokens = tokens.map(|count| evidence.named[known.named.clone()][count.slot as usize]);
        tokens.map(|named| named.token).collect()
    }

    fn bytes_of(anchors: &Anchors) -> Vec<u8> {
        let mut bytes = Vec::new();
        anchors.put(&mut bytes);
        bytes
    }

    /// Sums with new results, each of which is said twice.
    fn sums(results: std::ops::Range<u32>) -> Vec<u32> {
        let sum = |result| [EQUALS, result, THEN, result, 3];
        results.flat_map(sum).collect()
    }

    const EQUALS: u32 = 1;
    const THEN: u32 = 2;
    const NOTHING: [u32; 0] = [];

    #[test]
    fn the_anchors_that_come_most_stay_where_there_is_no_room_for_all() {
        let mut text = Vec::new();
        for round in 0..60 {
            // Each time another token leads to the result besides.
            text.extend([EQUALS, 1000 + round, 100 + round, 1000 + round]);
            text.extend([THEN, 1000 + round]);
        }
        let anchors = learned(&text);
        assert_eq!(expected(&anchors, &[EQUALS, 99, THEN]), [99]);
    }

    #[test]
    fn what_comes_no_more_is_forgotten() {
        let mut text = sums(10..30);
        for result in 1000..1600 {
            text.extend([4, result, THEN, result, EQUALS, 5]);
        }
        let anchors = learned(&text);
        let known = anchors.of(THEN).unwrap();
        assert!(known.total >= u8::MAX / 2);
        assert_eq!(expected(&anchors, &[4, 98, EQUALS, 99, THEN])[0], 98);
        assert!(known.counts().all(|(anchor, count)| anchor != EQUALS || count != 20));
    }

    #[test]
    fn of_two_tokens_that_share_a_slot_the_one_that_comes_stays() {
        let mut others = THEN + 1..u32::MAX;
        let other = others.find(|&token| index(token) == index(THEN)).unwrap();
        let mut text = sums(10..20);
        text.extend([other, EQUALS]);
        assert_eq!(expected(&learned(&text), &[EQUALS, 99, THEN])[0], 99);
        for _ in 0..10 {
            text.extend([other, EQUALS]);
        }
        let anchors = learned(&text);
        assert_eq!(expected(&anchors, &[EQUALS, 99, THEN]), NOTHING);
        assert_eq!(expected(&anchors, &[other, 99, other]), [99]);
    }

    #[test]
    fn bytes_that_are_no_anchors_are_refused() {
        let bytes = bytes_of(&learned(&sums(10..20)));
        let twice = [&bytes[..], &bytes].concat();
        let mut none = bytes.clone();
        *none.last_mut().unwrap() = 0;
        for wrong in [&bytes[1..], &bytes[..bytes.len() - 1], &twice, &none] {
            assert_eq!(Anchors::take(wrong), None);
        }
        assert_eq!(Anchors::take(&[]), Some(Anchors::default()));
    }
}

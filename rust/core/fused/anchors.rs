//! After which tokens does a request repeat which others?
//!
//! What comes after one token is often what came after another one a while ago: the result of a sum
//! after `=` comes again after `>>`, and the name after `by` again after `of`. No match finds these,
//! as the results and the names are new each time. So each token has *anchors*: earlier tokens whose
//! latest successor was, again and again, also the successor of this token. They are learned across
//! the requests of a tenant, and lead only to tokens of the request's own text.

use crate::base::portable_math::hash;
use crate::fused::evidence::{Evidence, Kind, Matched};
use crate::memory::history::History;

const SLOT_BITS: u32 = 12;
const NUM_SLOTS: usize = 1 << SLOT_BITS;
const NUM_ANCHORS: usize = 5;

/// At most this many of the latest places of a token are read, and at most this many anchors are
/// learned from them.
const MAX_PLACES: usize = 8;
const MAX_LEARNED: usize = 4;

/// Anchors that were right in less than one of this many cases are not followed.
const RARELY: u32 = 5;

/// The anchors of the most frequent tokens: tokens that share a slot displace each other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Anchors(Box<[Slot]>);

/// The anchors of one token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Slot {
    token: u32,
    anchors: [u32; NUM_ANCHORS],
    /// How often each of them was right: 0 where there is none.
    counts: [u8; NUM_ANCHORS],
    /// How often the token came.
    total: u8,
}

impl Default for Anchors {
    fn default() -> Self {
        Self(vec![Slot::default(); NUM_SLOTS].into())
    }
}

impl Anchors {
    pub(crate) const NUM_BYTES: usize = NUM_SLOTS * size_of::<Slot>();

    /// Learns that `token` came after a text.
    pub(crate) fn learn(&mut self, text: &History, token: u32) {
        let Some(&last) = text.tokens().last() else {
            return;
        };
        let slot = &mut self.0[index(last)];
        if slot.take_in(last) {
            slot.halve_if_full();
            slot.total += 1;
            for anchor in anchors_of(text, token) {
                slot.add(anchor);
            }
        }
    }

    /// Adds an expert for what the anchors of the last token of a path lead to.
    ///
    /// # Arguments
    ///
    /// * `text`: The text before the path.
    /// * `path`: Tokens after it.
    pub(crate) fn add_experts(&self, text: &History, path: &[u32], evidence: &mut Evidence) {
        let Some(&last) = path.last().or_else(|| text.tokens().last()) else {
            return;
        };
        let slot = &self.0[index(last)];
        if slot.total == 0 || slot.token != last {
            return;
        }
        let mut led_to = LedTo::default();
        for (&anchor, &count) in slot.anchors.iter().zip(&slot.counts) {
            let is_often_right = u32::from(count) * RARELY >= u32::from(slot.total);
            if is_often_right && let Some(token) = follower(text, path, anchor) {
                led_to.add(token, count);
            }
        }
        led_to.add_expert(slot.total, evidence);
    }

    /// Appends all of them, O(tokens that have any).
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        for slot in self.0.iter().filter(|slot| slot.total > 0) {
            bytes.extend(slot.token.to_le_bytes());
            bytes.extend(slot.anchors.iter().flat_map(|anchor| anchor.to_le_bytes()));
            bytes.extend(slot.counts);
            bytes.push(slot.total);
        }
    }

    /// Reads what [`put`](Self::put) wrote; `None` where it is no whole slots, each in its place.
    pub(crate) fn take(bytes: &[u8]) -> Option<Self> {
        let (slots, rest) = bytes.as_chunks::<SLOT_BYTES>();
        let mut anchors = Self::default();
        for bytes in slots {
            let slot = Slot::from_bytes(bytes);
            let place = &mut anchors.0[index(slot.token)];
            if place.total > 0 || slot.total == 0 {
                return None;
            }
            *place = slot;
        }
        rest.is_empty().then_some(anchors)
    }
}

/// The bytes of a slot in a file.
const SLOT_BYTES: usize = 4 + 4 * NUM_ANCHORS + NUM_ANCHORS + 1;

impl Slot {
    /// Whether the slot is the token's. A frequent token is displaced only after some attempts.
    fn take_in(&mut self, token: u32) -> bool {
        if self.token == token {
            return true;
        }
        self.total /= 2;
        if self.total == 0 {
            *self = Self {
                token,
                ..Self::default()
            };
        }
        self.total == 0
    }

    /// Halves all counts when the total is full: old ones count less, and unused anchors make room.
    fn halve_if_full(&mut self) {
        if self.total == u8::MAX {
            for count in self.counts.iter_mut().chain([&mut self.total]) {
                *count /= 2;
            }
        }
    }

    /// Counts an anchor. Where there is no room for it, the least frequent one counts one less.
    fn add(&mut self, anchor: u32) {
        let known = self.anchors.iter().zip(&mut self.counts);
        let mut known = known.filter(|(other, count)| **other == anchor && **count > 0);
        if let Some((_, count)) = known.next() {
            *count = count.saturating_add(1);
            return;
        }
        let counts = self.counts.iter_mut().zip(&mut self.anchors);
        if let Some((count, place)) = counts.min_by_key(|(count, _)| **count) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                (*place, *count) = (anchor, 1);
            }
        }
    }

    fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let (tokens, counts) = bytes.split_at(4 + 4 * NUM_ANCHORS);
        let (tokens, _) = tokens.as_chunks();
        let token = |index: usize| u32::from_le_bytes(tokens[index]);
        Self {
            token: token(0),
            anchors: std::array::from_fn(|index| token(1 + index)),
            counts: std::array::from_fn(|index| counts[index]),
            total: counts[NUM_ANCHORS],
        }
    }
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
        let matched = Matched {
            kind: Kind::Echo,
            order: confidence(largest / total),
            rank: 0,
            num_matches: total,
        };
        // Several anchors may have been right at once.
        evidence.add(matched, Some(total.max(sum)), counts);
    }
}

/// In eighths, from 1 on.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is from 0 to 1"
)]
fn confidence(share: f32) -> usize {
    1 + (8.0 * share) as usize
}

fn index(token: u32) -> usize {
    hash::<SLOT_BITS>(token)
}

/// The tokens whose latest follower in the text is `token`.
fn anchors_of(text: &History, token: u32) -> impl Iterator<Item = u32> {
    let places = text.of_token(token).take(MAX_PLACES);
    let anchors = places.filter_map(move |place| {
        let before = place.checked_sub(1)?;
        let anchor = text.tokens()[before];
        (latest(text, anchor, text.tokens().len() - 1) == Some(before)).then_some(anchor)
    });
    anchors.take(MAX_LEARNED)
}

/// The latest place of a token before `end`.
fn latest(text: &History, token: u32, end: usize) -> Option<usize> {
    text.of_token(token).find(|&place| place < end)
}

/// What came after the latest place of a token that anything comes after.
fn follower(text: &History, path: &[u32], anchor: u32) -> Option<u32> {
    let (before, after) = (path, path.get(1..).unwrap_or_default());
    let in_path = before
        .iter()
        .zip(after)
        .rev()
        .find(|(token, _)| **token == anchor);
    if let Some((_, &token)) = in_path {
        return Some(token);
    }
    let tokens = text.tokens();
    let end = if path.is_empty() {
        tokens.len() - 1
    } else {
        tokens.len()
    };
    let next = latest(text, anchor, end)? + 1;
    tokens.get(next).or(path.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::{Anchors, NUM_ANCHORS, NUM_SLOTS, index};
    use crate::fused::evidence::Evidence;
    use crate::memory::history::History;

    fn learned(tokens: &[u32]) -> Anchors {
        let (mut anchors, mut text) = (Anchors::default(), History::default());
        for &token in tokens {
            anchors.learn(&text, token);
            text.extend(&[token]);
        }
        anchors
    }

    /// What comes next by the anchors, the likeliest first.
    fn expected(anchors: &Anchors, text: &[u32]) -> Vec<u32> {
        let (mut history, mut evidence) = (History::default(), Evidence::default());
        history.extend(text);
        evidence.start();
        anchors.add_experts(&history, &[], &mut evidence);
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
        let slot = anchors.0[index(THEN)];
        assert!(slot.counts.iter().filter(|&&count| count > 0).count() <= NUM_ANCHORS);
    }

    #[test]
    fn what_comes_no_more_is_forgotten() {
        let mut text = sums(10..30);
        for result in 1000..1600 {
            text.extend([4, result, THEN, result, EQUALS, 5]);
        }
        let anchors = learned(&text);
        let slot = anchors.0[index(THEN)];
        assert!(slot.total >= u8::MAX / 2);
        assert_eq!(expected(&anchors, &[4, 98, EQUALS, 99, THEN])[0], 98);
        assert!(!slot.anchors.contains(&EQUALS) || slot.counts.iter().all(|&count| count != 20));
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
        assert_eq!(Anchors::default().0.len(), NUM_SLOTS);
    }
}

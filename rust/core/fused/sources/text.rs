//! Where in a text that grows did the end of a path come before?

use std::ops::Range;

use crate::base::portable_math::saturating_u32;
use crate::fused::effort::Reading;
use crate::fused::evidence::{DECAY, END, Evidence, Kind, MAX_DEPTH, Matched};
use crate::fused::sources::skip_gram::Skipped;
use crate::memory::history::History;

/// Longer matches are not told apart.
const MAX_LENGTH: usize = 16;

// The longest match there is, one of a node as deep as can be, is a bit of a number.
const _: () = assert!(MAX_LENGTH + (MAX_DEPTH as usize) < u64::BITS as usize);

/// How many of the longest lengths are experts of their own.
const MAX_EXPERTS: usize = 3;

/// How many of the latest places are looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    /// Of those that two tokens lead to.
    pairs: usize,
    /// Of those that only the last token leads to.
    singles: usize,
    /// A child that inherits at least this many of its parent's places is not searched for. A node
    /// with at least this many places of its last two tokens leaves out those of its last token alone.
    enough: usize,
}

/// A text of at most this many tokens is near: it fits a core's own cache, so a place is read fast.
const NEAR: usize = 1 << 17;

impl Reach {
    /// For a root, which is sure to come, or a child that is this likely: in a longer text, each place
    /// costs a wait for memory.
    pub(crate) fn of(child: Option<f32>, text: &History, reading: Reading) -> Self {
        let prob = child.unwrap_or(1.0);
        let is_near = text.tokens().len() <= NEAR;
        let (most, reach) = if is_near {
            (256, reading.reach)
        } else {
            (128, reading.reach / 2.0)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a probability is not negative, and the product is limited"
        )]
        let pairs = ((prob * reach) as usize).clamp(8, most);
        let has_pairs = is_near || prob >= reading.requery_min_prob_long_text;
        let singles = match child {
            _ if is_near => pairs / 4,
            None => reading.max_unigram_places,
            Some(_) => 0,
        };
        Self {
            pairs: if has_pairs { pairs } else { 0 },
            singles,
            enough: reading.enough_places,
        }
    }
}

/// A place of a text that the same tokens lead to as to a node.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Where the text goes on, and with which token.
    next: u32,
    token: u32,
    /// The token after that.
    after: u32,
    /// How many tokens before it are the same.
    length: u32,
}

/// The places of one node, in [`Places`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    range: Range<usize>,
    /// Whether there may be more of them.
    is_cut: bool,
}

/// The places of all nodes of a draft.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<Place>);

impl Places {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The places that `tail` leads to, which ends in a node's path: those of its parent that go on
    /// with its token where there are enough, else the latest ones.
    pub(crate) fn find(
        &mut self,
        text: &History,
        parent: Option<&Found>,
        tail: &[u32],
        reach: Reach,
    ) -> Found {
        let start = self.0.len();
        let Some((&last, before)) = tail.split_last() else {
            return Found::default();
        };
        let before = before.last().copied();
        let mut is_cut = true;
        if let Some(parent) = parent {
            self.follow(text, parent, last);
            is_cut = parent.is_cut;
        }
        if is_cut && reach.pairs > 0 && self.0.len() - start < reach.enough {
            self.0.truncate(start);
            is_cut = before.is_some_and(|before| self.add_pairs(text, before, tail, reach.pairs));
        }
        if reach.singles > 0 && self.0.len() - start < reach.enough {
            is_cut |= self.add_singles(text, before, last, reach.singles);
        } else {
            is_cut = true;
        }
        Found {
            range: start..self.0.len(),
            is_cut,
        }
    }

    fn follow(&mut self, text: &History, parent: &Found, token: u32) {
        let tokens = text.tokens();
        for index in parent.range.clone() {
            let place = self.0[index];
            let next = place.next as usize + 1;
            if place.token == token && next < tokens.len() {
                self.0.push(Place {
                    next: place.next + 1,
                    token: place.after,
                    after: token_at(text, next + 1),
                    length: place.length + 1,
                });
            }
        }
    }

    /// Adds the latest places after the last two tokens; says whether there are more.
    fn add_pairs(&mut self, text: &History, before: u32, tail: &[u32], limit: usize) -> bool {
        let last = tail[tail.len() - 1];
        let tokens = text.tokens();
        let start = self.0.len();
        let is_cut = self.add(text, text.of_pair(before, last), limit);
        // Only now, as the reads of one loop wait at the same time.
        for place in &mut self.0[start..] {
            let pairs = tokens[..place.next as usize]
                .iter()
                .rev()
                .zip(tail.iter().rev());
            let is_same = |(a, b): &(&u32, &u32)| a == b;
            place.length = saturating_u32(pairs.take(MAX_LENGTH).take_while(is_same).count());
        }
        is_cut
    }

    /// Adds the latest places after the last token where another one came before it; says whether
    /// there are more.
    fn add_singles(
        &mut self,
        text: &History,
        before: Option<u32>,
        last: u32,
        limit: usize,
    ) -> bool {
        let start = self.0.len();
        let is_cut = self.add(text, text.of_token(last), limit);
        let tokens = text.tokens();
        let mut end = start;
        for index in start..self.0.len() {
            let place = self.0[index];
            let before_it = (place.next as usize)
                .checked_sub(2)
                .map(|index| tokens[index]);
            if before_it.is_none() || before_it != before {
                self.0[end] = place;
                end += 1;
            }
        }
        self.0.truncate(end);
        is_cut
    }

    /// Adds the first places where a text goes on after these ends; says whether there are more.
    fn add(&mut self, text: &History, mut ends: impl Iterator<Item = usize>, limit: usize) -> bool {
        let mut end = ends.next();
        // The end of a request's own text is no place where it goes on.
        if end.is_some_and(|end| end + 1 == text.tokens().len()) {
            end = ends.next();
        }
        for _ in 0..limit {
            let Some(last) = end else {
                return false;
            };
            self.0.push(Place {
                next: saturating_u32(last + 1),
                token: token_at(text, last + 1),
                after: token_at(text, last + 2),
                length: 1,
            });
            end = ends.next();
        }
        end.is_some()
    }

    /// Adds an expert for each of the longest lengths: the places with that length or more.
    pub(crate) fn add_experts(&self, found: &Found, kind: Kind, evidence: &mut Evidence) {
        let places = &self.0[found.range.clone()];
        // A bit for each length that there is.
        let mut lengths = 0_u64;
        for place in places {
            lengths |= 1 << place.length;
        }
        for rank in 0..MAX_EXPERTS {
            let Some(length) = lengths.checked_ilog2() else {
                return;
            };
            lengths ^= 1 << length;
            let places = places.iter().filter(|place| place.length >= length);
            let matched = Matched {
                kind,
                order: length as usize,
                rank,
                num_matches: float(places.clone().count()),
            };
            let mut count = 1.0 / DECAY;
            let counts = places.map(|place| {
                count *= DECAY;
                (place.token, count)
            });
            evidence.add(matched, None, counts);
        }
    }

    /// What follows where the latest of these places go on with another token than `token`.
    pub(crate) fn skip(&self, found: &Found, token: u32, most: usize, skipped: &mut Skipped) {
        for place in &self.0[found.range.clone()] {
            if place.token != END && place.token != token {
                skipped.add(place.length as usize, place.after);
                if skipped.tokens.len() == most {
                    break;
                }
            }
        }
    }

    /// Where the latest of the longest matches of a node goes on.
    pub(crate) fn place_of_longest(&self, found: &Found) -> Option<usize> {
        let places = self.0[found.range.clone()].iter().rev();
        Some(places.max_by_key(|place| place.length)?.next as usize)
    }

    /// The longest match of a node.
    pub(crate) fn longest(&self, found: &Found) -> usize {
        let lengths = self.0[found.range.clone()].iter().map(|place| place.length);
        lengths.max().unwrap_or(0) as usize
    }
}

fn token_at(text: &History, position: usize) -> u32 {
    text.tokens().get(position).copied().unwrap_or(END)
}

#[expect(clippy::cast_precision_loss, reason = "a number of places is small")]
fn float(number: usize) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::{Found, NEAR, Places, Reach};
    use crate::fused::effort::Effort;
    use crate::memory::history::History;

    /// What follows 1, 2 in a text of a given length at least: 3, or 4 where only the 2 is the same.
    fn tokens_found(num_tokens: usize, child: Option<f32>, effort: Effort) -> Vec<u32> {
        let mut text = History::default();
        text.extend(&vec![0; num_tokens]);
        text.extend(&[1, 2, 3, 0, 5, 2, 4]);
        let reach = Reach::of(child, &text, effort.reading());
        let parent = child.map(|_| Found {
            range: 0..0,
            is_cut: true,
        });
        let mut places = Places::default();
        let found = places.find(&text, parent.as_ref(), &[1, 2], reach);
        let places = places.0[found.range].iter();
        places.map(|place| place.token).collect()
    }

    #[test]
    fn little_is_searched_for_a_child_in_a_text_that_is_not_near() {
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
    fn few_places_that_one_token_leads_to_are_looked_at_in_a_text_that_is_not_near() {
        for effort in [Effort::Low, Effort::Normal] {
            let mut text = History::default();
            text.extend(&vec![0; NEAR]);
            text.extend(&[5, 2].repeat(50));
            let mut places = Places::default();
            let reach = Reach::of(None, &text, effort.reading());
            let found = places.find(&text, None, &[1, 2], reach);
            assert_eq!(found.range.len(), 8);
            assert!(found.is_cut);
        }
    }
}

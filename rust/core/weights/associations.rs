//! Anchors: the tokens after which a tenant's requests wrote what they write again after another token.
//!
//! What comes after one token is often what came after another one a while ago: the result of a sum
//! after `=` comes again after `>>`, and the name after `by` again after `of`. No match finds these,
//! as the results and the names are new each time. So each token has *anchors*: earlier tokens whose
//! latest successor was, again and again, also the successor of this token. They are learned across
//! the requests of a tenant, and lead only to tokens of the request's own text.

use crate::portable_math::hash;

const SLOT_BITS: u32 = 12;
const NUM_SLOTS: usize = 1 << SLOT_BITS;
pub(crate) const NUM_ASSOCIATIONS: usize = 5;

/// The anchors of the most frequent tokens: tokens that share a slot displace each other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenAssociations(Box<[AssociatedTokens]>);

/// The anchors of one token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct AssociatedTokens {
    token: u32,
    associations: [u32; NUM_ASSOCIATIONS],
    /// How often each of them was right: 0 where there is none.
    counts: [u8; NUM_ASSOCIATIONS],
    /// How often the token came.
    pub(crate) total: u8,
}

impl Default for TokenAssociations {
    fn default() -> Self {
        Self(vec![AssociatedTokens::default(); NUM_SLOTS].into())
    }
}

impl TokenAssociations {
    pub(crate) const NUM_BYTES: usize = NUM_SLOTS * size_of::<AssociatedTokens>();

    /// Learns that `last` came once more, and which anchors were right.
    pub(crate) fn learn(&mut self, last: u32, associations: impl Iterator<Item = u32>) {
        let slot = &mut self.0[index(last)];
        if slot.take_in(last) {
            slot.halve_if_full();
            slot.total += 1;
            for associated in associations {
                slot.add(associated);
            }
        }
    }

    /// What is known of a token; `None` if the slot is free or another token's.
    pub(crate) fn of(&self, token: u32) -> Option<&AssociatedTokens> {
        let slot = &self.0[index(token)];
        (slot.total > 0 && slot.token == token).then_some(slot)
    }

    /// Appends all of them, O(tokens that have any).
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        for slot in self.0.iter().filter(|slot| slot.total > 0) {
            bytes.extend(slot.token.to_le_bytes());
            bytes.extend(slot.associations.iter().flat_map(|associated| associated.to_le_bytes()));
            bytes.extend(slot.counts);
            bytes.push(slot.total);
        }
    }

    /// Reads what [`put`](Self::put) wrote; `None` where it is no whole slots, each in its place.
    pub(crate) fn take(bytes: &[u8]) -> Option<Self> {
        let (slots, rest) = bytes.as_chunks::<SLOT_BYTES>();
        let mut associations = Self::default();
        for bytes in slots {
            let slot = AssociatedTokens::from_bytes(bytes);
            let place = &mut associations.0[index(slot.token)];
            if place.total > 0 || slot.total == 0 {
                return None;
            }
            *place = slot;
        }
        rest.is_empty().then_some(associations)
    }
}

/// The bytes of a slot in a file.
const SLOT_BYTES: usize = 4 + 4 * NUM_ASSOCIATIONS + NUM_ASSOCIATIONS + 1;

impl AssociatedTokens {
    /// Each anchor, and how often it was right.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, u8)> {
        self.associations.into_iter().zip(self.counts)
    }

    /// Whether the slot is the token's. A frequent token is displaced only after some attempts.
    fn take_in(&mut self, token: u32) -> bool {
        if self.token == token {
            return true;
        }
        self.total /= 2;
        if self.total == 0 {
            *self = Self { token, ..Self::default() };
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
    fn add(&mut self, associated: u32) {
        let known = self.associations.iter().zip(&mut self.counts);
        let mut known = known.filter(|(other, count)| **other == associated && **count > 0);
        if let Some((_, count)) = known.next() {
            *count = count.saturating_add(1);
            return;
        }
        let counts = self.counts.iter_mut().zip(&mut self.associations);
        if let Some((count, place)) = counts.min_by_key(|(count, _)| **count) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                (*place, *count) = (associated, 1);
            }
        }
    }

    fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let (tokens, counts) = bytes.split_at(4 + 4 * NUM_ASSOCIATIONS);
        let (tokens, _) = tokens.as_chunks();
        let token = |index: usize| u32::from_le_bytes(tokens[index]);
        Self {
            token: token(0),
            associations: std::array::from_fn(|index| token(1 + index)),
            counts: std::array::from_fn(|index| counts[index]),
            total: counts[NUM_ASSOCIATIONS],
        }
    }
}

pub(crate) fn index(token: u32) -> usize {
    hash::<SLOT_BITS>(token)
}

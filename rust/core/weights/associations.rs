//! Token associations: for each token, earlier tokens with the same successor.
//!
//! The token after one token is often the token that came after another one earlier: the result of a sum
//! after `=` comes again after `>>`, and the name after `by` again after `of`. No match finds these,
//! because the results and names are new each time. Each token therefore has *associated tokens*, whose
//! latest successor repeatedly was also the successor of this token. They are counted over all requests
//! of a tenant, and propose only tokens of the context.

use crate::portable_math::hash;

const SLOT_BITS: u32 = 12;
const NUM_SLOTS: usize = 1 << SLOT_BITS;
pub(crate) const NUM_ASSOCIATIONS: usize = 5;

/// The associations of frequent tokens. Tokens that share a slot compete for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenAssociations(Box<[AssociatedTokens]>);

/// The associations of one token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct AssociatedTokens {
    token: u32,
    associations: [u32; NUM_ASSOCIATIONS],
    /// The number of times that each association was right; 0 for a free entry.
    counts: [u8; NUM_ASSOCIATIONS],
    /// The number of occurrences of the token.
    pub(crate) total: u8,
}

impl Default for TokenAssociations {
    fn default() -> Self {
        Self(vec![AssociatedTokens::default(); NUM_SLOTS].into())
    }
}

impl TokenAssociations {
    pub(crate) const NUM_BYTES: usize = NUM_SLOTS * size_of::<AssociatedTokens>();

    /// Counts an occurrence of `last`, and the associations that were right.
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

    /// Returns the associations of a token, or `None` if another token has the slot.
    pub(crate) fn of(&self, token: u32) -> Option<&AssociatedTokens> {
        let slot = &self.0[index(token)];
        (slot.total > 0 && slot.token == token).then_some(slot)
    }

    /// Appends the serialized associations. O(tokens with associations).
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        for slot in self.0.iter().filter(|slot| slot.total > 0) {
            bytes.extend(slot.token.to_le_bytes());
            bytes.extend(slot.associations.iter().flat_map(|associated| associated.to_le_bytes()));
            bytes.extend(slot.counts);
            bytes.push(slot.total);
        }
    }

    /// Parses the output of [`put`](Self::put), or returns `None` for other data.
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

/// The serialized size of a slot.
const SLOT_BYTES: usize = 4 + 4 * NUM_ASSOCIATIONS + NUM_ASSOCIATIONS + 1;

impl AssociatedTokens {
    /// Returns each association with its count.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, u8)> {
        self.associations.into_iter().zip(self.counts)
    }

    /// Returns true if the slot belongs to the token. A frequent token is evicted only after several
    /// attempts.
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

    /// Halves all counts when the total is full, so that recent occurrences count more and unused
    /// associations free their entries.
    fn halve_if_full(&mut self) {
        if self.total == u8::MAX {
            for count in self.counts.iter_mut().chain([&mut self.total]) {
                *count /= 2;
            }
        }
    }

    /// Counts an association. If it has no entry, the count of the least frequent one decreases.
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

//! Which number came last under a key, where the keys lie elsewhere?

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::LazyLock;

/// What grows has room for one part in this many more than it holds.
pub(crate) const PARTS: usize = 24;

/// A hash table of 4 bytes a slot that stores no keys: each entry is a position, and the key is
/// whatever lies at that position.
///
/// A slot is 0 where it is free. Else its low `bits` are the number plus one, and the bits above
/// them are some of the key's hash, so that a probe seldom has to look at a key.
#[derive(Debug, Default, Clone)]
pub(crate) struct SlotTable {
    slots: Vec<u32>,
    len: usize,
    bits: u32,
}

impl SlotTable {
    /// Files `number` under the key of this hash and gives the one that was there before, which
    /// `is_same` tells from others. There is room: see [`grown`](Self::grown).
    pub(crate) fn replace(
        &mut self,
        hash: u64,
        number: u32,
        is_same: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let (slot, before) = self.find(hash, is_same);
        self.file(slot, hash, number, before.is_none());
        before
    }

    /// The number of the key of this hash, likely; any other where it was not filed.
    pub(crate) fn guess(&self, hash: u64) -> u32 {
        let slot = self.slots.get(self.place(hash)).copied().unwrap_or(0);
        (slot & self.mask()).wrapping_sub(1)
    }

    /// Files `number` in the slot of the key of this hash, where it [was found](Self::find).
    pub(crate) fn file(&mut self, slot: usize, hash: u64, number: u32, is_new: bool) {
        self.slots[slot] = self.tag(hash) | (number + 1);
        self.len += usize::from(is_new);
    }

    /// The number that was last filed under the key of this hash.
    pub(crate) fn get(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        self.find(hash, is_same).1
    }

    /// A copy with room for `additional` keys and for numbers below `end`; `None` where there is
    /// room already. `hash` gives the hash of a number's key.
    pub(crate) fn grown(
        &self,
        additional: usize,
        end: usize,
        hash: impl Fn(u32) -> u64,
    ) -> Option<Self> {
        let num_slots = self.num_slots_for(additional);
        if num_slots == self.slots.len() && end as u64 <= u64::from(self.mask()) {
            return None;
        }
        let bits = (usize::BITS - end.leading_zeros() + 1).min(u32::BITS);
        let mut grown = Self {
            slots: vec![0; num_slots],
            len: self.len,
            bits,
        };
        for &slot in self.slots.iter().filter(|&&slot| slot != 0) {
            let number = (slot & self.mask()) - 1;
            let hash = hash(number);
            let (place, _) = grown.find(hash, |_| false);
            grown.slots[place] = grown.tag(hash) | (number + 1);
        }
        Some(grown)
    }

    /// The most memory that the table takes after `additional` more keys, which are made room for
    /// `piece` at a time, in bytes.
    pub(crate) fn num_bytes_with(&self, additional: usize, piece: usize) -> usize {
        let num_keys = self.len + additional;
        let num_slots = if slots_of(num_keys) <= self.slots.len() {
            self.slots.len()
        } else {
            slots_of(num_keys + additional.min(piece).max(num_keys / 4))
        };
        size_of::<u32>() * num_slots
    }

    pub(crate) fn num_bytes(&self) -> usize {
        size_of::<u32>() * self.slots.capacity()
    }

    fn num_slots_for(&self, additional: usize) -> usize {
        if slots_of(self.len + additional) <= self.slots.len() {
            self.slots.len()
        } else {
            slots_of(self.len + additional.max(self.len / 4))
        }
    }

    /// The key's slot, or the free one where it belongs, and its number. There is a free one.
    pub(crate) fn find(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> (usize, Option<u32>) {
        let (tag, mask) = (self.tag(hash), self.mask());
        let mut place = self.place(hash);
        loop {
            let slot = self.slots[place];
            if slot == 0 {
                return (place, None);
            }
            if slot & !mask == tag {
                let number = (slot & mask) - 1;
                if is_same(number) {
                    return (place, Some(number));
                }
            }
            place += 1;
            if place == self.slots.len() {
                place = 0;
            }
        }
    }

    /// In the order of hashes, so that a table grows from one end to the other.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it is below the number of slots"
    )]
    fn place(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low half is what is meant"
    )]
    fn tag(&self, hash: u64) -> u32 {
        (hash as u32).unbounded_shl(self.bits)
    }

    fn mask(&self) -> u32 {
        !u32::MAX.unbounded_shl(self.bits)
    }
}

/// Seven slots of eight are taken at the most: runs of taken slots stay within a cache line.
fn slots_of(num_keys: usize) -> usize {
    num_keys + num_keys / 7 + 1
}

/// Spreads the bits of a key.
///
/// Not alike in two processes, since texts come from strangers: nobody can choose keys that collide.
/// What is found does not depend on it.
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
pub(crate) fn spread(key: u64) -> u64 {
    static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0_u8));
    let product = u128::from(key ^ *SECRET) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// The same numbers with room for `capacity`.
pub(crate) fn copy(numbers: &[u32], capacity: usize) -> Vec<u32> {
    let mut copy = Vec::with_capacity(capacity);
    copy.extend_from_slice(numbers);
    copy
}

/// Puts a new value in the place of an old one, where there is a new one; gives the old one.
pub(crate) fn replace<T>(value: &mut T, by: Option<T>) -> Option<T> {
    by.map(|by| std::mem::replace(value, by))
}

#[cfg(test)]
mod tests {
    use super::SlotTable;

    #[test]
    fn keys_of_one_hash_are_told_apart_around_the_end_of_the_table() {
        for hash in [0, 1 << 40, u64::MAX] {
            let mut table = SlotTable::default();
            assert_eq!(table.get(hash, |_| true), None);
            for number in 0..300 {
                let end = number as usize + 1;
                if let Some(grown) = table.grown(1, end, |_| hash) {
                    table = grown;
                }
                let is_same = |other: u32| other % 100 == number % 100;
                assert_eq!(table.get(hash, is_same), number.checked_sub(100));
                assert_eq!(
                    table.replace(hash, number, is_same),
                    number.checked_sub(100)
                );
                assert_eq!(table.get(hash, is_same), Some(number));
            }
            assert_eq!(table.len, 100);
            assert!(table.slots.len() < 150);
        }
    }

    #[test]
    fn numbers_may_be_as_large_as_they_can_be() {
        let end = u32::MAX as usize;
        let grown = SlotTable::default().grown(4, end, |_| 0);
        let mut table = grown.expect("room for four");
        for number in [u32::MAX - 1, 7] {
            assert_eq!(table.replace(!0, number, |other| other == number), None);
            assert_eq!(table.get(!0, |other| other == number), Some(number));
        }
        assert!(table.grown(2, end, |_| 0).is_none());
    }
}

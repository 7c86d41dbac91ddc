//! A hash table of numbers whose keys lie elsewhere.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::LazyLock;

/// A vector grows by one part in this many.
const GROWTH: usize = 24;

/// A hash table of numbers, 4 bytes a slot, without keys: the caller's `key_of` looks up a number's key.
///
/// A free slot is 0. Else its low `bits` are the number plus one, and the bits above are part of the key's
/// hash, so that probing seldom looks up a key.
#[derive(Debug, Default, Clone)]
pub(crate) struct KeylessTable {
    slots: Vec<u32>,
    len: usize,
    bits: u32,
}

impl KeylessTable {
    /// Files `number` under its key and gives the one that was there. Amortised O(1).
    pub(crate) fn replace(&mut self, number: u32, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        let is_full = slots_of(self.len + 1) > self.slots.len();
        if is_full || number >= self.mask() {
            self.grow(is_full, number as usize + 1, &key_of);
        }
        self.insert_slot(number, key_of)
    }

    /// The last number that was filed under this key.
    pub(crate) fn get(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        self.find(key, key_of).1
    }

    /// Probably the number of this key; any number if it has none. Reads one slot.
    pub(crate) fn peek(&self, key: u64) -> u32 {
        let slot = self.slots.get(self.bucket(hash(key))).copied();
        (slot.unwrap_or(0) & self.mask()).wrapping_sub(1)
    }

    /// Makes room for more keys if it is full, and for numbers below `end`.
    fn grow(&mut self, is_full: bool, end: usize, key_of: impl Fn(u32) -> u64) {
        let num_slots =
            if is_full { slots_of(self.len + (self.len / 4).max(4)) } else { self.slots.len() };
        let mut slots = Vec::new();
        reserve(&mut slots, num_slots);
        slots.resize(num_slots, 0);
        let bits = (usize::BITS - end.leading_zeros() + 1).min(u32::BITS);
        let mut grown = Self { slots, len: 0, bits };
        for &slot in self.slots.iter().filter(|&&slot| slot != 0) {
            grown.insert_slot((slot & self.mask()) - 1, &key_of);
        }
        *self = grown;
    }

    fn insert_slot(&mut self, number: u32, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        let key = key_of(number);
        let (slot, before) = self.find(key, key_of);
        self.slots[slot] = self.tag(hash(key)) | (number + 1);
        self.len += usize::from(before.is_none());
        before
    }

    pub(crate) fn num_bytes(&self) -> usize {
        bytes_of(&self.slots)
    }

    /// The key's slot, or the free one where it belongs, and its number.
    fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> (usize, Option<u32>) {
        let hash = hash(key);
        let (tag, mask) = (self.tag(hash), self.mask());
        let mut place = self.bucket(hash);
        loop {
            let slot = self.slots[place];
            if slot == 0 {
                return (place, None);
            }
            if slot & !mask == tag {
                let number = (slot & mask) - 1;
                if key_of(number) == key {
                    return (place, Some(number));
                }
            }
            place += 1;
            if place == self.slots.len() {
                place = 0;
            }
        }
    }

    /// The slot at which a search for a hash begins. Slots lie in the order of hashes, so that a table grows from one
    /// end to the other.
    #[expect(clippy::cast_possible_truncation, reason = "it is below the number of slots")]
    fn bucket(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
    fn tag(&self, hash: u64) -> u32 {
        (hash as u32).unbounded_shl(self.bits)
    }

    fn mask(&self) -> u32 {
        !u32::MAX.unbounded_shl(self.bits)
    }
}

/// How many slots a table of so many keys has. At most seven slots of eight are taken: runs of taken slots
/// stay within a cache line.
fn slots_of(num_keys: usize) -> usize {
    num_keys + num_keys / 7 + 1
}

/// The hash of a key, seeded anew in each process: texts come from strangers, who must not choose keys that collide.
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
fn hash(key: u64) -> u64 {
    static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0_u8));
    let product = u128::from(key ^ *SECRET) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// Vectors larger than this get a capacity of at least [`MAPPED`] bytes.
const LARGE: usize = 1 << 21;

/// The capacity that large vectors get at least. Allocators map such blocks separately:
/// unwritten pages take no memory, growth copies nothing, and freed blocks return to the system. Smaller ones leave gaps: a memory of 64 MiB took 135, and takes 77.
const MAPPED: usize = 33 << 20;

/// Makes room for more items. A vector grows by little: a text should take little more than its tokens.
pub(crate) fn reserve<T>(items: &mut Vec<T>, additional: usize) {
    if items.capacity() - items.len() < additional {
        let wanted = additional.max(items.len() / GROWTH);
        let mapped = (MAPPED / size_of::<T>()).saturating_sub(items.len());
        let is_large = (items.len() + wanted) * size_of::<T>() > LARGE;
        if !is_large || items.try_reserve_exact(wanted.max(mapped)).is_err() {
            items.reserve_exact(wanted);
        }
    }
}

/// The bytes that a vector takes: of a mapped one what was written; of one in the heap its block, and half as much
/// for the gaps that growth leaves.
pub(crate) fn bytes_of<T>(items: &Vec<T>) -> usize {
    let all = size_of::<T>() * items.capacity();
    match all {
        0 => 0,
        MAPPED.. => size_of::<T>() * items.len(),
        _ => allocated(all) / 2 * 3,
    }
}

/// The allocator's block for `num_bytes`.
pub(crate) fn allocated(num_bytes: usize) -> usize {
    (num_bytes + 8).next_multiple_of(16).max(32)
}

#[cfg(test)]
mod tests {
    use super::KeylessTable;

    /// Of numbers this large, a slot has no bits left for the hash: each key that a probe meets is
    /// compared, also beyond the end of the table.
    #[test]
    fn keys_are_told_apart_where_slots_hold_nothing_of_their_hashes() {
        let first = u32::MAX - 300;
        for keys_apart in [1, 1 << 32] {
            let key = |number: u32| u64::from(number % 100) * keys_apart;
            let mut table = KeylessTable::default();
            assert_eq!(table.get(0, key), None);
            for number in first..u32::MAX {
                let before = number.checked_sub(100).filter(|&before| before >= first);
                assert_eq!(table.get(key(number), key), before);
                assert_eq!(table.replace(number, key), before);
                assert_eq!(table.get(key(number), key), Some(number));
            }
            assert_eq!(table.len, 100);
            assert!(table.slots.len() < 150);
        }
    }
}

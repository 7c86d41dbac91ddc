//! A hash table of numbers whose keys are stored by the caller.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::LazyLock;

/// A vector grows by at least `len / GROWTH`.
const GROWTH: usize = 24;

/// A hash table of numbers with 4 bytes a slot and no keys: the caller's `key_of` looks up the key of a number.
///
/// A free slot is 0. In others, the low `bits` are the number plus one, and the bits above are part of the key's
/// hash, so that a probe rarely looks up a key.
#[derive(Debug, Default, Clone)]
pub(crate) struct KeylessTable {
    slots: Vec<u32>,
    len: usize,
    bits: u32,
}

impl KeylessTable {
    /// Stores `number` under its key and returns the number that it replaces. Amortized O(1).
    pub(crate) fn replace(&mut self, number: u32, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        let is_full = slots_of(self.len + 1) > self.slots.len();
        if is_full || number >= self.mask() {
            self.grow(is_full, number as usize + 1, &key_of);
        }
        self.insert_slot(number, key_of)
    }

    /// Returns the last number that was stored under this key.
    pub(crate) fn get(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        self.find(key, key_of).1
    }

    /// Returns a guess at the number of this key, from one slot; any number if the key has none.
    pub(crate) fn peek(&self, key: u64) -> u32 {
        let slot = self.slots.get(self.bucket(hash(key))).copied();
        (slot.unwrap_or(0) & self.mask()).wrapping_sub(1)
    }

    /// Makes room for more keys if the table is full, and for numbers below `end`.
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

    /// Returns the slot of the key, or the free slot where it belongs, and its number.
    fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> (usize, Option<u32>) {
        let hash = hash(key);
        let (tag, mask) = (self.tag(hash), self.mask());
        let mut index = self.bucket(hash);
        loop {
            let slot = self.slots[index];
            if slot == 0 {
                return (index, None);
            }
            if slot & !mask == tag {
                let number = (slot & mask) - 1;
                if key_of(number) == key {
                    return (index, Some(number));
                }
            }
            index += 1;
            if index == self.slots.len() {
                index = 0;
            }
        }
    }

    /// Returns the first slot of a search for a hash. Slots are in the order of hashes, so that a growing table is
    /// copied from one end to the other.
    #[expect(clippy::cast_possible_truncation, reason = "it is below the number of slots")]
    fn bucket(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "the tag is the low half")]
    fn tag(&self, hash: u64) -> u32 {
        (hash as u32).unbounded_shl(self.bits)
    }

    fn mask(&self) -> u32 {
        !u32::MAX.unbounded_shl(self.bits)
    }
}

/// Returns the number of slots for `num_keys` keys. At most seven of eight are taken, so that runs of taken slots
/// stay within a cache line.
fn slots_of(num_keys: usize) -> usize {
    num_keys + num_keys / 7 + 1
}

/// Returns the hash of a key, with a secret seed per process: untrusted users choose the texts, and must not be able
/// to choose keys that collide.
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
fn hash(key: u64) -> u64 {
    static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0_u8));
    let product = u128::from(key ^ *SECRET) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// Vectors larger than this get a capacity of at least [`MAPPED`] bytes.
const LARGE: usize = 1 << 21;

/// Minimum capacity of large vectors, in bytes. Allocators map such blocks separately: unwritten pages take no
/// memory, growth copies nothing, and freed blocks return to the system. Smaller blocks leave gaps: a memory of
/// 64 MiB took 135 MiB with them and takes 77 MiB now.
const MAPPED: usize = 33 << 20;

/// Makes room for more items. A vector grows in small steps, so that a text takes little more than its tokens.
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

/// Returns the bytes that a vector takes: the written part of a mapped one; for one on the heap its block, and half
/// as much again for the gaps that growth leaves.
pub(crate) fn bytes_of<T>(items: &Vec<T>) -> usize {
    let all = size_of::<T>() * items.capacity();
    match all {
        0 => 0,
        MAPPED.. => size_of::<T>() * items.len(),
        _ => allocated(all) / 2 * 3,
    }
}

/// Returns the size of the allocator's block for `num_bytes`.
pub(crate) fn allocated(num_bytes: usize) -> usize {
    (num_bytes + 8).next_multiple_of(16).max(32)
}

#[cfg(test)]
mod tests {
    use super::KeylessTable;

    /// With numbers this large, a slot has no bits left for the hash, so a probe compares every key, also
    /// beyond the end of the table.
    #[test]
    fn table_without_bits_for_hashes_still_separates_keys() {
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

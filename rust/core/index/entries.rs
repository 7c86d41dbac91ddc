//! Where do millions of numbers lie whose memory is to be given back at once?

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use crate::base::error::Result;
use crate::index::suffix_array::out_of_memory;

/// A list of limited length in pages of its own. An allocator keeps much of what it has once had, and
/// the limit on the memory of a sort would not hold.
pub(crate) struct Entries {
    pages: MmapMut,
    capacity: usize,
    len: usize,
}

impl Entries {
    /// An empty list for `capacity` numbers, which take memory as they come.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        let num_bytes = capacity.saturating_mul(size_of::<u128>());
        let pages = MmapMut::map_anon(num_bytes.max(1)).map_err(|_| out_of_memory(num_bytes))?;
        Ok(Self {
            pages,
            capacity,
            len: 0,
        })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Appends a number to a list that is not full.
    pub(crate) fn push(&mut self, number: u128) {
        self.len += 1;
        let last = self.len - 1;
        self[last] = number;
    }

    /// Keeps every number whose index is a multiple of `stride`.
    pub(crate) fn thin(&mut self, stride: usize) {
        let kept = self.len.div_ceil(stride);
        for index in 0..kept {
            self[index] = self[index * stride];
        }
        self.len = kept;
    }
}

impl Deref for Entries {
    type Target = [u128];

    fn deref(&self) -> &[u128] {
        let num_bytes = self.len * size_of::<u128>();
        bytemuck::try_cast_slice(&self.pages[..num_bytes]).expect("pages are aligned")
    }
}

impl DerefMut for Entries {
    fn deref_mut(&mut self) -> &mut [u128] {
        let num_bytes = self.len * size_of::<u128>();
        bytemuck::try_cast_slice_mut(&mut self.pages[..num_bytes]).expect("pages are aligned")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_up_to_its_capacity() {
        let mut entries = Entries::new(5).unwrap();
        assert!(entries.is_empty() && !entries.is_full());
        for number in 10..15 {
            entries.push(number);
        }
        assert!(entries.is_full());
        assert_eq!(*entries, [10, 11, 12, 13, 14]);
        entries.thin(2);
        assert_eq!(*entries, [10, 12, 14]);
        entries.thin(1);
        entries.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(*entries, [14, 12, 10]);
        assert!(Entries::new(0).unwrap().is_full());
    }
}

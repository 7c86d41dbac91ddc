//! Bytes that stay where they are.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::MmapMut;

use crate::error::{Error, Result};

/// The bytes of a large page, which is filled with zeros when it is taken.
#[cfg(target_os = "linux")]
const LARGE_PAGE: usize = 1 << 21;

/// A part of a file or of an array, which its copies share.
#[derive(Clone)]
pub struct Bytes {
    /// The file or array, which copies share.
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// The indices of the bytes in it.
    range: Range<usize>,
}

impl Bytes {
    /// Returns all bytes of an owner.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range }
    }

    /// Returns a part of a map, `None` where it is not all there.
    pub(crate) fn part<T: AsRef<[u8]> + Send + Sync + 'static>(
        owner: &Arc<T>,
        range: Range<usize>,
    ) -> Option<Self> {
        T::as_ref(owner).get(range.clone())?;
        Some(Self { owner: Arc::<T>::clone(owner), range })
    }

    /// Returns some of these bytes, `None` where they are not all there.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.get(range.clone())?;
        let start = self.range.start;
        Some(Self { owner: Arc::clone(&self.owner), range: start + range.start..start + range.end })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Bytes({:?})", self.range)
    }
}

/// Maps zeros, of which only those that are written take memory: pages of 2 MiB where the system has them.
pub(crate) fn zeros(number: usize, purpose: &'static str) -> Result<MmapMut> {
    let map = MmapMut::map_anon(number.max(1)).map_err(|_| Error::OutOfMemory(purpose))?;
    #[cfg(target_os = "linux")]
    if number > LARGE_PAGE {
        let _ = map.advise(memmap2::Advice::HugePage); // Some systems have none.
    }
    Ok(map)
}

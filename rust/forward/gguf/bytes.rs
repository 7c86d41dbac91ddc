//! Bytes that stay where they are.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A part of a file or of an array, which its copies share.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Bytes {
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

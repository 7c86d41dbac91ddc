//! Is what is read next likely to be in memory?

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A lookup in memory takes some microseconds, one page from a fast disk a hundred.
const SLOW: Duration = Duration::from_micros(300);

/// After so many fast lookups in a row, the next one is held to be fast as well.
const NUM_FAST: u32 = 64;

/// How many lookups in a row were too fast to have waited for a disk.
///
/// Where they do wait, it pays to ask for all pages of a step before reading the first of them: the
/// disk then fetches them at the same time. In memory, asking would cost more than reading. It is a
/// matter of time alone: what is read does not depend on it.
#[derive(Debug, Default)]
pub(crate) struct Warmth(AtomicU32);

impl Warmth {
    pub(crate) fn is_cold(&self) -> bool {
        self.0.load(Ordering::Relaxed) < NUM_FAST
    }

    /// Learns from a lookup that took so long.
    pub(crate) fn note(&self, elapsed: Duration) {
        if elapsed > SLOW {
            self.0.store(0, Ordering::Relaxed);
        } else if self.is_cold() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_cold_until_many_lookups_in_a_row_were_fast() {
        let warmth = Warmth::default();
        for _ in 0..NUM_FAST {
            assert!(warmth.is_cold());
            warmth.note(SLOW);
        }
        assert!(!warmth.is_cold());
        warmth.note(SLOW + Duration::from_nanos(1));
        assert!(warmth.is_cold());
    }
}

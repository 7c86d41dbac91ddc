//! Is what is read next likely to be in memory?

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A lookup in memory takes some microseconds, one page from a fast disk a hundred.
const SLOW: Duration = Duration::from_micros(300);

/// What a slow lookup adds to the chill, of which a fast one takes 1. A thread that shares its core is
/// interrupted now and then, which looks the same: where fewer than one lookup in 17 is slow, the chill
/// goes away.
const CHILL_OF_SLOW: u32 = 16;

/// With more chill than this, the next lookup is held to be slow: that of two slow ones is not enough.
const COLD: u32 = 2 * CHILL_OF_SLOW;

/// As cold as it gets, and as it is before anything was read.
const MAX_CHILL: u32 = 2 * COLD;

/// How many of the last lookups were so slow that they waited for a disk.
///
/// Where they do wait, it pays to ask for all pages of a step before reading the first of them: the
/// disk then fetches them at the same time. In memory, asking would cost more than reading. It is a
/// matter of time alone: what is read does not depend on it.
#[derive(Debug)]
pub(crate) struct Warmth {
    chill: AtomicU32,
}

impl Default for Warmth {
    fn default() -> Self {
        Self {
            chill: AtomicU32::new(MAX_CHILL),
        }
    }
}

impl Warmth {
    pub(crate) fn is_cold(&self) -> bool {
        self.chill.load(Ordering::Relaxed) > COLD
    }

    /// Learns from a lookup that took so long. Of two threads that do so at the same time, one may
    /// count for nothing.
    pub(crate) fn note(&self, elapsed: Duration) {
        let before = self.chill.load(Ordering::Relaxed);
        let after = if elapsed > SLOW {
            (before + CHILL_OF_SLOW).min(MAX_CHILL)
        } else {
            before.saturating_sub(1)
        };
        if after != before {
            self.chill.store(after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOO_SLOW: Duration = SLOW.saturating_add(Duration::from_nanos(1));

    fn warm() -> Warmth {
        let warmth = Warmth::default();
        for _ in COLD..MAX_CHILL {
            assert!(warmth.is_cold());
            warmth.note(SLOW);
        }
        assert!(!warmth.is_cold());
        warmth
    }

    #[test]
    fn it_is_cold_until_many_lookups_were_fast() {
        warm();
    }

    #[test]
    fn three_slow_lookups_in_a_row_make_it_cold() {
        let warmth = warm();
        for _ in 0..COLD {
            warmth.note(SLOW);
        }
        for _ in 0..2 {
            warmth.note(TOO_SLOW);
            assert!(!warmth.is_cold());
        }
        warmth.note(TOO_SLOW);
        assert!(warmth.is_cold());
    }

    #[test]
    fn one_slow_lookup_in_seventeen_does_not() {
        let warmth = warm();
        for _ in 0..COLD {
            warmth.note(SLOW);
        }
        for lookup in 0..1000 {
            warmth.note(if lookup % 17 == 0 { TOO_SLOW } else { SLOW });
            assert!(!warmth.is_cold());
        }
    }

    #[test]
    fn slow_lookups_keep_it_cold_where_they_are_more_than_that() {
        let warmth = Warmth::default();
        for lookup in 0..1000 {
            warmth.note(if lookup % 10 == 0 { TOO_SLOW } else { SLOW });
            assert!(warmth.is_cold());
        }
    }
}

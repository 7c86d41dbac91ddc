//! Is what is read next likely to be in memory?

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// So many samples take some microseconds from memory, and up to a hundred where it is asked for them
/// first. A page from a fast disk takes a hundred.
const SLOW: Duration = Duration::from_micros(300);
const NUM_SAMPLES: usize = 64;

/// What slow reads add to the chill, of which fast ones take 1. A thread that shares its core is
/// interrupted now and then, which looks the same: where fewer than one in 17 is slow, the chill goes
/// away.
const CHILL_OF_SLOW: u32 = 16;

/// With more chill than this, what is read next is held to be slow: twice is not enough.
const COLD: u32 = 2 * CHILL_OF_SLOW;

/// As cold as it gets, and as it is before anything was read.
const MAX_CHILL: u32 = 2 * COLD;

/// How often reads of samples were so slow of late that they waited for a disk.
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

    /// Learns from so many samples that took so long to read. Of two threads that do so at the same
    /// time, one may count for nothing.
    pub(crate) fn note(&self, elapsed: Duration, num_samples: usize) {
        if num_samples == 0 {
            return;
        }
        let before = self.chill.load(Ordering::Relaxed);
        let num_parts = u32::try_from(num_samples.div_ceil(NUM_SAMPLES)).unwrap_or(u32::MAX);
        let after = if elapsed / num_parts > SLOW {
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
            warmth.note(SLOW, 1);
        }
        assert!(!warmth.is_cold());
        warmth
    }

    #[test]
    fn it_is_cold_until_many_reads_were_fast() {
        warm();
    }

    #[test]
    fn three_slow_reads_in_a_row_make_it_cold() {
        let warmth = warm();
        for _ in 0..COLD {
            warmth.note(SLOW, 1);
        }
        for _ in 0..2 {
            warmth.note(TOO_SLOW, 64);
            assert!(!warmth.is_cold());
        }
        warmth.note(TOO_SLOW, 64);
        assert!(warmth.is_cold());
    }

    #[test]
    fn one_slow_read_in_seventeen_does_not() {
        let warmth = warm();
        for _ in 0..COLD {
            warmth.note(SLOW, 1);
        }
        for read in 0..1000 {
            warmth.note(if read % 17 == 0 { TOO_SLOW } else { SLOW }, 1);
            assert!(!warmth.is_cold());
        }
    }

    #[test]
    fn slow_reads_keep_it_cold_where_they_are_more_than_that() {
        let warmth = Warmth::default();
        for read in 0..1000 {
            warmth.note(if read % 10 == 0 { TOO_SLOW } else { SLOW }, 1);
            assert!(warmth.is_cold());
        }
    }

    #[test]
    fn many_samples_may_take_longer_and_none_say_nothing() {
        let warmth = warm();
        for _ in 0..10 {
            warmth.note(2 * SLOW, 65);
            warmth.note(2 * TOO_SLOW, 0);
        }
        assert!(!warmth.is_cold());
        for _ in 0..10 {
            warmth.note(2 * TOO_SLOW, 128);
        }
        assert!(warmth.is_cold());
    }
}

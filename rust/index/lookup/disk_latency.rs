//! A guess whether the next read finds its data in memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A read of `NUM_SAMPLES` samples that takes longer waited for a disk: from memory it takes some
/// microseconds, at most a hundred with the call that requests the pages.
const SLOW: Duration = Duration::from_micros(300);
const NUM_SAMPLES: usize = 64;

/// A slow read takes this much from the warmth; a fast one adds 1. Interrupts look like slow reads: where
/// fewer than one in 17 is slow, the warmth rises to the highest.
const SLOW_COOLS: u32 = 16;

/// Below this warmth the next read is expected to be slow: two slow reads are not enough.
const WARM: u32 = 2 * SLOW_COOLS;

const MAX_WARMTH: u32 = 2 * WARM;

/// Whether recent reads waited for a disk.
///
/// If so, a lookup requests all pages of a step before it reads the first, and the disk fetches them
/// together; in memory that costs more than reading. It changes times, never answers.
#[derive(Debug, Default)]
pub(crate) struct DiskLatency {
    /// High where recent reads were fast; 0 before the first.
    warmth: AtomicU32,
}

impl DiskLatency {
    pub(crate) fn is_cold(&self) -> bool {
        self.warmth.load(Ordering::Relaxed) < WARM
    }

    /// Learns from a read that took `elapsed`. Two threads may overwrite what the other learns: no harm.
    pub(crate) fn note(&self, elapsed: Duration, num_samples: usize) {
        if num_samples == 0 {
            return;
        }
        let before = self.warmth.load(Ordering::Relaxed);
        let num_parts = u32::try_from(num_samples.div_ceil(NUM_SAMPLES)).unwrap_or(u32::MAX);
        let after = if elapsed / num_parts > SLOW {
            before.saturating_sub(SLOW_COOLS)
        } else {
            (before + 1).min(MAX_WARMTH)
        };
        if after != before {
            self.warmth.store(after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOO_SLOW: Duration = SLOW.saturating_add(Duration::from_nanos(1));

    #[test]
    fn it_is_cold_while_more_than_one_read_in_seventeen_is_slow() {
        // How many reads, each how many of them is slow (0: none), their samples, whether it is cold.
        let rows = [
            (WARM - 1, 0, 1, true),
            (1, 0, 1, false),
            (WARM, 0, 1, false),
            (2, 1, 64, false),
            (1, 1, 64, true),
            (1000, 10, 1, true),
            (MAX_WARMTH, 0, 1, false),
            (1000, 17, 1, false),
            // Many samples may take longer, and none say nothing.
            (10, 0, 65, false),
            (10, 1, 0, false),
            (10, 1, 128, true),
        ];
        let disk_latency = DiskLatency::default();
        assert!(disk_latency.is_cold());
        for (row, (num_reads, slow_every, num_samples, is_cold)) in rows.into_iter().enumerate() {
            for read in 0..num_reads {
                let is_slow = slow_every > 0 && read % slow_every == 0;
                let of_part = if is_slow { TOO_SLOW } else { SLOW };
                let elapsed = of_part * if num_samples > NUM_SAMPLES { 2 } else { 1 };
                disk_latency.note(elapsed, num_samples);
            }
            assert_eq!(disk_latency.is_cold(), is_cold, "row {row}");
        }
    }
}

//! Detection of reads that wait for a disk.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A read of `NUM_SAMPLES` samples that takes longer has waited for a disk. From memory it takes a few microseconds,
/// at most a hundred with the system call that requests the pages.
const SLOW: Duration = Duration::from_micros(300);
const NUM_SAMPLES: usize = 64;

/// A slow read lowers the warmth by this much; a fast one adds 1. Interrupts look like slow reads, so the warmth still
/// rises to the maximum if fewer than one read in 17 is slow.
const SLOW_COOLS: u32 = 16;

/// Below this warmth, the next read is expected to be slow. From the maximum, two slow reads do not suffice.
const WARM: u32 = 2 * SLOW_COOLS;

const MAX_WARMTH: u32 = 2 * WARM;

/// A moving estimate of disk waits in recent reads.
///
/// If reads are slow, a lookup requests all pages of a step before it reads the first, so that the disk fetches them
/// together. For pages in memory, the request costs more than the read. Answers do not depend on it.
#[derive(Debug, Default)]
pub(crate) struct DiskLatency {
    /// It is high if recent reads were fast, and 0 before the first.
    warmth: AtomicU32,
}

impl DiskLatency {
    pub(crate) fn is_cold(&self) -> bool {
        self.warmth.load(Ordering::Relaxed) < WARM
    }

    /// Records a read that took `elapsed`. Threads may overwrite each other's update, which only delays the estimate.
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
    fn disk_is_cold_while_more_than_one_read_in_seventeen_is_slow() {
        // Number of reads, period of slow ones (0: none), samples of a read, expected coldness.
        let rows = [
            (WARM - 1, 0, 1, true),
            (1, 0, 1, false),
            (WARM, 0, 1, false),
            (2, 1, 64, false),
            (1, 1, 64, true),
            (1000, 10, 1, true),
            (MAX_WARMTH, 0, 1, false),
            (1000, 17, 1, false),
            // The threshold grows with the number of samples; reads without samples are not counted.
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

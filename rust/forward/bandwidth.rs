//! Bandwidth of the memory, which limits how fast weights are read.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytemuck::cast_slice_mut;

use crate::error::Result;
use crate::gguf::bytes::zeros;
use crate::parallel;

/// The bytes that are read: more than caches hold.
const BYTES: usize = 1 << 28;
/// The time that is measured.
const MEASURED: Duration = Duration::from_millis(150);

/// Measures the bytes a second that threads read together, in a fraction of a second.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
pub fn memory_bandwidth(num_threads: usize) -> Result<f64> {
    let mut map = zeros(BYTES, "the measurement")?;
    let numbers: &mut [u64] = cast_slice_mut(&mut map);
    let shares: Vec<&mut [u64]> =
        numbers.chunks_mut((BYTES / 8).div_ceil(num_threads.clamp(1, 256))).collect();
    // What was never written has no memory of its own.
    parallel::each(shares, |share| share.fill(1));
    let numbers = &*numbers;
    let step = numbers.len().div_ceil(num_threads.clamp(1, 256));
    let (start, mut passes) = (Instant::now(), 0_u32);
    while passes == 0 || start.elapsed() < MEASURED {
        parallel::each(numbers.chunks(step).collect(), |share| {
            black_box(share.iter().fold(0_u64, |sum, number| sum.wrapping_add(*number)));
        });
        passes += 1;
    }
    Ok(f64::from(passes) * BYTES as f64 / start.elapsed().as_secs_f64())
}

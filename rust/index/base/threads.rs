//! Parallel work.

#[cfg(feature = "rayon")]
use rayon::prelude::*;

use crate::base::error::{Error, Result};

/// Works on all items in parallel, each thread on at least `min_len` of them.
///
/// Without rayon, and in a forked process, one thread does all work: a fork has rayon's pool but not its threads.
pub fn in_parallel<T: Send, R: Send>(
    items: &mut [T],
    min_len: usize,
    work: impl Fn(&mut T) -> R + Send + Sync,
) -> Vec<R> {
    #[cfg(feature = "rayon")]
    if items.len() > min_len && has_threads() {
        let items = items.par_iter_mut().with_min_len(min_len);
        return items.map(work).collect();
    }
    let _ = min_len;
    items.iter_mut().map(work).collect()
}

#[cfg(feature = "rayon")]
fn has_threads() -> bool {
    use std::process;
    use std::sync::OnceLock;

    static STARTED_BY: OnceLock<u32> = OnceLock::new();
    *STARTED_BY.get_or_init(process::id) == process::id()
}

/// Returns the minimum number of tasks a thread, so that at most `num_threads` threads have tasks.
pub fn batch_size(count: usize, num_threads: Option<usize>) -> Result<usize> {
    match num_threads {
        Some(0) => Err(Error::invalid("num_threads", "must be at least 1")),
        Some(num_threads) => Ok(count.div_ceil(num_threads).max(1)),
        None => Ok(1),
    }
}

//! Forks of the process. A lock that another thread holds at that time stays locked in the child for good.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

static NUM_HELD_OFF: AtomicUsize = AtomicUsize::new(0);
static NUM_FORKING: AtomicUsize = AtomicUsize::new(0);
const POLL: Duration = Duration::from_micros(50);

/// Holds off forks until it is dropped, if the program calls [`begin_fork`]. A thread has at most one, and holds it
/// while it has locks, but not while it waits for another process.
#[must_use]
#[derive(Debug)]
pub struct NoFork(());

impl NoFork {
    /// Waits for forks that have begun.
    pub fn begin() -> Self {
        loop {
            NUM_HELD_OFF.fetch_add(1, SeqCst);
            let held_off = Self(());
            if NUM_FORKING.load(SeqCst) == 0 {
                return held_off;
            }
            drop(held_off);
            thread::sleep(POLL);
        }
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        NUM_HELD_OFF.fetch_sub(1, SeqCst);
    }
}

/// Waits until no thread holds off forks, and blocks new ones until [`end_fork`] or [`begin_child`].
pub fn begin_fork() {
    NUM_FORKING.fetch_add(1, SeqCst);
    while NUM_HELD_OFF.load(SeqCst) > 0 {
        thread::sleep(POLL);
    }
}

/// Ends a fork in the parent.
pub fn end_fork() {
    NUM_FORKING.fetch_sub(1, SeqCst);
}

/// Ends a fork in the child, which has none of the parent's other threads.
pub fn begin_child() {
    NUM_HELD_OFF.store(0, SeqCst);
    NUM_FORKING.store(0, SeqCst);
}

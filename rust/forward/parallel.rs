//! Threads for the parts of a pass.

use std::process;
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder, Yield, yield_now};

/// The threads, `None` in a forked process, which has the pool but not its threads.
///
/// They are not rayon's global ones, which a process may have begun before its fork without a pass.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<(u32, Option<ThreadPool>)> = OnceLock::new();
    let begun = POOL.get_or_init(|| (process::id(), ThreadPoolBuilder::new().build().ok()));
    begun.1.as_ref().filter(|_| begun.0 == process::id())
}

/// Does each task, the first one on this thread, and returns when all are done.
pub(crate) fn each<T: Send>(tasks: Vec<T>, work: impl Fn(T) + Sync) {
    let Some(pool) = (tasks.len() > 1).then(pool).flatten() else {
        return tasks.into_iter().for_each(work);
    };
    let mut tasks = tasks.into_iter();
    let first = tasks.next();
    pool.in_place_scope(|scope| {
        for task in tasks {
            scope.spawn(|_| work(task));
        }
        first.into_iter().for_each(&work);
    });
}

/// Does some work while other threads wait for its tasks awake: to wake one takes longer than a small task.
///
/// Only the first concurrent caller gets spinning threads.
pub(crate) fn awake<R: Send>(num_threads: usize, work: impl FnOnce() -> R + Send) -> R {
    static WAITING: Mutex<()> = Mutex::new(());
    let Some(pool) = (num_threads > 1).then(pool).flatten() else {
        return work();
    };
    pool.scope(|scope| {
        // A panic leaves nothing behind a lock of nothing.
        let waiting = match WAITING.try_lock() {
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            other => other,
        };
        let here = Arc::new(());
        if let (Ok(_), Some(me)) = (&waiting, pool.current_thread_index()) {
            let (caller, number) = (Arc::downgrade(&here), pool.current_num_threads());
            scope.spawn_broadcast(move |_, other| {
                let is_other = (1..num_threads).contains(&((number + other.index() - me) % number));
                while is_other && caller.strong_count() > 0 {
                    if yield_now() != Some(Yield::Executed) {
                        thread::yield_now();
                    }
                }
            });
        }
        let done = work();
        drop(here); // which a panic does too
        done
    })
}

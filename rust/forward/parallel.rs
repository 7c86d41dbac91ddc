//! Threads for the parts of a pass.

use std::process;
use std::sync::OnceLock;

/// Does each task, the first one on this thread, and returns when all are done.
///
/// A forked process has rayon's pool but not its threads, so this thread does all tasks.
pub(crate) fn each<T: Send>(tasks: Vec<T>, work: impl Fn(T) + Sync) {
    static STARTED_BY: OnceLock<u32> = OnceLock::new();
    if tasks.len() < 2 || *STARTED_BY.get_or_init(process::id) != process::id() {
        return tasks.into_iter().for_each(work);
    }
    let mut tasks = tasks.into_iter();
    let first = tasks.next();
    rayon::in_place_scope(|scope| {
        for task in tasks {
            scope.spawn(|_| work(task));
        }
        first.into_iter().for_each(&work);
    });
}

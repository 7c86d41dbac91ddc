//! Threads for the parts of a pass.

/// Does each task, the first one on this thread, and returns when all are done.
pub(crate) fn each<T: Send>(tasks: Vec<T>, work: impl Fn(T) + Sync) {
    let mut tasks = tasks.into_iter();
    let Some(first) = tasks.next() else {
        return;
    };
    if tasks.len() == 0 {
        return work(first);
    }
    rayon::in_place_scope(|scope| {
        for task in tasks {
            scope.spawn(|_| work(task));
        }
        work(first);
    });
}

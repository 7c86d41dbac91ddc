//! Threads that index complete shards while the corpus is still being read.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::suffixes::write::{ShardText, WriteProgress, write_index};

/// Threads that index shards in their folders. Dropping waits for them, because a sort cannot be interrupted.
#[derive(Debug)]
pub(crate) struct IndexWorkers {
    pub(crate) progress: Arc<WriteProgress>,
    /// The queue of shards. Dropping it ends the threads when it is empty.
    jobs: Option<Sender<(PathBuf, ShardText)>>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl IndexWorkers {
    pub(crate) fn new(num_threads: usize) -> Result<Self> {
        let (jobs, queue) = channel::<(PathBuf, ShardText)>();
        let (queue, progress) = (Arc::new(Mutex::new(queue)), Arc::<WriteProgress>::default());
        let start = |_| {
            let (queue, progress) = (Arc::clone(&queue), Arc::clone(&progress));
            let work = move || loop {
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((folder, text)) = job else {
                    return Ok(());
                };
                write_index(&folder, text, &progress)?.seal(&folder)?;
                progress.num_complete.fetch_add(1, Ordering::Relaxed);
            };
            let thread = thread::Builder::new().name("specds-index".to_owned());
            thread.spawn(work)
        };
        let threads: io::Result<_> = (0..num_threads).map(start).collect();
        let failed = |error| Error::invalid("threads", format!("cannot be started: {error}"));
        Ok(Self { threads: threads.map_err(failed)?, jobs: Some(jobs), progress })
    }

    /// Queues a shard. Returns the error of an earlier one.
    pub(crate) fn add(&mut self, folder: PathBuf, text: ShardText) -> Result<()> {
        if self.threads.iter().any(JoinHandle::is_finished) {
            self.wait()?;
        }
        match &self.jobs {
            Some(jobs) if jobs.send((folder, text)).is_ok() => Ok(()),
            _ => Err(Error::BuildFailed),
        }
    }

    /// Waits for all shards and reports progress.
    pub(crate) fn finish(
        &mut self,
        mut report: impl FnMut(&WriteProgress) -> Result<()>,
    ) -> Result<()> {
        self.jobs = None;
        let mut pause = Duration::from_millis(1);
        while !self.threads.iter().all(JoinHandle::is_finished) {
            report(&self.progress)?;
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(100));
        }
        self.wait()?;
        report(&self.progress)
    }

    /// Waits for the threads and returns the error of one that failed or panicked.
    fn wait(&mut self) -> Result<()> {
        self.jobs = None;
        let ended = self.threads.drain(..).map(JoinHandle::join);
        ended.map(|ended| ended.unwrap_or(Err(Error::BuildFailed))).fold(Ok(()), Result::and)
    }
}

impl Drop for IndexWorkers {
    fn drop(&mut self) {
        self.progress.is_stopped.store(true, Ordering::Relaxed);
        let _ = self.wait();
    }
}

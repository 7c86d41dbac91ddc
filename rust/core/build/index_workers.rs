//! Who sorts the complete shards while others are still being read?

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::base::error::{Error, Result};
use crate::index::write::{Progress, ShardText, write_index};
use crate::storage::manifest::ShardEntry;

/// A shard whose text is complete, in a folder of its own.
pub(crate) struct Job {
    pub(crate) index: usize,
    pub(crate) folder: PathBuf,
    pub(crate) text: ShardText,
}

/// Which shard's index is complete and on the disk, and what it is.
type Indexed = Result<(usize, ShardEntry)>;

/// Threads that build the indexes of shards. Dropping them waits until they have ended: a sort cannot be
/// interrupted.
pub(crate) struct IndexWorkers {
    pool: ThreadPool,
    progress: Arc<Progress>,
    /// Cloned for each job: once all are gone, nothing more comes.
    sender: Option<Sender<Indexed>>,
    /// The mutex makes builders shareable; it is never locked.
    indexed: Mutex<Receiver<Indexed>>,
}

impl IndexWorkers {
    pub(crate) fn new(num_threads: usize) -> Result<Self> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(num_threads)
            .thread_name(|_| "specds-index".to_owned())
            // A panic is no error that anyone could act on: the build ends as a failed one.
            .panic_handler(drop)
            .build();
        let failed = |error| Error::invalid("threads", format!("cannot be started: {error}"));
        let (sender, indexed) = channel();
        Ok(Self {
            pool: pool.map_err(failed)?,
            sender: Some(sender),
            progress: Arc::default(),
            indexed: Mutex::new(indexed),
        })
    }

    pub(crate) fn add(&self, job: Job) {
        let Some(sender) = self.sender.clone() else {
            return;
        };
        let progress = Arc::clone(&self.progress);
        self.pool.spawn(move || {
            let _ = sender.send(index(job, &progress));
        });
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// No more shards will come.
    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// A shard that is complete, if there is one.
    pub(crate) fn poll(&mut self) -> Option<Indexed> {
        self.indexed().try_recv().ok()
    }

    /// The next complete shard: nothing within a tenth of a second, or an error where no worker is left.
    pub(crate) fn recv(&mut self) -> Result<Option<(usize, ShardEntry)>> {
        match self.indexed().recv_timeout(Duration::from_millis(100)) {
            Ok(indexed) => indexed.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::BuildFailed),
        }
    }

    fn indexed(&mut self) -> &mut Receiver<Indexed> {
        self.indexed
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IndexWorkers {
    fn drop(&mut self) {
        self.progress.is_stopped.store(true, Ordering::Relaxed);
        self.close();
        while self.indexed().recv().is_ok() {}
    }
}

fn index(job: Job, progress: &Progress) -> Indexed {
    let manifest = write_index(&job.folder, job.text, progress)?;
    manifest.seal(&job.folder)?;
    Ok((job.index, manifest.entry()))
}

//! Who sorts the complete shards while others are still being read?

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::base::error::{Error, Result};
use crate::index::write::{IndexOptions, ShardText, Stage, write_index};
use crate::storage::manifest::ShardEntry;

/// A shard whose text is complete, in a folder of its own.
pub(crate) struct Job {
    pub(crate) index: usize,
    pub(crate) folder: PathBuf,
    pub(crate) text: ShardText,
}

/// What a worker says.
pub(crate) enum Event {
    /// How many tokens of a shard a stage has done.
    Progress {
        index: usize,
        stage: Stage,
        done: u64,
    },
    /// The index of a shard is complete and on the disk.
    Indexed { index: usize, shard: ShardEntry },
}

/// Threads that build the indexes of shards, as many as memory and cores allow.
///
/// Dropping it waits until they have ended: a sort cannot be interrupted, but nothing is written after
/// it.
pub(crate) struct IndexWorkers {
    pool: ThreadPool,
    options: IndexOptions,
    /// Cloned for each job: once all are gone, nothing more comes.
    sender: Option<Sender<Result<Event>>>,
    /// The mutex makes builders shareable; it is never locked.
    events: Mutex<Receiver<Result<Event>>>,
    is_stopped: Arc<AtomicBool>,
}

impl IndexWorkers {
    pub(crate) fn new(num_threads: usize, options: IndexOptions) -> Result<Self> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(num_threads)
            .thread_name(|_| "specds-index".to_owned())
            // A panic is no error that anyone could act on: the build ends as a failed one.
            .panic_handler(drop)
            .build();
        let failed = |error| Error::invalid("threads", format!("cannot be started: {error}"));
        let (sender, events) = channel();
        Ok(Self {
            pool: pool.map_err(failed)?,
            options,
            sender: Some(sender),
            events: Mutex::new(events),
            is_stopped: Arc::default(),
        })
    }

    pub(crate) fn add(&self, job: Job) {
        let Some(sender) = self.sender.clone() else {
            return;
        };
        let (options, is_stopped) = (self.options.clone(), Arc::clone(&self.is_stopped));
        self.pool.spawn(move || {
            let event = index(job, &options, |progress| {
                let is_received = sender.send(Ok(progress)).is_ok();
                is_received && !is_stopped.load(Ordering::Relaxed)
            });
            let _ = sender.send(event);
        });
    }

    /// No more shards will come.
    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// What a worker has said, without waiting.
    pub(crate) fn poll(&mut self) -> Option<Result<Event>> {
        self.events().try_recv().ok()
    }

    /// What a worker says next: nothing within a tenth of a second, or an error where no worker is
    /// left to say anything.
    pub(crate) fn recv(&mut self) -> Result<Option<Event>> {
        match self.events().recv_timeout(Duration::from_millis(100)) {
            Ok(event) => event.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::BuildFailed),
        }
    }

    fn events(&mut self) -> &mut Receiver<Result<Event>> {
        self.events
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IndexWorkers {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.close();
        while self.events().recv().is_ok() {}
    }
}

/// Indexes a shard, for as long as `report` says so.
fn index(job: Job, options: &IndexOptions, report: impl Fn(Event) -> bool) -> Result<Event> {
    let Job {
        index,
        folder,
        text,
    } = job;
    let mut progress = |stage, done| {
        let is_wanted = report(Event::Progress { index, stage, done });
        is_wanted.then_some(()).ok_or(Error::Stopped)
    };
    progress(Stage::Sort, 0)?;
    let manifest = write_index(&folder, text, options, &mut progress)?;
    manifest.seal(&folder)?;
    let shard = manifest.entry();
    Ok(Event::Indexed { index, shard })
}

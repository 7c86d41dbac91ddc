//! Who sorts the complete shards while others are still being read?

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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
    /// So many tokens of a shard are through a stage.
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
    jobs: Option<Sender<Job>>,
    /// The mutex makes builders shareable; it is never locked.
    events: Mutex<Receiver<Result<Event>>>,
    is_stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl IndexWorkers {
    pub(crate) fn new(num_threads: usize, options: &IndexOptions) -> Result<Self> {
        let (jobs, todo) = channel();
        let (sender, events) = channel();
        let todo = Arc::new(Mutex::new(todo));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..num_threads {
            let worker = Worker {
                todo: Arc::clone(&todo),
                events: sender.clone(),
                is_stopped: Arc::clone(&is_stopped),
                options: options.clone(),
            };
            let thread = thread::Builder::new().name("specds-index".to_owned());
            let started = thread.spawn(move || worker.run());
            let failed = |error| Error::invalid("threads", format!("cannot be started: {error}"));
            threads.push(started.map_err(failed)?);
        }
        Ok(Self {
            jobs: Some(jobs),
            events: Mutex::new(events),
            is_stopped,
            threads,
        })
    }

    pub(crate) fn add(&mut self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A worker that failed has said so: the error is waiting among the events.
            let _ = jobs.send(job);
        }
    }

    /// No more shards will come.
    pub(crate) fn close(&mut self) {
        self.jobs = None;
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
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A panic is no error that anyone could act on: the build ends as a failed one.
            let _ = thread.join();
        }
    }
}

struct Worker {
    todo: Arc<Mutex<Receiver<Job>>>,
    events: Sender<Result<Event>>,
    is_stopped: Arc<AtomicBool>,
    options: IndexOptions,
}

impl Worker {
    fn run(&self) {
        while let Some(job) = self.next() {
            let event = self.index(job);
            let has_failed = event.is_err();
            if self.events.send(event).is_err() || has_failed {
                return;
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let todo = self.todo.lock().unwrap_or_else(PoisonError::into_inner);
        todo.recv().ok()
    }

    fn index(&self, job: Job) -> Result<Event> {
        let Job {
            index,
            folder,
            text,
        } = job;
        let mut progress = |stage, done| {
            let event = Event::Progress { index, stage, done };
            let is_received = self.events.send(Ok(event)).is_ok();
            if is_received && !self.is_stopped.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err(Error::Stopped)
            }
        };
        progress(Stage::Sort, 0)?;
        let manifest = write_index(&folder, text, &self.options, &mut progress)?;
        manifest.seal(&folder)?;
        let shard = manifest.entry();
        Ok(Event::Indexed { index, shard })
    }
}

//! Exchanges of a memory at intervals, and removal of texts that a datastore has.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::memory::object_store::resolved;
use crate::memory::store::Memory;
use crate::memory::tenant::Tenant;
use crate::memory::tombstones::Only;
use specds_index::base::forks::NoFork;
use specds_index::{Datastore, Error, Result};

impl Memory {
    /// Returns the texts of a tenant, the oldest first.
    pub fn texts(&self, tenant: &str) -> Vec<Vec<u32>> {
        let copied = |tenant: Arc<Tenant>| {
            let data = tenant.read();
            let texts = data.texts.documents();
            texts.map(|(tokens, ..)| tokens.to_vec()).collect()
        };
        self.find(tenant).map(copied).unwrap_or_default()
    }

    /// Removes the texts of which a datastore has every part between separators, and returns their number.
    /// O(log tokens of the datastore) a text.
    ///
    /// # Errors
    /// [`Error::OtherTokenizer`] if the datastore has another vocabulary, or is known to have another tokenizer.
    pub fn remove_known(&self, datastore: &Datastore) -> Result<usize> {
        self.remove_known_of(None, datastore)
    }

    pub(crate) fn remove_known_of(&self, only: Only, datastore: &Datastore) -> Result<usize> {
        let theirs = datastore.manifest().tokenizer_fingerprint.as_str();
        let ours = self.options().tokenizer.as_str();
        let is_known = !theirs.is_empty() && !ours.is_empty();
        let tokenizer = if is_known { theirs } else { ours };
        let (path, vocab_size) = (datastore.path(), datastore.vocab_size());
        self.options().check_tokenizer(path, vocab_size, tokenizer)?;
        let mut num_removed = 0;
        for tenant in self.tenants_of(only) {
            let hashes = tenant.read().texts.hashes();
            let is_known = |&hash: &u64| {
                let tokens = tenant.read().texts.of_hash(hash).map(<[u32]>::to_vec);
                tokens.is_some_and(|tokens| has_all(datastore, &tokens))
            };
            let known: BTreeSet<u64> = hashes.into_iter().filter(is_known).collect();
            if !known.is_empty() {
                let _writing = self.begin_writing();
                self.rewrite(&tenant, |texts| texts.without_hashes(&known));
                num_removed += known.len();
            }
        }
        Ok(num_removed)
    }
}

/// Requests whose texts a shared memory lacks.
pub trait Unstored: Send + 'static {
    /// Adds finished texts to the memory; called before each exchange.
    fn store(&mut self);

    /// Returns whether the requests have ended since the last call of [`store`](Self::store), so that an exchange
    /// is due before the next interval; called twenty times a second.
    fn is_due(&mut self) -> bool;
}

/// A thread that exchanges with a store at intervals, so that several processes share a memory.
///
/// It also does so when an engine has become idle, because some engines are killed a moment after SIGTERM. Exchanges
/// take at most a twentieth of the time, so those with a slow store are rarer, and so are those that fail.
///
/// When the datastore was replaced, the thread opens the new one and removes the texts that it has from the memory.
/// Dropping exchanges once more and ends the thread. It waits at most five seconds: a
/// store that does not answer must not keep a process from exiting.
#[derive(Debug)]
pub struct Sharing {
    stop: Option<Sender<()>>,
    /// The process of the thread; one that was forked from it has no such thread.
    process_id: u32,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    replaced: Option<Arc<Datastore>>,
    failure: Option<String>,
    num_failures: u64,
    /// Time of the last successful exchange, in seconds since 1970.
    shared_at: f64,
}

impl Sharing {
    const MAX_END: Duration = Duration::from_secs(5);
    const POLL: Duration = Duration::from_millis(50);
    /// Shortest time from an exchange to the next, over the time that the former took.
    const GAP: u32 = 20;
    /// The most doublings of the interval while exchanges fail.
    const MAX_DOUBLINGS: u32 = 3;

    /// Exchanges once, then starts the thread, which first stores the texts of `unstored` in each later exchange.
    ///
    /// # Errors
    /// If the first exchange fails, nothing is shared and the store at `path` does not change. If one at a URL
    /// does not answer, the memory is shared as soon as it does.
    pub fn start(
        memory: Arc<Memory>,
        path: &Path,
        interval: Duration,
        datastore: Option<Arc<Datastore>>,
        mut unstored: Option<impl Unstored>,
    ) -> Result<Self> {
        let path = resolved(path)?;
        let first = memory.save(&path, None).map(|()| None).or_else(|error| match &error {
            Error::Io { source, .. } if source.kind() == ErrorKind::NotConnected => Ok(Some(error)),
            _ => Err(error),
        })?;
        let state = Arc::<Mutex<State>>::default();
        lock(&state).record(first.map(|error| error.to_string()));
        let ((stop, stopped), (ends, ended)) = (mpsc::channel(), mpsc::channel());
        let (shared, mut datastore) = (Arc::clone(&state), datastore);
        let run = move || {
            let _ends = ends;
            let (mut is_running, mut gap, mut num_failed) = (true, Duration::ZERO, 0);
            while is_running {
                is_running = wait(&stopped, interval, gap, unstored.as_mut());
                let begun = Instant::now();
                if let Some(unstored) = &mut unstored {
                    let _held = NoFork::begin();
                    unstored.store();
                }
                let failure = exchange(&memory, &path, &mut datastore, &shared).err();
                gap = begun.elapsed() * Self::GAP;
                num_failed = if failure.is_some() { num_failed + 1 } else { 0 };
                if num_failed > 0 {
                    gap = gap.max(interval * (1 << num_failed.min(Self::MAX_DOUBLINGS)));
                }
                let _held = NoFork::begin();
                lock(&shared).record(failure.map(|error| error.to_string()));
            }
        };
        let thread = thread::Builder::new().name("specds-memory".to_owned());
        thread.spawn(run).map_err(|error| {
            Error::invalid("interval", format!("cannot be kept, no thread can start: {error}"))
        })?;
        let stop = Some(stop);
        Ok(Self { stop, process_id: process::id(), ended, state })
    }

    /// Returns the datastore that replaced the previous one; each is returned once.
    pub fn take_replaced(&self) -> Option<Arc<Datastore>> {
        lock(&self.state).replaced.take()
    }

    /// The error of the last exchange, if it failed. The thread retries.
    pub fn failure(&self) -> Option<String> {
        lock(&self.state).failure.clone()
    }

    /// Number of failed exchanges.
    pub fn num_failures(&self) -> u64 {
        lock(&self.state).num_failures
    }

    /// Time of the last successful exchange, in seconds since 1970.
    pub fn shared_at(&self) -> f64 {
        lock(&self.state).shared_at
    }

    /// Exchanges once more and ends the thread, as dropping does. If that fails, [`failure`](Self::failure) has the error.
    pub fn end(&mut self) {
        if self.stop.take().is_some()
            && self.process_id == process::id()
            && self.ended.recv_timeout(Self::MAX_END) == Err(RecvTimeoutError::Timeout)
        {
            let seconds = Self::MAX_END.as_secs();
            let reason = format!("the store has not answered for {seconds} s");
            lock(&self.state).record(Some(reason));
        }
    }
}

impl State {
    fn record(&mut self, failure: Option<String>) {
        self.num_failures += u64::from(failure.is_some());
        if failure.is_none() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            self.shared_at = now.map_or(0.0, |now| now.as_secs_f64());
        }
        self.failure = failure;
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for the next exchange. Returns false if it is the last one.
fn wait(
    stopped: &Receiver<()>,
    interval: Duration,
    gap: Duration,
    mut unstored: Option<&mut impl Unstored>,
) -> bool {
    let begun = Instant::now();
    loop {
        let left = interval.max(gap).saturating_sub(begun.elapsed());
        let poll = if unstored.is_some() { left.min(Sharing::POLL) } else { left };
        if stopped.recv_timeout(poll) != Err(RecvTimeoutError::Timeout) {
            return false;
        }
        let waited = begun.elapsed();
        let mut is_due = || unstored.as_mut().is_some_and(|unstored| unstored.is_due());
        if waited >= gap && (waited >= interval || is_due()) {
            return true;
        }
    }
}

fn exchange(
    memory: &Memory,
    path: &PathBuf,
    datastore: &mut Option<Arc<Datastore>>,
    state: &Mutex<State>,
) -> Result<()> {
    let now = datastore.as_deref().map(Datastore::newer).transpose()?;
    let now = now.flatten().map(Arc::new);
    if let Some(now) = &now {
        let _held = NoFork::begin();
        memory.remove_known(now)?;
        lock(state).replaced = Some(Arc::clone(now));
        *datastore = Some(Arc::clone(now));
    }
    memory.save(path, now.as_ref())
}

/// Returns whether a datastore has every part of a text between separators. No match contains a separator, so the
/// parts are looked up one by one.
fn has_all(datastore: &Datastore, tokens: &[u32]) -> bool {
    let parts = tokens.split(|&token| token == datastore.separator());
    let mut parts = parts.filter(|part| !part.is_empty());
    parts.all(|part| datastore.find(part).is_ok_and(|found| found.count() > 0))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

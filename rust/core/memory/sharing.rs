//! One memory kept by several processes, and what leaves it for a datastore.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::memory::store::Memory;
use crate::memory::tenant::Tenant;
use specds_index::{Datastore, Error, Result};

impl Memory {
    /// The texts of a tenant, the oldest first.
    pub fn texts(&self, tenant: &str) -> Vec<Vec<u32>> {
        let copied = |tenant: Arc<Tenant>| {
            let data = tenant.read();
            let texts = data.texts.documents();
            texts.map(|(tokens, _)| tokens.to_vec()).collect()
        };
        self.find(tenant).map(copied).unwrap_or_default()
    }

    /// Removes the texts of which a datastore has every part between separators, and says how many. Refuses
    /// a datastore of another vocabulary, or known to be of another tokenizer. O(log tokens of the
    /// datastore) a text.
    pub fn remove_known(&self, datastore: &Datastore) -> Result<usize> {
        let theirs = datastore.manifest().tokenizer_fingerprint.as_str();
        let ours = self.options().tokenizer.as_str();
        let is_known = !theirs.is_empty() && !ours.is_empty();
        let tokenizer = if is_known { theirs } else { ours };
        let (path, vocab_size) = (datastore.path(), datastore.vocab_size());
        self.options().check_tokenizer(path, vocab_size, tokenizer)?;
        let mut num_removed = 0;
        for tenant in self.tenants() {
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

/// A thread that merges a memory with a file at intervals, so that several processes share it. If the
/// datastore beside the memory was replaced, it opens the new one and removes the texts that this has.
/// Dropping it merges once more and ends the thread, where that takes no longer than some seconds: a process
/// that is frozen while it writes keeps no other from ending.
#[derive(Debug)]
pub struct Sharing {
    stop: Option<Sender<()>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    replaced: Option<Arc<Datastore>>,
    failure: Option<String>,
    num_failures: u64,
    /// In seconds since 1970.
    shared_at: f64,
}

impl Sharing {
    const MAX_END: Duration = Duration::from_secs(5);

    /// Starts the thread. If the first exchange fails, nothing is shared and the file at `path` stays.
    /// Before each later exchange, `gather` adds finished texts to the memory.
    pub fn start(
        memory: Arc<Memory>,
        path: PathBuf,
        interval: Duration,
        datastore: Option<Arc<Datastore>>,
        mut gather: impl FnMut() + Send + 'static,
    ) -> Result<Self> {
        memory.merge_into(&path, None)?;
        let state = Arc::<Mutex<State>>::default();
        held(&state).note(None);
        let ((stop, stopped), (ends, ended)) = (mpsc::channel(), mpsc::channel());
        let (shared, mut datastore) = (Arc::clone(&state), datastore);
        let run = move || {
            let _ends = ends;
            let mut goes_on = true;
            while goes_on {
                goes_on = stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout);
                gather();
                let failure = exchange(&memory, &path, &mut datastore, &shared).err();
                held(&shared).note(failure.map(|error| error.to_string()));
            }
        };
        let thread = thread::Builder::new().name("specds-memory".to_owned());
        thread.spawn(run).map_err(|error| {
            Error::invalid("interval", format!("cannot be data: no thread: {error}"))
        })?;
        let stop = Some(stop);
        Ok(Self { stop, ended, state })
    }

    /// The datastore that has replaced the one before; each is given once.
    pub fn take_replaced(&self) -> Option<Arc<Datastore>> {
        held(&self.state).replaced.take()
    }

    /// Why the last time failed; it goes on trying.
    pub fn failure(&self) -> Option<String> {
        held(&self.state).failure.clone()
    }

    /// How many times failed.
    pub fn num_failures(&self) -> u64 {
        held(&self.state).num_failures
    }

    /// When it last went well, in seconds since 1970.
    pub fn shared_at(&self) -> f64 {
        held(&self.state).shared_at
    }

    /// Merges once more and ends, as dropping it does; [`failure`](Self::failure) tells where it could not.
    pub fn end(&mut self) {
        if self.stop.take().is_some()
            && self.ended.recv_timeout(Self::MAX_END) == Err(RecvTimeoutError::Timeout)
        {
            let seconds = Self::MAX_END.as_secs();
            let reason = format!("another process has been writing the file for {seconds} s");
            held(&self.state).note(Some(reason));
        }
    }
}

impl State {
    fn note(&mut self, failure: Option<String>) {
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

fn exchange(
    memory: &Memory,
    path: &PathBuf,
    datastore: &mut Option<Arc<Datastore>>,
    state: &Mutex<State>,
) -> Result<()> {
    let now = datastore.as_deref().map(Datastore::newer).transpose()?;
    if let Some(now) = now.flatten().map(Arc::new) {
        memory.remove_known(&now)?;
        held(state).replaced = Some(Arc::clone(&now));
        *datastore = Some(now);
    }
    memory.merge_into(path, None)
}

/// Whether a datastore has every part of a text that lies between separators, which are in no match.
fn has_all(datastore: &Datastore, tokens: &[u32]) -> bool {
    let parts = tokens.split(|&token| token == datastore.separator());
    let mut parts = parts.filter(|part| !part.is_empty());
    parts.all(|part| datastore.find(part).is_ok_and(|found| found.count() > 0))
}

fn held(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

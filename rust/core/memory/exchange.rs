//! Exchanges of a memory with a store, so that processes on any machines share it.
//!
//! An exchange reads the head of the store and the segments that the memory lacks, writes a segment with what the
//! store lacks, and replaces the head by one that has it. If another process was faster, it starts again. So the
//! heads are a sequence, and a deletion that is in one holds for all later ones: the exchange that adds a tombstone
//! replaces the segments that have the tenant.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use crate::memory::encrypted::{sealed, unsealed};
use crate::memory::folder::Folder;
use crate::memory::head::{Contents, Head, Segment, Synced, is_segment_name, random};
use crate::memory::object_store::{
    FoundHead, ObjectStore, as_url, of_tenants, open_url, without_credentials,
};
use crate::memory::snapshot::{SnapshotContents, fill};
use crate::memory::store::{Memory, MemoryOptions};
use crate::memory::tombstones::{Only, Tombstones};
use specds_index::base::forks::NoFork;
use specds_index::{Datastore, Error, Result};

/// Segments beyond this number are joined, the newest and smallest ones.
const MAX_SEGMENTS: usize = 8;
/// A store has at most this part of a memory's size limit: a token takes about six times more in a memory.
const STORE_SHARE: u64 = 3;
const MAX_ATTEMPTS: u32 = 256;
/// Texts whose age is nearer to the limit than by this part leave a store with those that are too old.
const AGE_MARGIN: f64 = 0.125;
/// The most doublings of the longest wait between two attempts.
const MAX_DOUBLINGS: u32 = 8;

/// Returns the datastore whose texts leave the store, if there is one; called before each attempt.
type Prepare<'a> = dyn FnMut(&Memory) -> Result<Option<Arc<Datastore>>> + 'a;

impl Memory {
    /// Exchanges texts, adapted weights and deletions with the store at `path`: a folder, which is made if there is
    /// none, or a URL. If its last part is `{tenant}`, each tenant has a store of its own, and the exchange is with
    /// those of this memory's tenants.
    ///
    /// Tenants that were deleted on one side are deleted on both. If both sides have adapted weights of a tenant,
    /// this memory keeps its own. Texts that the datastore `known` has are [removed](Self::remove_known) from both.
    /// Only what the other side lacks is read and written. The store does not change on an error, apart from objects
    /// that a later exchange removes.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the store is damaged, [`Error::OtherTokenizer`], [`Error::Locked`] if other processes
    /// change it all the time, or an I/O error.
    pub fn save(&self, path: impl AsRef<Path>, known: Option<&Arc<Datastore>>) -> Result<()> {
        let path = path.as_ref();
        let base = of_tenants(path);
        let (store, name) = at(base.as_deref().unwrap_or(path))?;
        match base {
            Some(_) => self.exchange_tenants(&*store, &name, known),
            None => self.exchange_only(&*store, &name, None, known),
        }
    }

    /// Reads a store. Texts beyond the size limit of `options` are evicted. O(tokens).
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the store is damaged, [`Error::OtherTokenizer`], or an I/O error.
    pub fn open(path: impl AsRef<Path>, options: MemoryOptions) -> Result<Self> {
        let memory = Self::new(options)?;
        let path = path.as_ref();
        let base = of_tenants(path);
        let (store, name) = at(base.as_deref().unwrap_or(path))?;
        match base {
            Some(_) => memory.read_tenants(&*store, &name)?,
            None => memory.read(&*store, &name, None)?,
        }
        Ok(memory)
    }

    pub(super) fn read(&self, store: &dyn ObjectStore, name: &Path, only: Only) -> Result<()> {
        let mut round = Round::begin(self, store, name, only);
        round.pull()?;
        if round.synced.head.is_none() {
            return Err(missing(name));
        }
        round.end();
        Ok(())
    }

    pub(super) fn exchange_only(
        &self,
        store: &dyn ObjectStore,
        name: &Path,
        only: Only,
        known: Option<&Arc<Datastore>>,
    ) -> Result<()> {
        let mut round = Round::begin(self, store, name, only);
        let exchanged = round.run(&mut |memory| {
            known.map_or(Ok(()), |known| memory.remove_known_of(only, known).map(drop))?;
            Ok(known.cloned())
        });
        round.end();
        exchanged
    }

    /// Exchanges with a store. `name` stands for it in errors, and in what the memory remembers of it.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn exchange(
        &self,
        store: &dyn ObjectStore,
        name: &Path,
        prepare: &mut Prepare<'_>,
    ) -> Result<()> {
        let mut round = Round::begin(self, store, name, None);
        let exchanged = round.run(prepare);
        round.end();
        exchanged
    }
}

/// Returns the store at a path, and its name in errors.
pub(super) fn at(path: &Path) -> Result<(Box<dyn ObjectStore>, PathBuf)> {
    let store = match as_url(path) {
        Some(url) => open_url(url)?,
        None => Box::new(Folder::at(path)?),
    };
    Ok((store, without_credentials(path)))
}

pub(super) fn missing(path: &Path) -> Error {
    Error::io(path)(io::Error::new(ErrorKind::NotFound, "no request cache"))
}

/// An exchange that is running.
pub(super) struct Round<'a> {
    memory: &'a Memory,
    store: &'a dyn ObjectStore,
    name: &'a Path,
    only: Only,
    pub(super) synced: Synced,
    /// True to write all segments again as one.
    pub(super) compacts: bool,
    /// Segments that this exchange wrote and no head may have.
    unused: Vec<String>,
}

/// A segment that is to be written, with its content.
struct NewSegment {
    segment: Segment,
    bytes: Vec<u8>,
    contents: Contents,
}

impl NewSegment {
    fn new(bytes: Vec<u8>, oldest: u32, contents: Contents, parts: Vec<String>) -> Self {
        Self { segment: Segment::new(&bytes, oldest, parts), bytes, contents }
    }
}

/// The names and contents of segments.
type Fetched = Vec<(String, Vec<u8>)>;

/// Segments that are replaced, by nothing if nothing of them is kept.
struct Replacement {
    parts: Vec<String>,
    draft: Option<NewSegment>,
}

impl<'a> Round<'a> {
    pub(super) fn begin(
        memory: &'a Memory,
        store: &'a dyn ObjectStore,
        name: &'a Path,
        only: Only,
    ) -> Self {
        let mut kept = memory.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let synced = kept.remove(name).unwrap_or_default();
        Self { memory, store, name, only, synced, compacts: false, unused: Vec::new() }
    }

    pub(super) fn run(&mut self, prepare: &mut Prepare<'_>) -> Result<()> {
        for attempt in 0..MAX_ATTEMPTS {
            self.pull()?;
            if let Some(time) = self.memory.options().oldest_time(1.0) {
                self.memory.remove_before(self.only, time);
            }
            let known = prepare(self.memory)?;
            if self.push(known.as_deref())? {
                return self.remove_unused();
            }
            let most = self.store.latency() * (1 << attempt.min(MAX_DOUBLINGS));
            self.store.wait(most.mul_f64(random() as f64 / u64::MAX as f64));
        }
        Err(Error::Locked(self.name.to_owned()))
    }

    /// Removes what this exchange wrote in vain.
    fn remove_unused(&mut self) -> Result<()> {
        let segments = self.synced.head.as_ref().map_or(&[][..], |head| &head.segments);
        self.unused.retain(|name| !segments.iter().any(|segment| segment.name == *name));
        self.unused.drain(..).try_for_each(|name| self.store.delete(&name))
    }

    /// Keeps what is known of the store for the next exchange.
    pub(super) fn end(self) {
        let mut kept = self.memory.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if self.only.is_none() {
            kept.clear();
        }
        kept.insert(self.name.to_owned(), self.synced);
    }

    fn invalid(&self, reason: impl Into<String>) -> Error {
        Error::Snapshot { path: self.name.to_owned(), reason: reason.into() }
    }

    /// Adds to the memory what the store has.
    pub(super) fn pull(&mut self) -> Result<()> {
        let mut lacking = None;
        loop {
            let (text, version) = match self.store.head(self.synced.version.as_deref())? {
                FoundHead::Unchanged => return Ok(()),
                FoundHead::Missing => {
                    self.synced = Synced::default();
                    return Ok(());
                }
                FoundHead::Changed(text, version) => (text, version),
            };
            let head = Head::read(&text).map_err(|reason| self.invalid(reason))?;
            let options = self.memory.options();
            options.check_tokenizer(self.name, head.vocab_size, &head.tokenizer)?;
            match self.fetch(&head)? {
                Ok(fetched) if self.must_read_again(&head, &fetched)? => {
                    self.synced.contents.clear();
                }
                Ok(fetched) => {
                    let joined = self.join(head, version, &fetched);
                    // Half of it may be in the memory.
                    return joined.inspect_err(|_| self.synced = Synced::default());
                }
                // A newer head has replaced it.
                Err(_) if lacking.as_ref() != Some(&version) => lacking = Some(version),
                Err(name) => return Err(self.lacks(&name)),
            }
        }
    }

    /// Returns the segments that the memory lacks, or the name of one that the store lacks.
    fn fetch(&self, head: &Head) -> Result<std::result::Result<Fetched, String>> {
        let known = |name: &String| self.synced.contents.contains_key(name);
        let tombstones = self.synced.head.as_ref().map(|head| &head.tombstones);
        let mut fetched = Vec::new();
        for Segment { name, parts, .. } in &head.segments {
            let is_covered = known(name) || !parts.is_empty() && parts.iter().all(known);
            let has_tombstones = *name == head.tombstones && Some(name) != tombstones;
            if !is_covered || has_tombstones {
                match self.read(head, name)? {
                    Some(content) => fetched.push((name.clone(), content)),
                    None => return Ok(Err(name.clone())),
                }
            }
        }
        Ok(Ok(fetched))
    }

    /// Returns whether the memory is about to lose what it has of segments that it knows, because it lacks tombstones
    /// that have been pruned.
    fn must_read_again(&self, head: &Head, fetched: &[(String, Vec<u8>)]) -> Result<bool> {
        let with_tombstones = fetched.iter().find(|(name, _)| *name == head.tombstones);
        let Some((_, content)) = with_tombstones.filter(|_| !self.synced.contents.is_empty())
        else {
            return Ok(false);
        };
        let found = SnapshotContents::read(content).map_err(|reason| self.invalid(reason))?;
        let misses = |it: &mut Tombstones, _| it.misses_pruned(&found.tombstones);
        Ok(self.memory.change_tombstones(self.only, misses))
    }

    /// Reads a segment of a head; `None` if the store lacks it.
    fn read(&self, head: &Head, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(content) = self.store.get(name)? else { return Ok(None) };
        let content = unsealed(self.name, name, content)?;
        let is_of = |segment: &Segment| segment.name == name && segment.is_of(&content);
        if !head.segments.iter().any(is_of) {
            return Err(
                self.invalid(format!("its segment {name} has changed since it was written"))
            );
        }
        Ok(Some(content))
    }

    fn join(&mut self, head: Head, version: String, fetched: &[(String, Vec<u8>)]) -> Result<()> {
        let _held = NoFork::begin();
        let before = std::mem::take(&mut self.synced.tombstones);
        let mut tombstones = before.published();
        for (name, content) in fetched {
            let found = SnapshotContents::read(content).map_err(|reason| self.invalid(reason))?;
            found.check(self.memory, self.name)?;
            if *name == head.tombstones {
                tombstones = found.tombstones;
            }
        }
        self.memory.apply_tombstones(self.only, &tombstones);
        let snapshots: Vec<_> = fetched.iter().map(|(_, content)| &content[..]).collect();
        let filled = fill(self.memory, self.only, &snapshots, &tombstones);
        let filled = filled.map_err(|reason| self.invalid(reason))?;
        for tenant in self.memory.tenants_of(self.only) {
            self.memory.change(&tenant, |data| data.texts.retain_uses());
        }
        let mut contents = std::mem::take(&mut self.synced.contents);
        for ((name, _), found) in fetched.iter().zip(filled) {
            self.note_updates(&found);
            contents.insert(name.clone(), found);
        }
        for segment in &head.segments {
            if !contents.contains_key(&segment.name) {
                let parts = segment.parts.iter().filter_map(|part| contents.get(part));
                let is_kept = |tenant| !before.misses_any(tenant, &tombstones);
                contents.insert(segment.name.clone(), Contents::union(parts, is_kept));
            }
        }
        contents.retain(|name, _| head.segments.iter().any(|segment| segment.name == *name));
        self.synced.contents = contents;
        self.synced.tombstones = tombstones;
        self.synced.head = Some(head);
        self.synced.version = Some(version);
        Ok(())
    }

    fn note_updates(&mut self, contents: &Contents) {
        for (name, &number) in &contents.num_updates {
            self.synced.num_updates.insert(name.clone(), number);
        }
    }

    /// Writes what the store lacks. Returns false if another process was faster.
    fn push(&mut self, known: Option<&Datastore>) -> Result<bool> {
        let ours = self.number_tombstones()?;
        let is_behind = self.synced.head.is_none() || self.synced.tombstones.lacks(&ours);
        let Some(replacements) = self.replacements(&ours, is_behind, known)? else {
            return Ok(false);
        };
        let old = self.synced.head.iter().flat_map(|head| &head.segments);
        let mut segments: Vec<Segment> = Vec::new();
        let mut kept: Vec<&Contents> = Vec::new();
        for segment in old {
            let is_in = |it: &&Replacement| it.parts.contains(&segment.name);
            let Some(replacement) = replacements.iter().find(is_in) else {
                segments.push(segment.clone());
                kept.extend(self.synced.contents.get(&segment.name));
                continue;
            };
            // What replaces several segments is where the first of them was.
            let is_first = replacement.parts.first() == Some(&segment.name);
            for draft in replacement.draft.iter().filter(|_| is_first) {
                segments.push(draft.segment.clone());
                kept.push(&draft.contents);
            }
        }
        let new = self.new_texts(is_behind.then_some(&ours), &kept);
        let is_empty = |new: &NewSegment| new.contents.is_empty() && ours.versions().is_empty();
        if self.only.is_some() && self.synced.head.is_none() && new.as_ref().is_some_and(is_empty) {
            return Ok(true);
        }
        let cleans = is_behind || !replacements.is_empty() || self.synced.is_unclean;
        if new.is_none() && !cleans {
            return Ok(true);
        }
        segments.extend(new.iter().map(|new| new.segment.clone()));
        let tombstones = match (&new, &self.synced.head) {
            (Some(new), _) if is_behind => new.segment.name.clone(),
            (_, Some(head)) => {
                let is_in = |it: &&Replacement| it.parts.contains(&head.tombstones);
                let draft = replacements.iter().find(is_in).and_then(|it| it.draft.as_ref());
                draft.map_or(&head.tombstones, |draft| &draft.segment.name).clone()
            }
            (_, None) => return Ok(true),
        };
        let options = self.memory.options();
        let head = Head::new(options.vocab_size, &options.tokenizer, tombstones, segments);
        let drafts = replacements.into_iter().filter_map(|it| it.draft);
        self.commit(head, ours, drafts.collect(), new, cleans)
    }

    /// Gives numbers to new tombstones, and returns all.
    fn number_tombstones(&self) -> Result<Tombstones> {
        let _held = NoFork::begin();
        let _writing = self.memory.begin_writing();
        if !self.memory.change_tombstones(self.only, Tombstones::publish_new) {
            let reason = "no numbers are left for tombstones: begin with an empty memory";
            return Err(Error::io(self.name)(io::Error::other(reason)));
        }
        Ok(self.memory.change_tombstones(self.only, |it, _| it.published()))
    }

    /// Returns a segment with what the memory has and these contents lack, and with tombstones that are new.
    fn new_texts(&self, tombstones: Option<&Tombstones>, kept: &[&Contents]) -> Option<NewSegment> {
        let _held = NoFork::begin();
        let _writing = self.memory.begin_writing();
        let num_updates = &self.synced.num_updates;
        let (bytes, contents) = self.memory.encode(
            self.only,
            tombstones.unwrap_or(&Tombstones::new()),
            self.synced.head.is_none(),
            |tenant, hash| !kept.iter().any(|contents| contents.has(tenant, hash)),
            // They are large, so they are written again when they rest on twice as many tokens.
            |tenant, number| match num_updates.get(tenant) {
                Some(&known) => number >= known.saturating_mul(2) || number < known,
                None => true,
            },
        );
        let has_news = tombstones.is_some() || !contents.is_empty();
        has_news.then(|| NewSegment::new(bytes, contents.oldest, contents, Vec::new()))
    }

    /// Returns what replaces segments that have deleted tenants or texts of a datastore, or that are too many or too
    /// large; `None` if the store lacks one of them because another process was faster.
    fn replacements(
        &self,
        ours: &Tombstones,
        is_behind: bool,
        known: Option<&Datastore>,
    ) -> Result<Option<Vec<Replacement>>> {
        let Some(head) = &self.synced.head else { return Ok(Some(Vec::new())) };
        let contents = |segment: &Segment| self.synced.contents.get(&segment.name);
        let is_kept = |tenant| !self.synced.tombstones.misses_any(tenant, ours);
        let has_deleted =
            |segment: &Segment| contents(segment).is_none_or(|it| !it.tenants().all(is_kept));
        let is_empty = |segment: &Segment| contents(segment).is_some_and(Contents::is_empty);
        let too_old = self.memory.options().oldest_time(1.0).unwrap_or(0);
        let is_affected = |segment: &&Segment| {
            known.is_some()
                || segment.oldest < too_old
                || is_behind && (has_deleted(segment) || is_empty(segment))
        };
        let (num_joined, max_bytes) = self.num_joined(&head.segments);
        let (left, joined) = head.segments.split_at(head.segments.len() - num_joined);
        let affected = left.iter().filter(is_affected).map(std::slice::from_ref);
        let mut replacements = Vec::new();
        for group in affected.chain((!joined.is_empty()).then_some(joined)) {
            let parts: Vec<_> = group.iter().map(|segment| segment.name.clone()).collect();
            let mut snapshots = Vec::new();
            for name in &parts {
                match self.read(head, name)? {
                    Some(content) => snapshots.push(content),
                    None if matches!(
                        self.store.head(self.synced.version.as_deref())?,
                        FoundHead::Unchanged
                    ) =>
                    {
                        return Err(self.lacks(name));
                    }
                    None => return Ok(None),
                }
            }
            let _held = NoFork::begin();
            let snapshots: Vec<_> = snapshots.iter().map(Vec::as_slice).collect();
            let options = MemoryOptions { max_bytes, ..self.memory.options().clone() };
            let memory = Memory::new(options)?;
            memory.change_tombstones(None, |tombstones, _| *tombstones = ours.published());
            let filled = fill(&memory, None, &snapshots, &self.synced.tombstones);
            let filled = filled.map_err(|reason| self.invalid(reason))?;
            let mut num_removed = known.map_or(Ok(0), |known| memory.remove_known(known))?;
            // A little more than what is too old: the segment is not rewritten at each exchange.
            if let Some(time) = memory.options().oldest_time(1.0 - AGE_MARGIN) {
                num_removed += memory.remove_before(None, time);
            }
            let is_same =
                |segment: &Segment| num_removed == 0 && !(is_behind && has_deleted(segment));
            if let [segment] = group
                && !self.compacts
                && is_same(segment)
                && !is_empty(segment)
            {
                continue;
            }
            let has_tombstones = !is_behind && parts.contains(&head.tombstones);
            let none = Tombstones::new();
            let kept = if has_tombstones { ours } else { &none };
            let (bytes, encoded) = memory.encode(None, kept, true, |_, _| true, |_, _| true);
            let (has_any, oldest) = (has_tombstones || !encoded.is_empty(), encoded.oldest);
            // A text that was dropped for its size counts as stored, so that no process writes it again. A text that
            // the datastore has does not count: processes that have not read the datastore still write it.
            let (covered, contents) = match known {
                Some(_) => (Vec::new(), encoded),
                None => (parts.clone(), Contents::union(&filled, is_kept)),
            };
            let draft = has_any.then(|| NewSegment::new(bytes, oldest, contents, covered));
            replacements.push(Replacement { parts, draft });
        }
        Ok(Some(replacements))
    }

    /// Returns how many segments, the last ones, are joined, and the size limit of their texts in a memory.
    fn num_joined(&self, segments: &[Segment]) -> (usize, usize) {
        let max_bytes = self.memory.max_bytes();
        let sizes: Vec<u64> = segments.iter().map(|segment| segment.num_bytes).collect();
        let num_bytes: u64 = sizes.iter().sum();
        if self.compacts {
            return (sizes.len(), MemoryOptions::MAX_BYTES);
        }
        // At least a fourth is new, so each byte is joined a few times.
        let is_old = |first: u64| first > num_bytes / 4 * 3;
        let is_large = num_bytes > max_bytes as u64 / STORE_SHARE;
        if is_large && sizes.len() > 1 && sizes.first().is_none_or(|&first| !is_old(first)) {
            return (sizes.len(), max_bytes);
        }
        if sizes.len() < MAX_SEGMENTS {
            return (0, MemoryOptions::MAX_BYTES);
        }
        let (mut num_joined, mut num_bytes) = (0, 0);
        for size in sizes.iter().rev() {
            if num_joined >= 2 && *size > 2 * num_bytes {
                break;
            }
            num_joined += 1;
            num_bytes += size;
        }
        (num_joined, MemoryOptions::MAX_BYTES)
    }

    /// Writes the segments and the head that lists them. Returns false if another process was faster.
    fn commit(
        &mut self,
        head: Head,
        tombstones: Tombstones,
        rewritten: Vec<NewSegment>,
        new: Option<NewSegment>,
        cleans: bool,
    ) -> Result<bool> {
        // What was there before and is in no head afterwards can be in none of another process: the head that it
        // read has been replaced.
        let mut before = if cleans { self.store.list()? } else { Vec::new() };
        self.synced.is_unclean |= cleans;
        let mut unused = std::mem::take(&mut self.unused);
        for draft in rewritten.iter().chain(&new) {
            let name = &draft.segment.name;
            self.unused.push(name.clone());
            self.store.put(name, &sealed(name, &draft.bytes)?)?;
        }
        let version = self.synced.version.as_deref();
        let Some(version) = self.store.replace_head(&head.text(), version)? else {
            self.unused.append(&mut unused);
            return Ok(false);
        };
        let held = NoFork::begin();
        if let Some(draft) = &new {
            self.note_updates(&draft.contents);
            self.mark_saved(&draft.contents);
        }
        for draft in rewritten.into_iter().chain(new) {
            self.synced.contents.insert(draft.segment.name, draft.contents);
        }
        let is_kept = |name: &String| head.segments.iter().any(|segment| segment.name == *name);
        self.synced.contents.retain(|name, _| is_kept(name));
        drop(held);
        before.append(&mut unused);
        self.unused.clear();
        // Below may be objects of other stores.
        before.retain(|name| is_segment_name(name) && !is_kept(name));
        self.synced.tombstones = tombstones;
        self.synced.head = Some(head);
        self.synced.version = Some(version);
        before.iter().try_for_each(|name| self.store.delete(name))?;
        self.synced.is_unclean = false;
        Ok(true)
    }

    /// Notes that the store has these texts.
    fn mark_saved(&self, contents: &Contents) {
        let _writing = self.memory.begin_writing();
        for tenant in self.memory.tenants_of(self.only) {
            let mut hashes = contents.of_tenant(tenant.name_hash).peekable();
            if hashes.peek().is_some() {
                let mut data = tenant.write();
                data.is_saved = true;
                data.texts.mark_uses_saved();
                hashes.for_each(|hash| data.texts.mark_saved(hash));
            }
        }
    }

    fn lacks(&self, name: &str) -> Error {
        self.invalid(format!("its segment {name} is missing"))
    }
}

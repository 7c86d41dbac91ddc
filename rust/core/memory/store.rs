//! The request cache: texts of earlier requests and the weights adapted to them, per tenant.
//!
//! A [`Memory`] separates tenants and has a size limit. When it is full, tenants with more than three quarters of an
//! equal share lose the least useful third of their texts, the least recently used tenant first: those of which
//! drafts were accepted least, the oldest if none was.
//!
//! One thread writes at a time. It locks a tenant only to add one text or to swap a pointer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hint::black_box;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::memory::groups::GroupKey;
use crate::memory::head::{Synced, seconds_now};
use crate::memory::indexed_tokens::IndexedTokens;
use crate::memory::tenant::{Tenant, TenantData};
use crate::memory::texts::{TextLog, hash};
use crate::memory::tombstones::{Lineages, NameHash, Only, Tombstones};
use crate::portable_math::saturating_u32;
use crate::weights::adaptation::TenantAdaptation;
use specds_index::base::checks::{check_tokens, check_within};
use specds_index::{Error, MAX_VOCAB_SIZE, Result};

/// The size limit, vocabulary and tokenizer of a [`Memory`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Token ids are below this number, which is at most [`MAX_VOCAB_SIZE`].
    pub vocab_size: u32,
    /// Size limit of all texts, their indexes and the adapted weights, at least
    /// [`MIN_BYTES`](Self::MIN_BYTES). A token takes about 14 bytes.
    pub max_bytes: usize,
    /// Name or fingerprint of the tokenizer. A snapshot of another tokenizer is rejected.
    pub tokenizer: String,
    /// Size limit of one tenant's texts, indexes and adapted weights, at least [`MIN_BYTES`](Self::MIN_BYTES).
    pub max_tenant_bytes: usize,
    /// Texts are removed when they are older, by the clocks of their processes.
    pub max_age: Option<Duration>,
}

impl MemoryOptions {
    pub const MIN_BYTES: usize = 1 << 14;

    /// The indexed tokens of one tenant may take the whole memory.
    pub(crate) const MAX_BYTES: usize = IndexedTokens::MAX_LENGTH.saturating_mul(12);

    /// Returns options with a limit of 256 MiB and no tokenizer.
    pub fn new(vocab_size: u32) -> Self {
        Self {
            vocab_size,
            max_bytes: 1 << 28,
            tokenizer: String::new(),
            max_tenant_bytes: Self::MAX_BYTES,
            max_age: None,
        }
    }

    fn check(&self) -> Result<()> {
        check_within("vocab_size", self.vocab_size, 1..=MAX_VOCAB_SIZE)?;
        let range = Self::MIN_BYTES..=Self::MAX_BYTES;
        check_within("max_bytes", self.max_bytes, range.clone())?;
        check_within("max_tenant_bytes", self.max_tenant_bytes, range)
    }

    /// Returns the time before which texts are too old, if the limit is this part of the greatest age.
    pub(crate) fn oldest_time(&self, part: f64) -> Option<u32> {
        let now = saturating_u32(usize::try_from(seconds_now()).unwrap_or(usize::MAX));
        let most = self.max_age?.mul_f64(part).as_secs();
        Some(now.saturating_sub(u32::try_from(most).unwrap_or(u32::MAX)))
    }

    pub(crate) fn check_tokenizer(
        &self,
        path: &Path,
        vocab_size: u32,
        tokenizer: &str,
    ) -> Result<()> {
        let reason = if vocab_size != self.vocab_size {
            let expected = self.vocab_size;
            format!("its vocabulary has {vocab_size} tokens, not {expected}")
        } else if tokenizer != self.tokenizer {
            format!("`{tokenizer}`, not `{}`", self.tokenizer)
        } else {
            return Ok(());
        };
        let path = path.to_owned();
        Err(Error::OtherTokenizer { path, reason })
    }
}

/// A request cache of many tenants. Drafts for a tenant never depend on the texts of another.
///
/// ```
/// use specds_core::memory::{Memory, MemoryOptions};
///
/// # fn main() -> specds_core::Result<()> {
/// let memory = Memory::new(MemoryOptions::new(100))?;
/// memory.insert("ann", &[1, 2, 3])?;
/// let ann = memory.find("ann").expect("she has a text");
/// assert_eq!(ann.read().texts().of_pair(2, 3).collect::<Vec<_>>(), [2]);
/// assert!(memory.find("bob").is_none());
/// # Ok(())
/// # }
/// ```
pub struct Memory {
    options: MemoryOptions,
    tenants: RwLock<BTreeMap<Box<str>, Arc<Tenant>>>,
    /// Held while texts are added or removed, and during long reads.
    writing: Mutex<()>,
    num_bytes: AtomicUsize,
    num_tokens: AtomicUsize,
    /// One more than the last use of any tenant.
    pub(crate) clock: AtomicU64,
    /// The state of the stores of the last exchange, by their names, unless one is running.
    pub(crate) synced: Mutex<BTreeMap<PathBuf, Synced>>,
    tombstones: Mutex<Lineages>,
}

/// Upper bound, including tables that have just grown and gaps of the heap.
const MAX_BYTES_PER_TOKEN: usize = 37;

/// Published tombstones may take `1 / TOMBSTONE_SHARE` of the memory, and new ones as much again.
const TOMBSTONE_SHARE: usize = 16;

impl Memory {
    /// Maximum length of a tenant's name, in bytes.
    pub const MAX_NAME: usize = 1024;

    /// Creates an empty memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an option is out of its range.
    pub fn new(options: MemoryOptions) -> Result<Self> {
        options.check()?;
        Ok(Self {
            options,
            tenants: RwLock::default(),
            writing: Mutex::default(),
            num_bytes: AtomicUsize::default(),
            num_tokens: AtomicUsize::default(),
            clock: AtomicU64::default(),
            synced: Mutex::default(),
            tombstones: Mutex::default(),
        })
    }

    /// Returns the tenant of this name, and creates it if there is none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is longer than [`MAX_NAME`](Self::MAX_NAME).
    pub fn tenant(&self, name: &str) -> Result<Arc<Tenant>> {
        if name.len() > Self::MAX_NAME {
            let (most, length) = (Self::MAX_NAME, name.len());
            let reason = format!("must have at most {most} bytes, not {length}");
            return Err(Error::invalid("tenant", reason));
        }
        if let Some(known) = self.find(name) {
            return Ok(known);
        }
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        let tenant = tenants.entry(name.into()).or_insert_with(|| {
            let tenant = Tenant::new(name);
            self.num_bytes.fetch_add(tenant.fixed_bytes(), Ordering::Relaxed);
            Arc::new(tenant)
        });
        let tenant = Arc::clone(tenant);
        drop(tenants);
        if self.num_bytes() > self.max_bytes() {
            let _writing = self.begin_writing();
            self.make_room(&tenant, 0);
        }
        Ok(tenant)
    }

    /// Returns the tenant of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<Tenant>> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.get(name).cloned()
    }

    /// Adds a complete text, unless the tenant has it. If it does not fit, its end is stored. An error changes
    /// nothing. Amortized O(tokens).
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`], [`Error::TextOutOfMemory`], or that of [`tenant`](Self::tenant).
    pub fn insert(&self, tenant: &str, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, self.options.vocab_size)?;
        if !tokens.is_empty() {
            let num_bytes = MAX_BYTES_PER_TOKEN * tokens.len();
            if !has_block(num_bytes) {
                return Err(Error::TextOutOfMemory(num_bytes as u64));
            }
            self.add(&*self.tenant(tenant)?, tokens, GroupKey::default());
        }
        Ok(())
    }

    /// Adds a text, unless the tenant has been deleted.
    pub(crate) fn add(&self, tenant: &Tenant, tokens: &[u32], group: GroupKey) {
        let _writing = self.begin_writing();
        self.note_use(tenant);
        let now = saturating_u32(usize::try_from(seconds_now()).unwrap_or(usize::MAX));
        self.append(tenant, tokens, group, now, false);
    }

    /// Adds a text, from a snapshot if it is saved.
    pub(crate) fn append(
        &self,
        tenant: &Tenant,
        tokens: &[u32],
        group: GroupKey,
        time: u32,
        is_saved: bool,
    ) {
        let most = |room: usize| room.saturating_sub(TextLog::FIXED_BYTES) / MAX_BYTES_PER_TOKEN;
        let end = |most: usize| &tokens[tokens.len().saturating_sub(most)..];
        let max_bytes = self.max_bytes().min(self.options.max_tenant_bytes);
        let tokens = end(most(max_bytes.saturating_sub(tenant.fixed_bytes())));
        let data = tenant.read();
        let is_known = data.texts.of_hash(hash(tokens)) == Some(tokens);
        if data.is_deleted || is_known {
            drop(data);
            if is_known && is_saved {
                tenant.write().texts.mark_saved(hash(tokens));
            }
            return;
        }
        drop(data);
        let num_bytes = TextLog::FIXED_BYTES + MAX_BYTES_PER_TOKEN * tokens.len();
        while tenant.num_bytes() + num_bytes > max_bytes && !tenant.read().is_empty() {
            self.cut(tenant);
        }
        let tokens = end(most(self.make_room(tenant, num_bytes)).min(tokens.len()));
        if tokens.is_empty() || !has_block(MAX_BYTES_PER_TOKEN * tokens.len()) {
            return;
        }
        self.change(tenant, |data| data.texts.append(tokens, group, time, is_saved));
        self.make_room(tenant, 0); // a table of earlier texts may have grown
    }

    /// Notes which texts accepted draft tokens, `runs` of a request's tokens, came from.
    pub(crate) fn note_accepted(&self, tenant: &Tenant, tokens: &[u32], runs: &[Range<usize>]) {
        let origins = runs.iter().flat_map(|run| tenant.read().texts.origins(tokens, run.clone()));
        let origins: Vec<_> = origins.collect();
        if origins.is_empty() {
            return;
        }
        let _writing = self.begin_writing();
        self.change(tenant, |data| {
            for (hash, number) in origins {
                // It may have been evicted meanwhile.
                if data.texts.of_hash(hash).is_some() {
                    data.texts.add_uses(hash, number, false);
                }
            }
        });
        self.make_room(tenant, 0);
    }

    /// Updates the adapted weights; `None` if the tenant was deleted or the memory is too small.
    pub(crate) fn learn<R>(
        &self,
        tenant: &Tenant,
        learn: impl FnOnce(&mut TenantAdaptation) -> R,
    ) -> Option<R> {
        self.note_use(tenant);
        let mut data = tenant.write();
        if data.adaptation.is_none() && !data.is_deleted {
            drop(data);
            self.begin_learning(tenant, TenantAdaptation::default());
            data = tenant.write();
        }
        data.adaptation.as_mut().map(learn)
    }

    pub(crate) fn begin_learning(&self, tenant: &Tenant, adaptation: TenantAdaptation) {
        let _writing = self.begin_writing();
        if 4 * TenantAdaptation::NUM_BYTES <= self.max_bytes() {
            self.make_room(tenant, TenantAdaptation::NUM_BYTES);
            self.change(tenant, |data| {
                if !data.is_deleted {
                    data.adaptation.get_or_insert(adaptation);
                }
            });
        }
    }

    /// Returns all tenants to the initial weights; their texts stay.
    pub(crate) fn reset_weights(&self) {
        let _writing = self.begin_writing();
        for tenant in self.tenants() {
            tenant.reset_weights();
        }
    }

    /// Deletes a tenant. Processes that share the memory's file delete it the next time they read or write the
    /// file. Open requests of the tenant store nothing any more, and a later request of the same name belongs to a
    /// new tenant.
    pub fn forget(&self, tenant: &str) {
        let _writing = self.begin_writing();
        let is_saved = self.find(tenant).is_some_and(|tenant| tenant.read().is_saved);
        let only = self.lineages().only(NameHash::of(tenant));
        self.change_tombstones(only, |tombstones, most| tombstones.add(tenant, is_saved, most));
        self.remove(tenant);
    }

    /// Returns when a tenant may have been deleted last, in seconds since 1970, as far as this process knows: 0 if it
    /// never was, infinity since a [`forget`](Self::forget) that is in no file yet.
    pub fn deleted_at(&self, tenant: &str) -> f64 {
        let lineages = self.lineages();
        let (only, clears) = (lineages.only(NameHash::of(tenant)), lineages.clears);
        drop(lineages);
        match self.change_tombstones(only, |tombstones, _| tombstones.last_deletion(tenant)) {
            number if clears || number == u64::MAX => f64::INFINITY,
            micros => Duration::from_micros(micros).as_secs_f64(),
        }
    }

    /// Deletes all tenants, including those that only other processes have.
    pub fn clear(&self) {
        let _writing = self.begin_writing();
        if !self.lineages().clear() {
            self.change_tombstones(None, |tombstones, _| tombstones.add_all_tenants());
        }
        for tenant in self.tenants() {
            self.remove(&tenant.name);
        }
    }

    /// Deletes the tenants that other processes have deleted. If their tombstones have been pruned, only what no
    /// snapshot had is kept.
    pub(crate) fn apply_tombstones(&self, only: Only, theirs: &Tombstones) {
        let _writing = self.begin_writing();
        let misses_pruned = self.change_tombstones(only, |it, _| it.misses_pruned(theirs));
        for tenant in self.tenants_of(only) {
            let misses = |it: &mut Tombstones, _| it.misses_deletion(tenant.name_hash, theirs);
            if self.change_tombstones(only, misses) {
                self.remove(&tenant.name);
            } else if misses_pruned && tenant.read().is_saved {
                self.rewrite(&tenant, TextLog::without_saved);
                self.change(&tenant, |data| data.adaptation = None);
            }
        }
        self.change_tombstones(only, |tombstones, most| tombstones.merge(theirs, most));
    }

    /// Removes the texts of a store's tenants from before a time, and returns their number.
    pub(crate) fn remove_before(&self, only: Only, time: u32) -> usize {
        let _writing = self.begin_writing();
        let mut num_removed = 0;
        for tenant in self.tenants_of(only) {
            if tenant.read().texts.oldest().is_some_and(|oldest| oldest < time) {
                let before = tenant.read().texts.hashes().len();
                self.rewrite(&tenant, |texts| texts.since_time(time));
                num_removed += before - tenant.read().texts.hashes().len();
            }
        }
        num_removed
    }

    fn remove(&self, tenant: &str) {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(tenant) = tenants.remove(tenant) {
            self.num_bytes.fetch_sub(tenant.fixed_bytes(), Ordering::Relaxed);
            self.change(&tenant, |data| {
                *data = TenantData { is_deleted: true, ..TenantData::default() };
            });
        }
    }

    pub(crate) fn lineages(&self) -> MutexGuard<'_, Lineages> {
        self.tombstones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the tombstones of a store, or reads them; `change` also receives how many may be stored.
    pub(crate) fn change_tombstones<R>(
        &self,
        only: Only,
        change: impl FnOnce(&mut Tombstones, usize) -> R,
    ) -> R {
        let most = self.max_tombstones();
        let (changed, num_bytes) = self.lineages().change(only, |it| change(it, most));
        self.num_bytes.fetch_add(num_bytes, Ordering::Relaxed);
        changed
    }

    fn max_tombstones(&self) -> usize {
        self.max_bytes() / TOMBSTONE_SHARE / Tombstones::BYTES_PER_TOMBSTONE
    }

    /// Drops what is known of the stores of tenants that the memory no longer has.
    pub(crate) fn retain_tombstones(&self, tenants: &BTreeSet<NameHash>) {
        let freed = self.lineages().retain(tenants, self.max_tombstones() / 8);
        self.num_bytes.fetch_sub(freed, Ordering::Relaxed);
    }

    pub fn options(&self) -> &MemoryOptions {
        &self.options
    }

    pub fn max_bytes(&self) -> usize {
        self.options.max_bytes
    }

    /// Size of all texts, their indexes, the adapted weights and the tombstones.
    pub fn num_bytes(&self) -> usize {
        self.num_bytes.load(Ordering::Relaxed)
    }

    pub fn num_tokens(&self) -> usize {
        self.num_tokens.load(Ordering::Relaxed)
    }

    /// Number of tenants that have data or open requests.
    pub fn num_tenants(&self) -> usize {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        tenants.len()
    }

    /// Locks out other writers and long reads: a writer that waited for a long read of a tenant would block all its
    /// readers.
    pub(crate) fn begin_writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants_of(None)
    }

    /// Returns the tenants of a store.
    pub(crate) fn tenants_of(&self, only: Only) -> Vec<Arc<Tenant>> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let is_of = |tenant: &&Arc<Tenant>| only.is_none_or(|only| tenant.name_hash == only);
        tenants.values().filter(is_of).cloned().collect()
    }

    /// Replaces the texts of a tenant; until it returns, readers find none.
    pub(crate) fn rewrite(&self, tenant: &Tenant, of: impl FnOnce(TextLog) -> TextLog) {
        let mut texts = TextLog::default();
        self.change(tenant, |data| texts = std::mem::take(&mut data.texts));
        let texts = of(texts);
        self.change(tenant, |data| data.texts = texts);
    }

    fn note_use(&self, tenant: &Tenant) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        tenant.last_use.fetch_max(now, Ordering::Relaxed);
    }

    /// Evicts texts until there is room for `num_bytes` of `tenant`, or no tenant has more than its share. Returns
    /// the free bytes.
    pub(crate) fn make_room(&self, tenant: &Tenant, num_bytes: usize) -> usize {
        while self.num_bytes() + num_bytes > self.max_bytes() && self.evict(tenant, num_bytes) {}
        self.max_bytes().saturating_sub(self.num_bytes())
    }

    /// Cuts tenants with more than their share, the least recently used first, until `needy` can take `num_bytes`
    /// and 1 / 32 of the limit is free. Returns whether it freed anything.
    fn evict(&self, needy: &Tenant, num_bytes: usize) -> bool {
        let mut tenants = self.tenants();
        let before = self.num_bytes();
        let most = self.max_bytes() - self.max_bytes() / 32;
        let share = self.max_bytes() / tenants.len().max(1) / 4 * 3;
        tenants.sort_by_cached_key(|tenant| Reverse(tenant.last_use()));
        while let Some(tenant) = tenants.pop()
            && self.num_bytes() + num_bytes > most
        {
            let is_needy = std::ptr::eq(Arc::as_ptr(&tenant), needy);
            let needs = if is_needy { num_bytes } else { 0 };
            if tenant.num_bytes() + needs > share {
                self.cut(&tenant);
            }
            self.remove_if_empty(&tenant);
        }
        self.num_bytes() < before
    }

    /// Removes the adapted weights or the least useful third of the texts, whichever of weights and texts is larger.
    fn cut(&self, tenant: &Tenant) {
        let is_adapted = |data: &TenantData| data.adaptation_bytes() > data.texts.num_bytes();
        if is_adapted(&tenant.read()) {
            self.change(tenant, |data| data.adaptation = None);
        } else {
            self.rewrite(tenant, TextLog::without_least_useful);
        }
    }

    /// Removes a tenant without data and open requests.
    fn remove_if_empty(&self, tenant: &Arc<Tenant>) {
        if tenant.read().is_empty() {
            let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
            if Arc::strong_count(tenant) == 2 {
                tenants.remove(&tenant.name);
                self.num_bytes.fetch_sub(tenant.fixed_bytes(), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn change(&self, tenant: &Tenant, change: impl FnOnce(&mut TenantData)) {
        let mut data = tenant.write();
        let (num_bytes, num_tokens) = (data.num_bytes(), data.texts.num_tokens());
        change(&mut data);
        // A difference below zero wraps around, and so does its sum.
        let num_bytes = data.num_bytes().wrapping_sub(num_bytes);
        let num_tokens = data.texts.num_tokens().wrapping_sub(num_tokens);
        self.num_bytes.fetch_add(num_bytes, Ordering::Relaxed);
        self.num_tokens.fetch_add(num_tokens, Ordering::Relaxed);
    }
}

/// True if the system has a block of memory of this size: an allocation that fails ends the process. Small ones are
/// not asked for. The block is not written, and freed at once; others may take it meanwhile.
fn has_block(num_bytes: usize) -> bool {
    const SMALL: usize = 1 << 20;
    let mut block = Vec::<u8>::new();
    // A compiler may leave out a block that nothing reads.
    num_bytes < SMALL || black_box(&mut block).try_reserve_exact(num_bytes).is_ok()
}

impl fmt::Debug for Memory {
    /// Writes sizes only, because the texts are private.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Memory")
            .field("options", &self.options)
            .field("num_tenants", &self.num_tenants())
            .field("num_tokens", &self.num_tokens())
            .field("num_bytes", &self.num_bytes())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tenant")
    }
}

//! What did earlier requests say?
//!
//! A [`Memory`] keeps texts, each as the property of one tenant, within a number of bytes. Where it
//! is full, the texts whose last use is longest ago go, whoever's they are.
//!
//! One thread writes at a time. It keeps readers of the same shard out while it appends a thousand
//! tokens, which takes long only where a table grows, or swaps a pointer.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use xxhash_rust::xxh3::xxh3_64;

use crate::base::checks::{check_tokens, check_within};
use crate::base::error::{Error, Result};
use crate::memory::history::History;
use crate::memory::tenant::{self, Texts};
use crate::storage::manifest::MAX_VOCAB_SIZE;

/// What a memory is for, and how much it may keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Tokens are below this; at most [`MAX_VOCAB_SIZE`].
    pub vocab_size: u32,
    /// The most bytes that all texts and what finds them take, from
    /// [`MIN_BYTES`](Self::MIN_BYTES) on: some 14 bytes a token of text. While a text is added or a
    /// snapshot is read, they may take a fourth more; and while texts are removed, those of one tenant
    /// are there twice.
    pub max_bytes: usize,
    /// Which tokenizer the tokens are of, in the caller's words: a snapshot of another one is not
    /// opened.
    pub tokenizer: String,
}

impl MemoryOptions {
    /// The least that a memory can be given.
    pub const MIN_BYTES: usize = 1 << 14;

    /// A tenant may have all of it.
    const MAX_BYTES: usize = History::MAX_LENGTH.saturating_mul(12);

    /// For a vocabulary, with 256 MiB.
    pub fn new(vocab_size: u32) -> Self {
        Self {
            vocab_size,
            max_bytes: 1 << 28,
            tokenizer: String::new(),
        }
    }

    fn check(&self) -> Result<()> {
        check_within("vocab_size", self.vocab_size, 1..=MAX_VOCAB_SIZE)?;
        let range = Self::MIN_BYTES..=Self::MAX_BYTES;
        check_within("max_bytes", self.max_bytes, range)
    }
}

/// Texts of many tenants, none of which sees another's; to be shared by threads.
///
/// ```
/// use specds::memory::{Memory, MemoryOptions};
///
/// # fn main() -> specds::Result<()> {
/// let memory = Memory::new(MemoryOptions::new(100))?;
/// memory.insert("ann", &[1, 2, 3])?;
/// let texts = memory.read("ann").expect("she has one");
/// assert_eq!(texts.of_pair(2, 3).collect::<Vec<_>>(), [2]);
/// assert!(memory.read("bob").is_none());
/// # Ok(())
/// # }
/// ```
pub struct Memory {
    options: MemoryOptions,
    /// By the hash of the tenant's name: those of one shard wait for each other's writes.
    shards: [RwLock<Vec<Tenant>>; NUM_SHARDS],
    /// Held by whoever changes anything, or reads for long.
    writing: Mutex<()>,
    num_bytes: AtomicUsize,
    num_tokens: AtomicUsize,
    num_tenants: AtomicUsize,
    /// One more than the last use of any text.
    clock: AtomicU64,
}

const NUM_SHARDS: usize = 64;

/// The tokens that are appended at a time: readers wait for no more.
const PIECE: usize = 1024;

/// No token takes more, tables that have just grown included: 22 bytes where each pair comes twice.
const MAX_BYTES_PER_TOKEN: usize = 28;

/// Kept in the order of their names.
struct Tenant {
    name: Box<str>,
    texts: Box<Texts>,
}

impl Tenant {
    /// What a tenant takes beside his texts; a list of tenants may have as much room to spare.
    fn fixed_bytes(name: &str) -> usize {
        name.len() + 2 * size_of::<Self>() + size_of::<Texts>()
    }

    fn num_bytes(&self) -> usize {
        Self::fixed_bytes(&self.name) + self.texts.num_bytes()
    }
}

impl Memory {
    /// The longest name of a tenant, in bytes.
    pub const MAX_NAME: usize = 1024;

    /// An empty memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where an option is out of its bounds.
    pub fn new(options: MemoryOptions) -> Result<Self> {
        options.check()?;
        Ok(Self {
            options,
            shards: [const { RwLock::new(Vec::new()) }; NUM_SHARDS],
            writing: Mutex::default(),
            num_bytes: AtomicUsize::default(),
            num_tokens: AtomicUsize::default(),
            num_tenants: AtomicUsize::default(),
            clock: AtomicU64::default(),
        })
    }

    /// Adds a text that is complete; one that the tenant has already is of use again. Of a text that
    /// does not fit into the whole memory, the end is kept. O(tokens), over time.
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`] where a token is not in the vocabulary, and
    /// [`Error::InvalidArgument`] where the tenant's name is longer than
    /// [`MAX_NAME`](Self::MAX_NAME); the memory is then as it was.
    pub fn insert(&self, tenant: &str, tokens: &[u32]) -> Result<()> {
        check_name(tenant)?;
        check_tokens(tokens, self.options.vocab_size)?;
        let _writing = self.begin_writing();
        let fixed_bytes = Tenant::fixed_bytes(tenant) + Texts::FIXED_BYTES;
        let most_tokens = (self.max_bytes() - fixed_bytes) / MAX_BYTES_PER_TOKEN;
        let tokens = &tokens[tokens.len().saturating_sub(most_tokens)..];
        let hash = tenant::hash(tokens);
        if tokens.is_empty() || self.touch_same(tenant, tokens, hash) {
            return Ok(());
        }
        self.make_room(fixed_bytes + MAX_BYTES_PER_TOKEN * tokens.len());
        let (shard, index) = self.enter(tenant);
        let (first, last) = tokens.split_at((tokens.len() - 1) / PIECE * PIECE);
        for piece in first.chunks(PIECE) {
            self.change(shard, index, |texts| texts.append(piece));
        }
        self.change(shard, index, |texts| {
            texts.append(last);
            texts.end_document(hash, self.tick());
        });
        self.make_room(0); // a table of earlier texts may have grown
        Ok(())
    }

    /// The texts of a tenant; `None` where there are none.
    ///
    /// The reader keeps out whoever wants to write to this tenant, so it should be let go after some
    /// microseconds; a thread that asks the memory for anything else meanwhile but
    /// [`touch`](Self::touch) may wait for ever. A text of more than a thousand tokens may be there
    /// in part while it is being added.
    pub fn read(&self, tenant: &str) -> Option<Reader<'_>> {
        let tenants = read(self.shard(tenant));
        let index = find(&tenants, tenant).ok()?;
        Some(Reader {
            tenants,
            index,
            memory: self,
        })
    }

    /// The text that holds a position was of use, as by [`Reader::touch`]. It waits for nobody:
    /// while the tenant is written to, it is not noted.
    pub fn touch(&self, tenant: &str, position: usize) {
        if let Ok(tenants) = self.shard(tenant).try_read()
            && let Ok(index) = find(&tenants, tenant)
        {
            tenants[index].texts.touch(position, self.tick());
        }
    }

    /// Removes all texts of a tenant.
    pub fn forget(&self, tenant: &str) {
        let _writing = self.begin_writing();
        let shard = self.shard(tenant);
        let found = find(&read(shard), tenant);
        if let Ok(index) = found {
            self.remove(shard, index);
        }
    }

    /// Removes all texts of all tenants.
    pub fn clear(&self) {
        let _writing = self.begin_writing();
        for shard in &self.shards {
            drop(std::mem::take(&mut *write(shard)));
        }
        self.num_bytes.store(0, Ordering::Relaxed);
        self.num_tokens.store(0, Ordering::Relaxed);
        self.num_tenants.store(0, Ordering::Relaxed);
    }

    /// What the memory was made with.
    pub fn options(&self) -> &MemoryOptions {
        &self.options
    }

    /// The most bytes that it may take.
    pub fn max_bytes(&self) -> usize {
        self.options.max_bytes
    }

    /// The bytes that it takes, all tenants and what finds their texts included.
    pub fn num_bytes(&self) -> usize {
        self.num_bytes.load(Ordering::Relaxed)
    }

    /// The tokens of all texts.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens.load(Ordering::Relaxed)
    }

    /// The tenants that have texts.
    pub fn num_tenants(&self) -> usize {
        self.num_tenants.load(Ordering::Relaxed)
    }

    /// Held by whoever changes the memory or reads it for long. Writers wait here, not at the lock of
    /// a shard: a writer that waits there would keep out all readers that come after it.
    pub(crate) fn begin_writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All texts: tenants, and the tokens and last uses of their documents.
    pub(crate) fn for_each_tenant(&self, mut visit: impl FnMut(&str, &Texts)) {
        for shard in &self.shards {
            for tenant in read(shard).iter() {
                visit(&tenant.name, &tenant.texts);
            }
        }
    }

    /// Takes in a tenant with these texts, whose last uses lie before `clock`.
    pub(crate) fn restore(&self, tenant: &str, texts: Texts, clock: u64) {
        let (shard, index) = self.enter(tenant);
        self.change(shard, index, |there| *there = texts);
        self.clock.fetch_max(clock, Ordering::Relaxed);
    }

    /// Removes the texts of longest ago until there are `num_bytes` to spare.
    pub(crate) fn make_room(&self, num_bytes: usize) {
        while self.num_tenants() > 0 && self.num_bytes() + num_bytes > self.max_bytes() {
            // Many at once: those that stay are copied.
            let surplus = self.num_bytes() + num_bytes - self.max_bytes();
            self.evict(surplus.max(self.max_bytes() / 3));
        }
    }

    fn shard(&self, tenant: &str) -> &RwLock<Vec<Tenant>> {
        let [byte, ..] = xxh3_64(tenant.as_bytes()).to_le_bytes();
        &self.shards[usize::from(byte) % NUM_SHARDS]
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn touch_same(&self, tenant: &str, tokens: &[u32], hash: u64) -> bool {
        let texts = self.read(tenant);
        texts.is_some_and(|texts| texts.texts().touch_same(tokens, hash, self.tick()))
    }

    /// Removes the least recently used texts, about `num_bytes` of them.
    fn evict(&self, num_bytes: usize) {
        let mut uses = Vec::new();
        for shard in &self.shards {
            for tenant in read(shard).iter() {
                let texts = &tenant.texts;
                let per_token = tenant.num_bytes() / texts.history().tokens().len().max(1);
                let bytes =
                    |(tokens, last_use): (&[u32], u64)| (last_use, per_token * tokens.len());
                uses.extend(texts.documents().map(bytes));
            }
        }
        uses.sort_unstable();
        let mut freed = 0;
        let is_last = |&&(_, bytes): &&(u64, usize)| {
            freed += bytes;
            freed >= num_bytes
        };
        let newest = uses.iter().find(is_last).or(uses.last());
        if let Some(&(newest, _)) = newest {
            self.remove_used_until(newest);
        }
    }

    fn remove_used_until(&self, newest: u64) {
        for shard in &self.shards {
            let num_tenants = read(shard).len();
            for index in (0..num_tenants).rev() {
                let kept = kept(&read(shard)[index].texts, newest);
                match kept {
                    Some(kept) if kept.num_documents() == 0 => self.remove(shard, index),
                    Some(kept) => drop(self.change(shard, index, |texts| {
                        std::mem::replace(texts, kept) // freed once readers go on
                    })),
                    None => {}
                }
            }
        }
    }

    /// The place of a tenant, who is entered where he is new.
    fn enter(&self, tenant: &str) -> (&RwLock<Vec<Tenant>>, usize) {
        let shard = self.shard(tenant);
        let found = find(&read(shard), tenant);
        let index = found.unwrap_or_else(|index| {
            let tenant = Tenant {
                name: tenant.into(),
                texts: Box::default(),
            };
            self.num_bytes
                .fetch_add(tenant.num_bytes(), Ordering::Relaxed);
            self.num_tenants.fetch_add(1, Ordering::Relaxed);
            write(shard).insert(index, tenant);
            index
        });
        (shard, index)
    }

    fn remove(&self, shard: &RwLock<Vec<Tenant>>, index: usize) {
        let tenant = write(shard).remove(index);
        self.num_bytes
            .fetch_sub(tenant.num_bytes(), Ordering::Relaxed);
        self.num_tokens
            .fetch_sub(tenant.texts.num_tokens(), Ordering::Relaxed);
        self.num_tenants.fetch_sub(1, Ordering::Relaxed);
    }

    /// Changes the texts of a tenant, and counts.
    fn change<R>(
        &self,
        shard: &RwLock<Vec<Tenant>>,
        index: usize,
        change: impl FnOnce(&mut Texts) -> R,
    ) -> R {
        let mut tenants = write(shard);
        let texts = &mut *tenants[index].texts;
        let (num_bytes, num_tokens) = (texts.num_bytes(), texts.num_tokens());
        let result = change(texts);
        // A difference below zero wraps around, and so does its sum.
        let num_bytes = texts.num_bytes().wrapping_sub(num_bytes);
        let num_tokens = texts.num_tokens().wrapping_sub(num_tokens);
        self.num_bytes.fetch_add(num_bytes, Ordering::Relaxed);
        self.num_tokens.fetch_add(num_tokens, Ordering::Relaxed);
        result
    }
}

impl fmt::Debug for Memory {
    /// Sizes, not texts: they are somebody's.
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

/// The texts of one tenant, as they are until this is let go: a [`History`] in which
/// [`BOUNDARY`](History::BOUNDARY) follows each text.
pub struct Reader<'a> {
    tenants: RwLockReadGuard<'a, Vec<Tenant>>,
    index: usize,
    memory: &'a Memory,
}

impl Reader<'_> {
    /// The text that holds a position was of use: it is kept longer than those that were not. A
    /// position out of range is none. O(log texts), and nobody waits for it.
    pub fn touch(&self, position: usize) {
        self.texts().touch(position, self.memory.tick());
    }

    fn texts(&self) -> &Texts {
        &self.tenants[self.index].texts
    }
}

impl Deref for Reader<'_> {
    type Target = History;

    fn deref(&self) -> &History {
        self.texts().history()
    }
}

/// A copy of the texts that were of use after `newest`; `None` where all were.
fn kept(texts: &Texts, newest: u64) -> Option<Texts> {
    let is_kept = |&(_, last_use): &(&[u32], u64)| last_use > newest;
    let kept: Vec<_> = texts.documents().filter(is_kept).collect();
    (kept.len() < texts.num_documents()).then(|| Texts::of(&kept))
}

pub(crate) fn check_name(tenant: &str) -> Result<()> {
    if tenant.len() <= Memory::MAX_NAME {
        Ok(())
    } else {
        let reason = format!(
            "must have at most {} bytes, not {}",
            Memory::MAX_NAME,
            tenant.len()
        );
        Err(Error::invalid("tenant", reason))
    }
}

/// Where a tenant is, or where he belongs.
fn find(tenants: &[Tenant], name: &str) -> std::result::Result<usize, usize> {
    tenants.binary_search_by(|tenant| (*tenant.name).cmp(name))
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

//! Snapshots of a memory in a file.
//!
//! A snapshot is valid only as a whole: its header has the length and a checksum of the file. `docs/FORMAT.md`
//! specifies every byte.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::memory::groups::GroupKey;
use crate::memory::store::{Memory, MemoryOptions};
use crate::memory::tenant::Tenant;
use crate::memory::tombstones::{NewTombstones, Tombstone, Tombstones};
use crate::memory::transfer::clear_transfers;
use crate::weights::adaptation::TenantAdaptation;
use specds_index::base::checks::check_tokens;
use specds_index::base::forks::NoFork;
use specds_index::storage::files::{
    hidden, inherit_owner, lock, map, open, open_beside, resolve, sync_parent,
};
use specds_index::storage::token_array::TokenWidth;
use specds_index::{Datastore, Error, Result};

/// First of the four numbers of the header. The version with the vocabulary size, the length and the checksum follow.
const MAGIC: u64 = u64::from_le_bytes(*b"SPECDS\0M");
const VERSION: u32 = 6;
const HEADER_LEN: usize = 32;
const MAX_USE: u64 = 1 << 62;
const MAX_TOKENIZER: usize = 1 << 16;
/// Maximum time without progress of another writer that is waited for.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(30);

impl Memory {
    /// Writes all texts and adaptations to a file; readers of the memory are not blocked. Tenants that are marked
    /// as deleted in the file are deleted from this memory first.
    ///
    /// The file at `path` is replaced atomically, and does not change on an error. It keeps its owner, its group and
    /// its permissions; a new file is private. Something that is read-only, or not a snapshot, is not replaced. Other
    /// writers of that path are waited for, up to 30 seconds for one that makes no progress.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the file is invalid, [`Error::OtherTokenizer`], [`Error::Locked`] after that time, or an
    /// I/O error.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.replace(path.as_ref(), |memory, path| {
            let read = read(path, |found| {
                if memory.tombstones().misses_pruned(&found.tombstones) {
                    // Of what snapshots had, only the file knows what has not been deleted.
                    return memory.merge(path, found);
                }
                memory.apply_tombstones(&found.tombstones);
                Ok(())
            });
            unless_missing(read)
        })
    }

    /// Merges the memory with a file and saves the result, so that processes can share it.
    ///
    /// Tenants that were deleted on one side are deleted on both. If both sides have adapted weights of a tenant,
    /// this memory keeps its own. Texts that the datastore `known` has are [removed](Self::remove_known) before the
    /// file is written. Nothing is read if the file has not changed since this memory read or wrote it.
    ///
    /// # Errors
    /// Those of [`save`](Self::save); the datastore may be of [another tokenizer](Error::OtherTokenizer) too.
    pub fn merge_into(&self, path: impl AsRef<Path>, known: Option<&Datastore>) -> Result<()> {
        self.replace(path.as_ref(), |memory, path| {
            unless_missing(memory.take_in(path))?;
            known.map_or(Ok(()), |known| memory.remove_known(known).map(drop))
        })
    }

    /// Deletes tenants from a file, and returns the number of texts that it had of each; `None` if it had nothing of a
    /// tenant. Processes that share the file delete these tenants the next time they read or write it, also those
    /// that the file lacks: a process may have texts that it has not written yet. O(tokens).
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn forget_in(path: impl AsRef<Path>, tenants: &[&str]) -> Result<Vec<Option<usize>>> {
        let path = path.as_ref();
        let options = read(path, |found| {
            Ok(MemoryOptions {
                vocab_size: found.vocab_size,
                max_bytes: MemoryOptions::MAX_BYTES,
                tokenizer: found.tokenizer,
            })
        });
        let memory = Self::new(options?)?;
        let mut num_texts = Vec::new();
        memory.replace(path, |memory, path| {
            memory.take_in(path)?;
            for tenant in tenants {
                num_texts.push(memory.find(tenant).map(|_| memory.texts(tenant).len()));
                memory.forget(tenant);
            }
            Ok(())
        })?;
        clear_transfers(&resolve(path)?)?;
        Ok(num_texts)
    }

    /// Runs `prepare` and writes the file while it is locked.
    pub(crate) fn replace(
        &self,
        path: &Path,
        prepare: impl FnOnce(&Self, &Path) -> Result<()>,
    ) -> Result<()> {
        let unnamed = || Error::invalid("path", "must name a file");
        path.file_name().ok_or_else(unnamed)?;
        // All names of the file lead to one lock, and none of them is replaced by a file of its own.
        let path = &resolve(path)?;
        let name = path.file_name().ok_or_else(unnamed)?;
        let partial = path.with_file_name(hidden(name, ".new"));
        // The file has texts of users, so it is readable by its owner alone.
        let open = || open_beside(&partial, path).map(Some);
        let file = lock(&partial, path, MAX_LOCK_WAIT, open).map_err(|error| error.at(path))?;
        let _held = NoFork::begin();
        let mut new = NewTombstones::default();
        let mut write = || {
            let checksum = self.write(&file, &mut new)?;
            file.sync_all()?;
            fs::rename(&partial, path)?;
            self.synced.store(checksum, Ordering::Relaxed);
            Ok(())
        };
        let prepared = inherit_owner(&file, path).and_then(|()| prepare(self, path));
        if let Err(error) = prepared.and_then(|()| write().map_err(Error::io(path))) {
            // The old file lacks the new tombstones, so the next write must publish them.
            self.change_tombstones(|tombstones, _| tombstones.restore_new(new));
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        sync_parent(path)
    }

    /// Reads a snapshot that [`save`](Self::save) wrote. Texts beyond the size limit of `options` are evicted.
    /// O(tokens).
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the file is invalid, [`Error::OtherTokenizer`], or an I/O error.
    pub fn open(path: impl AsRef<Path>, options: MemoryOptions) -> Result<Self> {
        let memory = Self::new(options)?;
        memory.take_in(path.as_ref())?;
        Ok(memory)
    }

    pub(crate) fn take_in(&self, path: &Path) -> Result<()> {
        read(path, |found| {
            if found.checksum == self.synced.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.merge(path, found)
        })
    }

    fn merge(&self, path: &Path, found: SnapshotContents<'_>) -> Result<()> {
        let checksum = found.checksum;
        self.options().check_tokenizer(path, found.vocab_size, &found.tokenizer)?;
        self.apply_tombstones(&found.tombstones);
        found.fill(self).map_err(|reason| Error::Snapshot {
            path: path.to_owned(),
            reason: reason.to_owned(),
        })?;
        self.synced.store(checksum, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the snapshot and returns its checksum; `new` receives the tombstones that no file had before.
    fn write(&self, mut file: &File, new: &mut NewTombstones) -> io::Result<u64> {
        let options = self.options();
        file.set_len(0)?;
        let mut output = BufWriter::new(file);
        output.write_all(&[0; HEADER_LEN])?;
        put(&mut output, options.tokenizer.as_bytes())?;
        {
            let _writing = self.begin_writing();
            let published = self.change_tombstones(Tombstones::publish_new);
            let none_left = "no numbers are left for tombstones: begin with an empty memory";
            *new = published.ok_or_else(|| io::Error::other(none_left))?;
            put_tombstones(&mut output, &self.tombstones())?;
            let mut tenants = self.tenants();
            tenants.retain(|tenant| !tenant.read().is_empty());
            put_number(&mut output, tenants.len() as u64)?;
            for tenant in tenants {
                put_tenant(&mut output, &tenant, TokenWidth::of(options.vocab_size, 0))?;
                tenant.write().mark_saved();
            }
        }
        output.flush()?;
        let written = map(file)?;
        let kind = u64::from(options.vocab_size) << 32 | u64::from(VERSION);
        let header = [MAGIC, kind, written.len() as u64];
        let checksum = checksum(&header, &written[HEADER_LEN..]);
        file.rewind()?;
        file.write_all(bytemuck::bytes_of(&header))?;
        put_number(&mut file, checksum)?;
        Ok(checksum)
    }
}

/// Accepts a missing file. A file that cannot be read may have tombstones.
fn unless_missing(read: Result<()>) -> Result<()> {
    match read {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        read => read,
    }
}

fn put_number(output: &mut impl Write, number: u64) -> io::Result<()> {
    output.write_all(&number.to_le_bytes())
}

/// Writes bytes, prefixed by their number.
fn put(output: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    put_number(output, bytes.len() as u64)?;
    output.write_all(bytes)
}

fn put_tombstones(output: &mut impl Write, tombstones: &Tombstones) -> io::Result<()> {
    put_number(output, tombstones.pruned_below())?;
    put_number(output, tombstones.versions().len() as u64)?;
    for (tombstone, &version) in tombstones.versions() {
        output.write_all(&tombstone.0)?;
        put_number(output, version)?;
    }
    Ok(())
}

fn put_tenant(output: &mut impl Write, tenant: &Tenant, width: TokenWidth) -> io::Result<()> {
    let data = tenant.read();
    let mut bytes = Vec::new();
    if let Some(adaptation) = data.adaptation() {
        adaptation.put(&mut bytes);
    }
    put(output, tenant.name.as_bytes())?;
    put_number(output, tenant.last_use().min(MAX_USE - 1))?;
    put(output, &bytes)?;
    let documents = data.texts.documents();
    put_number(output, documents.len() as u64)?;
    for (tokens, group) in documents {
        put_number(output, group.hash)?;
        put_number(output, group.length.into())?;
        put_number(output, tokens.len() as u64)?;
        bytes.clear();
        width.encode(tokens, &mut bytes);
        output.write_all(&bytes)?;
    }
    Ok(())
}

fn checksum(header: &[u64; 3], content: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(content);
    hasher.update(bytemuck::bytes_of(header));
    hasher.digest()
}

/// Returns the vocabulary size, the checksum and the content, or the reason why the file is not a snapshot.
fn split(file: &[u8]) -> std::result::Result<(u32, u64, &[u8]), String> {
    let num_bytes = file.len();
    let Some((header, content)) = file.split_at_checked(HEADER_LEN) else {
        return Err(format!("it has {num_bytes} bytes, fewer than a header"));
    };
    let [magic, kind, length, sum]: [u64; 4] = bytemuck::pod_read_unaligned(header);
    let [version, vocab_size]: [u32; 2] = bytemuck::cast(kind);
    if magic != MAGIC {
        Err("its first bytes are not those of a snapshot".to_owned())
    } else if version != VERSION {
        Err(format!("it has format version {version}, this version of specds reads {VERSION}"))
    } else if length != num_bytes as u64 {
        Err(format!("it has {num_bytes} bytes where {length} were written"))
    } else if sum != checksum(&[magic, kind, length], content) {
        Err("it has changed since it was written".to_owned())
    } else {
        Ok((vocab_size, sum, content))
    }
}

type Read<T> = std::result::Result<T, &'static str>;

const UNFIT: &str = "its parts do not fit together";

/// A snapshot with a valid checksum.
struct SnapshotContents<'a> {
    vocab_size: u32,
    checksum: u64,
    tokenizer: String,
    tombstones: Tombstones,
    tenants: TenantReader<'a>,
}

fn read<R>(path: &Path, then: impl FnOnce(SnapshotContents<'_>) -> Result<R>) -> Result<R> {
    let map = map(&open(path)?).map_err(Error::io(path))?;
    let found = SnapshotContents::read(&map)
        .map_err(|reason| Error::Snapshot { path: path.to_owned(), reason });
    then(found?)
}

impl<'a> SnapshotContents<'a> {
    fn read(file: &'a [u8]) -> std::result::Result<Self, String> {
        let (vocab_size, checksum, content) = split(file)?;
        let width = TokenWidth::of(vocab_size, 0);
        let mut input = TenantReader { content, width };
        let tokenizer = input.bytes(MAX_TOKENIZER)?;
        Ok(Self {
            vocab_size,
            checksum,
            tokenizer: String::from_utf8_lossy(tokenizer).into_owned(),
            tombstones: input.tombstones()?,
            tenants: input,
        })
    }
}

struct TenantReader<'a> {
    content: &'a [u8],
    width: TokenWidth,
}

impl<'a> TenantReader<'a> {
    fn take(&mut self, length: u64) -> Read<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| UNFIT)?;
        self.content.split_off(..length).ok_or(UNFIT)
    }

    fn number(&mut self) -> Read<u64> {
        let bytes = self.take(8)?.try_into();
        bytes.map(u64::from_le_bytes).map_err(|_| UNFIT)
    }

    /// Reads bytes that are prefixed by their number, at most `most`.
    fn bytes(&mut self, most: usize) -> Read<&'a [u8]> {
        match self.number()? {
            length if length <= most as u64 => self.take(length),
            _ => Err(UNFIT),
        }
    }

    /// Reads a text and returns at most its last `most` tokens.
    fn tokens(&mut self, most: usize, vocab_size: u32) -> Read<Vec<u32>> {
        let (length, width) = (self.number()?, self.width.num_bytes());
        let bytes = self.take(length.checked_mul(width as u64).ok_or(UNFIT)?)?;
        let tokens = self.width.decode(&bytes[bytes.len().saturating_sub(most * width)..]);
        match check_tokens(&tokens, vocab_size) {
            Ok(()) if tokens.is_empty() => Err(UNFIT),
            Ok(()) => Ok(tokens),
            Err(_) => Err("it holds tokens outside its vocabulary"),
        }
    }

    fn tombstones(&mut self) -> Read<Tombstones> {
        let (pruned_below, mut versions) = (self.number()?, BTreeMap::new());
        for _ in 0..self.number()? {
            let bytes = self.take(Tombstone::NUM_BYTES as u64)?.try_into();
            let tombstone = Tombstone(bytes.map_err(|_| UNFIT)?);
            if versions.last_key_value().is_some_and(|(last, _)| *last >= tombstone) {
                return Err(UNFIT);
            }
            versions.insert(tombstone, self.number()?);
        }
        Tombstones::read(versions, pruned_below).ok_or(UNFIT)
    }
}

impl SnapshotContents<'_> {
    /// Adds the tenants to a memory, except those that it has deleted.
    fn fill(mut self, memory: &Memory) -> Read<()> {
        let mut before = None;
        for _ in 0..self.tenants.number()? {
            let name = self.tenants.bytes(Memory::MAX_NAME)?;
            let name = std::str::from_utf8(name).map_err(|_| UNFIT)?;
            if before.replace(name).is_some_and(|before| before >= name) {
                return Err("its tenants are not in the order of their names");
            }
            self.fill_tenant(name, memory)?;
        }
        self.tenants.content.is_empty().then_some(()).ok_or(UNFIT)
    }

    /// Returns the memory's tenant, or `None` if the memory has deleted it since the snapshot.
    fn tenant(&self, name: &str, memory: &Memory) -> Read<Option<Arc<Tenant>>> {
        let is_deleted = || memory.tombstones().has_newer(name, &self.tombstones);
        if is_deleted() {
            return Ok(None);
        }
        let tenant = memory.tenant(name).map_err(|_| UNFIT)?;
        // A tenant that was deleted before it was found here is a new one, which the snapshot's texts do not belong to.
        Ok((!is_deleted()).then_some(tenant))
    }

    fn fill_tenant(&mut self, name: &str, memory: &Memory) -> Read<()> {
        let tenant = self.tenant(name, memory)?;
        let input = &mut self.tenants;
        let last_use = input.number()?;
        if last_use >= MAX_USE {
            return Err(UNFIT);
        }
        let adaptation = TenantAdaptation::take(input.bytes(2 * TenantAdaptation::NUM_BYTES)?);
        if let Some(tenant) = &tenant {
            memory.change(tenant, |data| data.is_saved = true);
            if let Some(adaptation) = adaptation {
                memory.begin_learning(tenant, adaptation);
            }
            tenant.last_use.fetch_max(last_use, Ordering::Relaxed);
            memory.clock.fetch_max(last_use + 1, Ordering::Relaxed);
        }
        let most_tokens = memory.max_bytes() / size_of::<u32>();
        for _ in 0..input.number()? {
            let group = GroupKey {
                hash: input.number()?,
                length: input.number()?.try_into().map_err(|_| UNFIT)?,
            };
            let tokens = input.tokens(most_tokens, memory.options().vocab_size)?;
            if let Some(tenant) = &tenant {
                let _writing = memory.begin_writing();
                memory.append(tenant, &tokens, group, true);
            }
        }
        Ok(())
    }
}

//! How does a memory outlive its process?
//!
//! A snapshot is one file, valid only as a whole: its header has a length and a checksum. `docs/FORMAT.md`
//! has every byte.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::Xxh3;

use crate::base::checks::check_tokens;
use crate::base::error::{Error, Result};
use crate::lookup::datastore::Datastore;
use crate::memory::groups::GroupKey;
use crate::memory::store::{Memory, MemoryOptions};
use crate::memory::tenant::Tenant;
use crate::storage::files::{hidden, lock, map, open, open_private, sync_parent};
use crate::storage::token_array::TokenWidth;
use crate::weights::learned::Learned;

/// The header: this, the version and the vocabulary, the length, the checksum.
const MAGIC: u64 = u64::from_le_bytes(*b"SPECDS\0M");
const VERSION: u32 = 4;
const HEADER_LEN: usize = 32;
const MAX_USE: u64 = 1 << 63;
const MAX_TOKENIZER: usize = 1 << 16;

impl Memory {
    /// Writes all texts, and what they taught, to a file, while others read. Replaces the file at `path` in
    /// one step; where that fails, it stays. Waits for other calls for that path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.replace(path.as_ref(), |_, _| Ok(()))
    }

    /// Takes in what other processes wrote to the file since this memory read or wrote it, except tenants
    /// that were forgotten here; then saves. Of a tenant whom both taught, this memory's weights stay.
    /// Texts that `known` has are [removed](Self::remove_known) before.
    pub fn merge_into(&self, path: impl AsRef<Path>, known: Option<&Datastore>) -> Result<()> {
        self.replace(path.as_ref(), |memory, path| {
            if path.exists() {
                memory.take_in(path)?;
            }
            known.map_or(Ok(()), |known| memory.remove_known(known).map(drop))
        })
    }

    /// Under the lock of the file.
    fn replace(&self, path: &Path, prepare: impl FnOnce(&Self, &Path) -> Result<()>) -> Result<()> {
        let Some(name) = path.file_name() else {
            return Err(Error::invalid("path", "must name a file"));
        };
        let partial = path.with_file_name(hidden(name, ".new"));
        // Nobody else may read the users' texts.
        let open = || open_private(&partial).map(Some);
        let file = lock(&partial, path, true, open).map_err(|error| error.at(path))?;
        let mut forgotten = BTreeSet::new();
        let mut write = || {
            let checksum = self.write(&file, &mut forgotten)?;
            file.sync_all()?;
            fs::rename(&partial, path)?;
            self.synced.store(checksum, Ordering::Relaxed);
            Ok(())
        };
        let prepared = prepare(self, path);
        if let Err(error) = prepared.and_then(|()| write().map_err(Error::io(path))) {
            // The file at `path` may still have them.
            self.forgotten().append(&mut forgotten);
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        sync_parent(path)
    }

    /// Reads what [`save`](Self::save) wrote, within the bytes that `options` allow: where these are fewer,
    /// texts are evicted. O(tokens).
    pub fn open(path: impl AsRef<Path>, options: MemoryOptions) -> Result<Self> {
        let memory = Self::new(options)?;
        memory.take_in(path.as_ref())?;
        Ok(memory)
    }

    fn take_in(&self, path: &Path) -> Result<()> {
        let map = map(&open(path)?).map_err(Error::io(path))?;
        let unusable = |reason: String| Error::Snapshot {
            path: path.to_owned(),
            reason,
        };
        let unfit = |reason: &str| unusable(reason.to_owned());
        let (vocab_size, checksum, content) = split(&map).map_err(unusable)?;
        if checksum == self.synced.load(Ordering::Relaxed) {
            return Ok(());
        }
        let width = TokenWidth::of(vocab_size, 0);
        let mut input = Input { content, width };
        let tokenizer = input.bytes(MAX_TOKENIZER).map_err(unfit)?;
        let tokenizer = String::from_utf8_lossy(tokenizer);
        self.options()
            .check_tokenizer(path, vocab_size, &tokenizer)?;
        input.fill(self).map_err(unfit)?;
        self.synced.store(checksum, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the checksum, and in `forgotten` the tenants that are gone from the file.
    fn write(&self, mut file: &File, forgotten: &mut BTreeSet<u64>) -> io::Result<u64> {
        let options = self.options();
        file.set_len(0)?;
        let mut output = BufWriter::new(file);
        output.write_all(&[0; HEADER_LEN])?;
        put(&mut output, options.tokenizer.as_bytes())?;
        {
            let _writing = self.begin_writing();
            *forgotten = std::mem::take(&mut *self.forgotten());
            let mut tenants = self.tenants();
            tenants.retain(|tenant| !tenant.read().is_empty());
            put_number(&mut output, tenants.len() as u64)?;
            for tenant in tenants {
                put_tenant(&mut output, &tenant, TokenWidth::of(options.vocab_size, 0))?;
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

fn put_number(output: &mut impl Write, number: u64) -> io::Result<()> {
    output.write_all(&number.to_le_bytes())
}

/// Bytes after their number.
fn put(output: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    put_number(output, bytes.len() as u64)?;
    output.write_all(bytes)
}

fn put_tenant(output: &mut impl Write, tenant: &Tenant, width: TokenWidth) -> io::Result<()> {
    let kept = tenant.read();
    let mut bytes = Vec::new();
    if let Some(learned) = kept.learned() {
        learned.put(&mut bytes);
    }
    put(output, tenant.name.as_bytes())?;
    put_number(output, tenant.last_use())?;
    put(output, &bytes)?;
    let documents = kept.texts.documents();
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

/// The vocabulary, the checksum and the content, or why the file is no snapshot.
fn split(file: &[u8]) -> std::result::Result<(u32, u64, &[u8]), String> {
    let num_bytes = file.len();
    let Some((header, content)) = file.split_at_checked(HEADER_LEN) else {
        return Err(format!("it has {num_bytes} bytes, fewer than any"));
    };
    let [magic, kind, length, sum]: [u64; 4] = bytemuck::pod_read_unaligned(header);
    let [version, vocab_size]: [u32; 2] = bytemuck::cast(kind);
    if magic != MAGIC {
        Err("it is none".to_owned())
    } else if version != VERSION {
        Err(format!(
            "it has format version {version}, this version of specds reads {VERSION}"
        ))
    } else if length != num_bytes as u64 {
        Err(format!(
            "it has {num_bytes} bytes where {length} were written"
        ))
    } else if sum != checksum(&[magic, kind, length], content) {
        Err("it has changed since it was written".to_owned())
    } else {
        Ok((vocab_size, sum, content))
    }
}

type Read<T> = std::result::Result<T, &'static str>;

const UNFIT: &str = "its parts do not fit together";

struct Input<'a> {
    content: &'a [u8],
    width: TokenWidth,
}

impl<'a> Input<'a> {
    fn take(&mut self, length: u64) -> Read<&'a [u8]> {
        let length = usize::try_from(length).map_err(|_| UNFIT)?;
        self.content.split_off(..length).ok_or(UNFIT)
    }

    fn number(&mut self) -> Read<u64> {
        let bytes = self.take(8)?.try_into();
        bytes.map(u64::from_le_bytes).map_err(|_| UNFIT)
    }

    /// Bytes after their number, at most `most`.
    fn bytes(&mut self, most: usize) -> Read<&'a [u8]> {
        match self.number()? {
            length if length <= most as u64 => self.take(length),
            _ => Err(UNFIT),
        }
    }

    /// The last tokens of a text, at most `most`.
    fn tokens(&mut self, most: usize, vocab_size: u32) -> Read<Vec<u32>> {
        let (length, width) = (self.number()?, self.width.num_bytes());
        let bytes = self.take(length.checked_mul(width as u64).ok_or(UNFIT)?)?;
        let tokens = self
            .width
            .decode(&bytes[bytes.len().saturating_sub(most * width)..]);
        match check_tokens(&tokens, vocab_size) {
            Ok(()) if tokens.is_empty() => Err(UNFIT),
            Ok(()) => Ok(tokens),
            Err(_) => Err("it holds tokens outside its vocabulary"),
        }
    }

    /// Puts tenants into a memory that has not forgotten them.
    fn fill(mut self, memory: &Memory) -> Read<()> {
        let mut before = None;
        for _ in 0..self.number()? {
            let name = self.bytes(Memory::MAX_NAME)?;
            let name = std::str::from_utf8(name).map_err(|_| UNFIT)?;
            if before.replace(name).is_some_and(|before| before >= name) {
                return Err("it names a tenant that cannot be");
            }
            self.fill_tenant(name, memory)?;
        }
        self.content.is_empty().then_some(()).ok_or(UNFIT)
    }

    fn fill_tenant(&mut self, name: &str, memory: &Memory) -> Read<()> {
        let last_use = self.number()?;
        if last_use >= MAX_USE {
            return Err(UNFIT);
        }
        let learned = Learned::take(self.bytes(2 * Learned::NUM_BYTES)?);
        let is_kept = !memory.has_forgotten(name);
        let tenant = is_kept.then(|| memory.tenant(name)).transpose();
        let tenant = tenant.map_err(|_| UNFIT)?;
        if let Some(tenant) = &tenant {
            if let Some(learned) = learned {
                memory.begin_learning(tenant, learned);
            }
            tenant.last_use.fetch_max(last_use, Ordering::Relaxed);
            memory.clock.fetch_max(last_use + 1, Ordering::Relaxed);
        }
        let most_tokens = memory.max_bytes() / size_of::<u32>();
        for _ in 0..self.number()? {
            let group = GroupKey {
                hash: self.number()?,
                length: self.number()?.try_into().map_err(|_| UNFIT)?,
            };
            let tokens = self.tokens(most_tokens, memory.options().vocab_size)?;
            if let Some(tenant) = &tenant {
                let _writing = memory.begin_writing();
                memory.append(tenant, &tokens, group);
            }
        }
        Ok(())
    }
}

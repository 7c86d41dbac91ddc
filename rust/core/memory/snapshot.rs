//! How does a memory outlive its process?
//!
//! A snapshot is one file, valid only as a whole: its header has a length and a checksum. It is written
//! and read piece by piece. `docs/FORMAT.md` has every byte.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::Xxh3;

use crate::base::error::{Error, Result};
use crate::lookup::datastore::Datastore;
use crate::memory::groups::Groups;
use crate::memory::store::{MAX_BYTES_PER_TOKEN, Memory, MemoryOptions};
use crate::memory::tenant::{Learned, Tenant, Texts, hash};
use crate::storage::files::{hidden, lock, open_private, sync_parent};
use crate::storage::token_array::TokenWidth;

const MAGIC: [u8; 8] = *b"SPECDS\0M";
const VERSION: u32 = 3;
const HEADER_LEN: usize = 32;
const LENGTH: Range<usize> = 16..24;
const CHECKSUM: Range<usize> = 24..32;
const MAX_USE: u64 = 1 << 63;

/// The most tokens that are written or read at a time.
const BLOCK: usize = 1 << 16;

impl<L: Learned> Memory<L> {
    /// Writes all texts, and what they taught, to a file, while others read. The file at `path` is
    /// replaced in one step once the new one, `.NAME.new` beside it, is on the disk; where that fails, it
    /// stays. Waits for other calls for that path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.replace(path.as_ref(), |_, _| Ok(()))
    }

    /// Takes in what other processes have written to the file since this memory last read or wrote it,
    /// but for tenants that were forgotten here; then saves. Of a tenant whom two processes taught, this
    /// one's weights stay. Texts that `known` has are [removed](Self::remove_known) before.
    pub fn merge_into(&self, path: impl AsRef<Path>, known: Option<&Datastore>) -> Result<()> {
        self.replace(path.as_ref(), |memory, path| {
            if path.exists() {
                memory.take_in(path)?;
            }
            known.map_or(Ok(()), |known| memory.remove_known(known).map(drop))
        })
    }

    /// Writes all once `prepare` is done, under the lock of the file.
    fn replace(&self, path: &Path, prepare: impl FnOnce(&Self, &Path) -> Result<()>) -> Result<()> {
        let Some(name) = path.file_name() else {
            return Err(Error::invalid("path", "must name a file"));
        };
        let partial = path.with_file_name(hidden(name, ".new"));
        // The texts of users are nobody else's.
        let file = lock(&partial, path, true, || open_private(&partial).map(Some))?;
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
            // What is at `path` may have them still.
            self.forgotten().append(&mut forgotten);
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        sync_parent(path)
    }

    /// Reads what [`save`](Self::save) has written, within the bytes that `options` allow: where they are
    /// fewer, texts are evicted as if added one by one. O(tokens).
    pub fn open(path: impl AsRef<Path>, options: MemoryOptions) -> Result<Self> {
        let memory = Self::new(options)?;
        memory.take_in(path.as_ref())?;
        Ok(memory)
    }

    /// Adds what a file holds, unless this memory read or wrote it last.
    fn take_in(&self, path: &Path) -> Result<()> {
        let mut file = File::open(path).map_err(Error::io(path))?;
        let unusable = |reason: String| Error::Snapshot {
            path: path.to_owned(),
            reason,
        };
        let checked = check_header(&mut file).map_err(Error::io(path))?;
        let (vocab_size, length, checksum) = checked.map_err(unusable)?;
        if checksum == self.synced.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut input = Input {
            file: BufReader::new(file),
            left: length - HEADER_LEN as u64,
            width: TokenWidth::of(vocab_size, 0),
        };
        let unfit = || unusable(UNFIT.to_owned());
        let tokenizer = input.bytes(BLOCK as u64).ok_or_else(unfit)?;
        let tokenizer = String::from_utf8_lossy(&tokenizer);
        self.options()
            .check_tokenizer(path, vocab_size, &tokenizer)?;
        let filled = input.fill(self).ok_or_else(unfit)?;
        filled.map_err(|reason| unusable(reason.to_owned()))?;
        self.synced.store(checksum, Ordering::Relaxed);
        Ok(())
    }

    /// Moves the clock past a use.
    fn note_use(&self, tenant: &Tenant<L>, last_use: u64) {
        tenant.last_use.fetch_max(last_use, Ordering::Relaxed);
        self.clock.fetch_max(last_use + 1, Ordering::Relaxed);
    }

    fn restore_groups(&self, tenant: &Tenant<L>, groups: &Groups) {
        let _writing = self.begin_writing();
        self.change(tenant, |kept| {
            if !kept.is_forgotten {
                kept.groups.absorb(groups);
            }
        });
        self.make_room(tenant, 0);
    }

    /// Gives a tenant these texts; indexes all at once if he has none yet.
    fn restore_texts(&self, tenant: &Tenant<L>, texts: Texts<Vec<u32>>) {
        let _writing = self.begin_writing();
        if tenant.read().is_textless() {
            let texts = texts.index();
            self.change(tenant, |kept| kept.texts = texts);
            self.make_room(tenant, 0);
        } else {
            for (tokens, last_use) in texts.documents() {
                self.append(tenant, tokens, last_use);
            }
        }
    }

    /// How many tokens surely fit if a tenant has no texts yet, else 0.
    fn num_tokens_at_once(&self, tenant: &Tenant<L>) -> usize {
        let room = self.max_bytes().saturating_sub(self.num_bytes());
        let most = room.saturating_sub(Texts::FIXED_BYTES) / MAX_BYTES_PER_TOKEN;
        if tenant.read().is_textless() { most } else { 0 }
    }

    /// Writes all; gives the checksum, and in `forgotten` the tenants that are now gone from the file.
    fn write(&self, mut file: &File, forgotten: &mut BTreeSet<u64>) -> io::Result<u64> {
        let options = self.options();
        file.set_len(0)?;
        let mut output = Output {
            file: BufWriter::new(file),
            hasher: Xxh3::new(),
            width: TokenWidth::of(options.vocab_size, 0),
            buffer: Vec::new(),
        };
        output.file.write_all(&[0; HEADER_LEN])?;
        output.bytes(options.tokenizer.as_bytes())?;
        {
            let _writing = self.begin_writing();
            *forgotten = std::mem::take(&mut *self.forgotten());
            let mut tenants = self.tenants();
            tenants.retain(|tenant| !tenant.read().is_empty());
            output.number(tenants.len() as u64)?;
            for tenant in tenants {
                output.tenant(&tenant)?;
            }
        }
        let length = output.file.stream_position()?;
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend(options.vocab_size.to_le_bytes());
        header.extend(length.to_le_bytes());
        // What changes the header changes the sum as well.
        output.hasher.update(&header);
        let checksum = output.hasher.digest();
        header.extend(checksum.to_le_bytes());
        output.file.flush()?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header)?;
        Ok(checksum)
    }
}

/// The vocabulary, the length and the checksum of a file, or why it is not what a memory has written.
fn check_header(file: &mut File) -> io::Result<std::result::Result<(u32, u64, u64), String>> {
    let num_bytes = file.metadata()?.len();
    if num_bytes < HEADER_LEN as u64 {
        return Ok(Err(format!("it has {num_bytes} bytes, fewer than any")));
    }
    let mut header = [0; HEADER_LEN];
    file.read_exact(&mut header)?;
    let number = |field: Range<usize>| {
        let bytes = header[field].iter().rev();
        bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    let (version, length) = (number(8..12), number(LENGTH));
    if header[..MAGIC.len()] != MAGIC {
        return Ok(Err("it is none".to_owned()));
    }
    if version != u64::from(VERSION) {
        let reason =
            format!("it has format version {version}, this version of specds reads {VERSION}");
        return Ok(Err(reason));
    }
    if length != num_bytes {
        let reason = format!("it has {num_bytes} bytes where {length} were written");
        return Ok(Err(reason));
    }
    let (mut hasher, mut block) = (Xxh3::new(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block)? {
            0 => break,
            read => hasher.update(&block[..read]),
        }
    }
    hasher.update(&header[..CHECKSUM.start]);
    if number(CHECKSUM) != hasher.digest() {
        return Ok(Err("it has changed since it was written".to_owned()));
    }
    file.seek(SeekFrom::Start(HEADER_LEN as u64))?;
    let vocab_size = u32::try_from(number(12..16)).unwrap_or(0);
    Ok(Ok((vocab_size, length, number(CHECKSUM))))
}

/// What a snapshot is written through.
struct Output<'a> {
    file: BufWriter<&'a File>,
    /// Of all but the header.
    hasher: Xxh3,
    width: TokenWidth,
    buffer: Vec<u8>,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        self.put(&number.to_le_bytes())
    }

    /// Bytes after their number.
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.number(bytes.len() as u64)?;
        self.put(bytes)
    }

    fn tenant<L: Learned>(&mut self, tenant: &Tenant<L>) -> io::Result<()> {
        let kept = tenant.read();
        let mut learned = Vec::new();
        if let Some(known) = kept.learned() {
            known.put(&mut learned);
        }
        self.bytes(tenant.name.as_bytes())?;
        self.number(tenant.last_use())?;
        self.bytes(&learned)?;
        self.bytes(&kept.groups.to_bytes())?;
        let documents = kept.texts.documents();
        self.number(documents.len() as u64)?;
        for (tokens, last_use) in documents {
            self.number(last_use)?;
            self.number(tokens.len() as u64)?;
            for block in tokens.chunks(BLOCK) {
                let mut buffer = std::mem::take(&mut self.buffer);
                buffer.clear();
                self.width.encode(block, &mut buffer);
                self.put(&buffer)?;
                self.buffer = buffer;
            }
        }
        Ok(())
    }
}

const UNFIT: &str = "its parts do not fit together";

/// What a snapshot is read through; a part is `None` where the file ends too early.
struct Input {
    file: BufReader<File>,
    left: u64,
    width: TokenWidth,
}

impl Input {
    /// The next bytes, of which there are some left.
    fn take(&mut self, length: u64) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(length)?;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.file.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u64> {
        let bytes = self.take(8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Bytes after their number, which is at most `most`.
    fn bytes(&mut self, most: u64) -> Option<Vec<u8>> {
        let length = self.number().filter(|&length| length <= most)?;
        self.take(length)
    }

    fn last_use(&mut self) -> Option<u64> {
        self.number().filter(|&last_use| last_use < MAX_USE)
    }

    /// The last tokens of a text, at most `most`.
    fn tokens(&mut self, most: usize) -> Option<Vec<u32>> {
        let width = self.width.num_bytes() as u64;
        let length = self.number().filter(|&length| length > 0)?;
        self.left = self.left.checked_sub(length.checked_mul(width)?)?;
        let kept = length.min(most as u64);
        let skipped = i64::try_from((length - kept) * width).ok()?;
        self.file.seek_relative(skipped).ok()?;
        self.left += kept * width;
        let mut tokens = Vec::with_capacity(usize::try_from(kept).ok()?);
        while (tokens.len() as u64) < kept {
            let block = (kept - tokens.len() as u64).min(BLOCK as u64);
            tokens.extend(self.width.decode(&self.take(block * width)?));
        }
        Some(tokens)
    }

    /// Puts all tenants into a memory that has not forgotten them, or says what is wrong with them.
    fn fill<L: Learned>(
        &mut self,
        memory: &Memory<L>,
    ) -> Option<std::result::Result<(), &'static str>> {
        let most_tokens = memory.max_bytes() / size_of::<u32>();
        let (most_name, most_learned) = (Memory::<L>::MAX_NAME as u64, 2 * L::NUM_BYTES as u64);
        let mut before = None;
        for _ in 0..self.number()? {
            let name = String::from_utf8(self.bytes(most_name)?).ok()?;
            if before.as_ref().is_some_and(|before| *before >= name) {
                return Some(Err("it names a tenant that cannot be"));
            }
            let last_use = self.last_use()?;
            let learned = L::take(&self.bytes(most_learned)?);
            let groups = Groups::from_bytes(&self.bytes(Groups::MAX_SAVED)?)?;
            let mut tenant = None;
            if !memory.has_forgotten(&name) {
                let tenant = tenant.insert(memory.tenant(&name).ok()?);
                if let Some(learned) = learned {
                    memory.begin_learning(tenant, learned);
                }
                memory.note_use(tenant, last_use);
            }
            let room = tenant
                .as_ref()
                .map(|tenant| memory.num_tokens_at_once(tenant));
            let (mut room, mut first) = (room.unwrap_or(0), Texts::default());
            for _ in 0..self.number()? {
                let last_use = self.last_use()?;
                let tokens = self.tokens(most_tokens)?;
                if tokens
                    .iter()
                    .any(|&token| token >= memory.options().vocab_size)
                {
                    return Some(Err("it holds tokens outside its vocabulary"));
                }
                let Some(tenant) = &tenant else { continue };
                memory.note_use(tenant, last_use);
                if tokens.len() < room {
                    room -= tokens.len() + 1;
                    first.push(&tokens, hash(&tokens), last_use);
                } else {
                    room = 0;
                    memory.restore_texts(tenant, std::mem::take(&mut first));
                    let _writing = memory.begin_writing();
                    memory.append(tenant, &tokens, last_use);
                }
            }
            if let Some(tenant) = &tenant {
                memory.restore_texts(tenant, first);
                memory.restore_groups(tenant, &groups);
            }
            before = Some(name);
        }
        (self.left == 0).then_some(Ok(()))
    }
}

//! How does a memory outlive its process?
//!
//! A snapshot is one file, little-endian, and means something only as a whole:
//!
//! | offset | size | field | meaning |
//! | -----: | ---: | ----- | ------- |
//! |      0 |    8 | magic | `SPECDS\0M` |
//! |      8 |    4 | format version | 1 |
//! |     12 |    4 | vocabulary size | tokens are below it |
//! |     16 |    8 | length | of the whole file, in bytes |
//! |     24 |    8 | checksum | xxh3-64 of all bytes but these |
//! |     32 |      | tokenizer | bytes: which one the tokens are of |
//! |        |      | weights | bytes: whatever the caller saved with the texts |
//! |        |    8 | tenants | how many follow |
//!
//! Bytes are their number, in 8 bytes, and themselves. A tenant is his name, as bytes, the number of
//! his documents, in 8 bytes, and these in the order in which they came. A document is its last use
//! and the number of its tokens, in 8 bytes each, and the tokens, in 2 bytes each where the
//! vocabulary has at most 65,536 and in 3 elsewhere. A later use has a larger number, below 2⁶³.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::base::error::{Error, Result};
use crate::memory::store::{Memory, MemoryOptions, check_name};
use crate::memory::tenant::Texts;
use crate::storage::files::{is_at, sync_folder};
use crate::storage::token_array::TokenWidth;

const MAGIC: [u8; 8] = *b"SPECDS\0M";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 32;
const CHECKSUM: std::ops::Range<usize> = 24..32;
const MAX_USE: u64 = 1 << 63;

impl Memory {
    /// Writes all texts to a file, and some bytes of the caller's with them. Others read meanwhile,
    /// and write as soon as the texts are copied. What is at `path` is replaced in one step, once
    /// the new file is on the disk: it is written beside, as `.NAME.new`, which a later call takes
    /// over from one that was killed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the file cannot be written, and [`Error::Locked`] where another one is
    /// being written there; what is at `path` stays. [`Error::InvalidArgument`] where `path` has no
    /// file name.
    pub fn save(&self, path: impl AsRef<Path>, weights: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let Some(name) = path.file_name() else {
            return Err(Error::invalid("path", "must name a file"));
        };
        let partial = path.with_file_name(format!(".{}.new", name.to_string_lossy()));
        let mut file = lock(&partial, path)?;
        let bytes = self.encode(weights);
        let mut write = || {
            file.set_len(0)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&partial, path)
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&partial);
            return Err(Error::io(path)(error));
        }
        match path.parent() {
            Some(folder) if folder != Path::new("") => sync_folder(folder),
            _ => sync_folder(Path::new(".")),
        }
    }

    /// Reads what [`save`](Self::save) has written: a memory, and the caller's own bytes. Where
    /// `options` allow it fewer bytes than it had, it keeps the texts that were of use last.
    /// O(tokens).
    ///
    /// # Errors
    ///
    /// [`Error::Snapshot`] where the file is no such thing, is damaged, or is of a newer version;
    /// [`Error::OtherTokenizer`] where it is of another vocabulary or tokenizer than `options`;
    /// [`Error::Io`] where it cannot be read; and as [`new`](Self::new).
    pub fn open(path: impl AsRef<Path>, options: MemoryOptions) -> Result<(Self, Vec<u8>)> {
        let path = path.as_ref();
        let memory = Self::new(options)?;
        let bytes = fs::read(path).map_err(Error::io(path))?;
        let unusable = |reason: &str| Error::Snapshot {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let vocab_size = check_header(&bytes).map_err(|reason| unusable(&reason))?;
        let contents = decode(&bytes[HEADER_LEN..], TokenWidth::of(vocab_size, 0))
            .ok_or_else(|| unusable("its parts do not fit together"))?;
        check_tokenizer(path, vocab_size, contents.tokenizer, memory.options())?;
        contents.fill(&memory).map_err(unusable)?;
        Ok((memory, contents.weights.to_vec()))
    }

    fn encode(&self, weights: &[u8]) -> Vec<u8> {
        let options = self.options();
        let width = TokenWidth::of(options.vocab_size, 0);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(options.vocab_size.to_le_bytes());
        bytes.resize(HEADER_LEN, 0);
        put_bytes(&mut bytes, options.tokenizer.as_bytes());
        put_bytes(&mut bytes, weights);
        let writing = self.begin_writing();
        put_number(&mut bytes, self.num_tenants());
        self.for_each_tenant(|name, texts| {
            put_bytes(&mut bytes, name.as_bytes());
            put_number(&mut bytes, texts.num_documents());
            for (tokens, last_use) in texts.documents() {
                bytes.extend(last_use.to_le_bytes());
                put_number(&mut bytes, tokens.len());
                width.encode(tokens, &mut bytes);
            }
        });
        drop(writing);
        let length = bytes.len() as u64;
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(&bytes).to_le_bytes();
        bytes[CHECKSUM].copy_from_slice(&checksum);
        bytes
    }
}

/// Opens the file in which what will be at `target` is written, for this caller alone.
fn lock(partial: &Path, target: &Path) -> Result<File> {
    loop {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        keep_private(&mut options);
        let file = options.open(partial).map_err(Error::io(partial))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: target.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io(partial)(error)),
            // Who held the lock until now may have moved the file to the target.
            Ok(()) if is_at(&file, partial) => return Ok(file),
            Ok(()) => {}
        }
    }
}

/// The texts of users are nobody else's.
#[cfg(unix)]
fn keep_private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

/// Elsewhere, a new file is as private as its folder.
#[cfg(not(unix))]
fn keep_private(_options: &mut OpenOptions) {}

fn put_number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend((number as u64).to_le_bytes());
}

fn put_bytes(bytes: &mut Vec<u8>, part: &[u8]) {
    put_number(bytes, part.len());
    bytes.extend(part);
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&bytes[..CHECKSUM.start]);
    hasher.update(&bytes[CHECKSUM.end..]);
    hasher.digest()
}

/// The size of the vocabulary, or why the bytes are not those that a memory has written.
fn check_header(bytes: &[u8]) -> std::result::Result<u32, String> {
    let mut header = Cursor(bytes);
    if header.take(MAGIC.len()) != Some(&MAGIC) {
        return Err("it is none".to_owned());
    }
    match header.array().map(u32::from_le_bytes) {
        None | Some(VERSION) => {}
        Some(version) => {
            return Err(format!(
                "it has format version {version}, this version of specds reads {VERSION}"
            ));
        }
    }
    let rest = (header.array(), header.number(), header.number());
    let (Some(vocab_size), Some(length), Some(found)) = rest else {
        return Err(format!("it has {} bytes, fewer than any", bytes.len()));
    };
    if length != bytes.len() as u64 {
        let found = bytes.len();
        return Err(format!("it has {found} bytes where {length} were written"));
    }
    if found != checksum(bytes) {
        return Err("it has changed since it was written".to_owned());
    }
    Ok(u32::from_le_bytes(vocab_size))
}

fn check_tokenizer(
    path: &Path,
    vocab_size: u32,
    tokenizer: &[u8],
    options: &MemoryOptions,
) -> Result<()> {
    let reason = if vocab_size != options.vocab_size {
        let ours = options.vocab_size;
        format!("its vocabulary has {vocab_size} tokens, not {ours}")
    } else if tokenizer != options.tokenizer.as_bytes() {
        let (theirs, ours) = (String::from_utf8_lossy(tokenizer), &options.tokenizer);
        format!("`{theirs}`, not `{ours}`")
    } else {
        return Ok(());
    };
    Err(Error::OtherTokenizer {
        path: path.to_owned(),
        reason,
    })
}

/// What a snapshot holds, where it lies in the file.
struct Contents<'a> {
    width: TokenWidth,
    tokenizer: &'a [u8],
    weights: &'a [u8],
    tenants: Vec<(&'a str, Vec<Document<'a>>)>,
}

struct Document<'a> {
    last_use: u64,
    /// As they are stored.
    tokens: &'a [u8],
}

fn decode(body: &[u8], width: TokenWidth) -> Option<Contents<'_>> {
    let mut rest = Cursor(body);
    let (tokenizer, weights) = (rest.bytes()?, rest.bytes()?);
    let mut tenants = Vec::new();
    for _ in 0..rest.number()? {
        let name = std::str::from_utf8(rest.bytes()?).ok()?;
        let mut documents = Vec::new();
        for _ in 0..rest.number()? {
            let last_use = rest.number().filter(|&last_use| last_use < MAX_USE)?;
            let num_tokens = rest.length().filter(|&length| length > 0)?;
            let tokens = rest.take(num_tokens.checked_mul(width.num_bytes())?)?;
            documents.push(Document { last_use, tokens });
        }
        tenants.push((name, documents));
    }
    rest.0.is_empty().then_some(Contents {
        width,
        tokenizer,
        weights,
        tenants,
    })
}

impl Contents<'_> {
    /// Puts the texts into an empty memory, or says what is wrong with them.
    fn fill(&self, memory: &Memory) -> std::result::Result<(), &'static str> {
        let vocab_size = memory.options().vocab_size;
        let oldest = self.oldest_that_fits(memory.max_bytes());
        let clock = self.documents().map(|document| document.last_use + 1).max();
        for (name, documents) in &self.tenants {
            if check_name(name).is_err() || memory.read(name).is_some() {
                return Err("it names a tenant that cannot be");
            }
            let mut kept = Vec::new();
            for document in documents {
                let tokens = self.width.decode(document.tokens);
                if tokens.iter().any(|&token| token >= vocab_size) {
                    return Err("it holds tokens outside its vocabulary");
                }
                if document.last_use >= oldest {
                    kept.push((tokens, document.last_use));
                }
            }
            if !kept.is_empty() {
                memory.restore(name, Texts::of(&kept), clock.unwrap_or(0));
            }
        }
        memory.shrink();
        Ok(())
    }

    fn documents(&self) -> impl Iterator<Item = &Document<'_>> {
        self.tenants.iter().flat_map(|(_, documents)| documents)
    }

    /// The last use of the oldest document that may fit into `max_bytes`, so that a large snapshot
    /// never takes much more memory than there may be.
    fn oldest_that_fits(&self, max_bytes: usize) -> u64 {
        let size = |document: &Document<'_>| document.tokens.len() / self.width.num_bytes() * 12;
        let uses = self
            .documents()
            .map(|document| (document.last_use, size(document)));
        let mut uses: Vec<_> = uses.collect();
        uses.sort_unstable_by(|a, b| b.cmp(a));
        let mut num_bytes = 0;
        let fits = |&&(_, size): &&(u64, usize)| {
            num_bytes += size;
            num_bytes <= max_bytes
        };
        uses.iter()
            .take_while(fits)
            .last()
            .map_or(u64::MAX, |&(last_use, _)| last_use)
    }
}

/// Bytes that are read from the first one on.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        self.take(LENGTH)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }
}

//! How does a memory outlive its process?
//!
//! A snapshot is one file, little-endian, and means something only as a whole: a header of 32 bytes,
//! with the length and a checksum of all the others, and a [`Body`]. `docs/FORMAT.md` says what each
//! byte means.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::base::error::{Error, Result};
use crate::memory::store::{Memory, MemoryOptions, check_name};
use crate::memory::tenant::Texts;
use crate::storage::files::{lock, sync_parent};
use crate::storage::token_array::TokenWidth;

const MAGIC: [u8; 8] = *b"SPECDS\0M";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 32;
const LENGTH: Range<usize> = 16..24;
const CHECKSUM: Range<usize> = 24..32;
const MAX_USE: u64 = 1 << 63;

/// What a token of text takes in a memory, mostly.
const BYTES_PER_TOKEN: usize = 14;

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
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        keep_private(&mut options);
        let mut file = lock(&partial, path, || options.open(&partial).map(Some))?;
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
        sync_parent(path)
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
        let mut rest = &bytes[HEADER_LEN..];
        let body = Body::take(TokenWidth::of(vocab_size, 0), &mut rest);
        let body = body.filter(|_| rest.is_empty());
        let (tokenizer, (weights, tenants)) = body.ok_or_else(|| unusable(UNFIT))?;
        check_tokenizer(path, vocab_size, tokenizer, memory.options())?;
        fill(&memory, &tenants).map_err(unusable)?;
        Ok((memory, weights.to_vec()))
    }

    fn encode(&self, weights: &[u8]) -> Vec<u8> {
        let options = self.options();
        let width = TokenWidth::of(options.vocab_size, 0);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(options.vocab_size.to_le_bytes());
        bytes.resize(HEADER_LEN, 0);
        options.tokenizer.as_bytes().put(width, &mut bytes);
        weights.put(width, &mut bytes);
        let writing = self.begin_writing();
        (self.num_tenants() as u64).put(width, &mut bytes);
        self.for_each_tenant(|name, texts| {
            let document = |(tokens, last_use)| (last_use, Cow::Borrowed(tokens));
            let documents: Vec<Document> = texts.documents().map(document).collect();
            (name.as_bytes(), documents).put(width, &mut bytes);
        });
        drop(writing);
        let length = bytes.len() as u64;
        bytes[LENGTH].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(&bytes).to_le_bytes();
        bytes[CHECKSUM].copy_from_slice(&checksum);
        bytes
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

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&bytes[..CHECKSUM.start]);
    hasher.update(&bytes[CHECKSUM.end..]);
    hasher.digest()
}

/// The size of the vocabulary, or why the bytes are not those that a memory has written.
fn check_header(bytes: &[u8]) -> std::result::Result<u32, String> {
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        return Err(format!("it has {} bytes, fewer than any", bytes.len()));
    };
    let number = |field: Range<usize>| {
        let bytes = header[field].iter().rev();
        bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    let (version, vocab_size) = (number(8..12), number(12..16));
    let (length, found) = (number(LENGTH), number(CHECKSUM));
    if header[..MAGIC.len()] != MAGIC {
        Err("it is none".to_owned())
    } else if version != u64::from(VERSION) {
        Err(format!(
            "it has format version {version}, this version of specds reads {VERSION}"
        ))
    } else if length != bytes.len() as u64 {
        let found = bytes.len();
        Err(format!("it has {found} bytes where {length} were written"))
    } else if found != checksum(bytes) {
        Err("it has changed since it was written".to_owned())
    } else {
        Ok(u32::try_from(vocab_size).unwrap_or(0))
    }
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

/// What follows the header: tokenizer, weights, tenants.
type Body<'a> = (&'a [u8], (&'a [u8], Vec<Tenant<'a>>));

/// A name, and the documents in the order in which they came.
type Tenant<'a> = (&'a [u8], Vec<Document<'a>>);

/// A last use, and the tokens.
type Document<'a> = (u64, Cow<'a, [u32]>);

/// How a part of a snapshot lies in the file: one after the other, those of a list after their number.
trait Part<'a>: Sized {
    fn put(&self, width: TokenWidth, bytes: &mut Vec<u8>);

    /// Cuts it off from the front of what is left.
    fn take(width: TokenWidth, rest: &mut &'a [u8]) -> Option<Self>;
}

impl<'a> Part<'a> for u64 {
    fn put(&self, _width: TokenWidth, bytes: &mut Vec<u8>) {
        bytes.extend(self.to_le_bytes());
    }

    fn take(_width: TokenWidth, rest: &mut &'a [u8]) -> Option<Self> {
        let number;
        (number, *rest) = rest.split_first_chunk()?;
        Some(Self::from_le_bytes(*number))
    }
}

impl<'a> Part<'a> for &'a [u8] {
    fn put(&self, width: TokenWidth, bytes: &mut Vec<u8>) {
        (self.len() as u64).put(width, bytes);
        bytes.extend(*self);
    }

    fn take(width: TokenWidth, rest: &mut &'a [u8]) -> Option<Self> {
        let length = u64::take(width, rest)?.try_into().ok()?;
        rest.split_off(..length)
    }
}

impl<'a> Part<'a> for Cow<'a, [u32]> {
    fn put(&self, width: TokenWidth, bytes: &mut Vec<u8>) {
        (self.len() as u64).put(width, bytes);
        width.encode(self, bytes);
    }

    fn take(width: TokenWidth, rest: &mut &'a [u8]) -> Option<Self> {
        let length = usize::try_from(u64::take(width, rest)?).ok()?;
        let tokens = rest.split_off(..length.checked_mul(width.num_bytes())?)?;
        Some(Cow::Owned(width.decode(tokens)))
    }
}

impl<'a, T: Part<'a>> Part<'a> for Vec<T> {
    fn put(&self, width: TokenWidth, bytes: &mut Vec<u8>) {
        (self.len() as u64).put(width, bytes);
        for part in self {
            part.put(width, bytes);
        }
    }

    fn take(width: TokenWidth, rest: &mut &'a [u8]) -> Option<Self> {
        let length = u64::take(width, rest)?;
        (0..length).map(|_| T::take(width, rest)).collect()
    }
}

impl<'a, A: Part<'a>, B: Part<'a>> Part<'a> for (A, B) {
    fn put(&self, width: TokenWidth, bytes: &mut Vec<u8>) {
        self.0.put(width, bytes);
        self.1.put(width, bytes);
    }

    fn take(width: TokenWidth, rest: &mut &'a [u8]) -> Option<Self> {
        Some((A::take(width, rest)?, B::take(width, rest)?))
    }
}

const UNFIT: &str = "its parts do not fit together";

/// Puts texts into an empty memory, or says what is wrong with them.
fn fill(memory: &Memory, tenants: &[Tenant<'_>]) -> std::result::Result<(), &'static str> {
    let vocab_size = memory.options().vocab_size;
    let documents = || tenants.iter().flat_map(|(_, documents)| documents);
    if documents().any(|(last_use, tokens)| *last_use >= MAX_USE || tokens.is_empty()) {
        return Err(UNFIT);
    }
    let mut tokens = documents().flat_map(|(_, tokens)| tokens.iter());
    if tokens.any(|&token| token >= vocab_size) {
        return Err("it holds tokens outside its vocabulary");
    }
    let clock = documents().map(|(last_use, _)| last_use + 1).max();
    let oldest = oldest_that_fits(documents(), memory.max_bytes());
    for (name, documents) in tenants {
        let name = std::str::from_utf8(name).map_err(|_| UNFIT)?;
        if check_name(name).is_err() || memory.read(name).is_some() {
            return Err("it names a tenant that cannot be");
        }
        let kept = documents.iter().filter(|(last_use, _)| *last_use >= oldest);
        let kept: Vec<_> = kept.map(|(last_use, tokens)| (tokens, *last_use)).collect();
        if !kept.is_empty() {
            memory.restore(name, Texts::of(&kept), clock.unwrap_or(0));
        }
    }
    memory.make_room(0);
    Ok(())
}

/// The last use of the oldest document that may fit into `max_bytes`, so that a large snapshot
/// never takes much more memory than there may be.
fn oldest_that_fits<'a>(
    documents: impl Iterator<Item = &'a Document<'a>>,
    max_bytes: usize,
) -> u64 {
    let mut uses: Vec<_> = documents
        .map(|(last_use, tokens)| (*last_use, tokens.len() * BYTES_PER_TOKEN))
        .collect();
    uses.sort_unstable_by(|a, b| b.cmp(a));
    let mut num_bytes = 0;
    let fits = |&&(_, size): &&(u64, usize)| {
        num_bytes += size;
        num_bytes <= max_bytes
    };
    let oldest = uses.iter().take_while(fits).last();
    oldest.map_or(u64::MAX, |&(last_use, _)| last_use)
}

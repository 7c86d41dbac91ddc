//! What does a file of a datastore look like?
//!
//! A section is one little-endian array, written once and then mapped: a header of 64 bytes, zeros up
//! to a page, the elements, and eight zero bytes, so that any element can be read as part of eight.
//! `docs/FORMAT.md` has every byte.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::base::error::{Error, Result};
use crate::storage::files::{self, create_anew, is_ours};

/// The format version that is written and read.
pub const FORMAT_VERSION: u16 = 3;

const MAGIC: [u8; 8] = *b"SPECDS\0\x01";
const ENDIAN_MARK: u32 = 0x0102_0304;
const HEADER_LEN: usize = 64;
const PAYLOAD_OFFSET: usize = 4096;
const TAIL_LEN: usize = 8;

/// No page is smaller.
const PAGE_LEN: usize = 4096;

/// Every 256th suffix has a key. With rarer keys a lookup reads more tokens, with denser ones the
/// keys leave the processor's cache: for 165 M tokens they take 5 MB, and a lookup 1.4 µs (2 µs at
/// every 64th).
pub(crate) const KEY_STRIDE: usize = 256;

/// The number of tokens in a key.
pub(crate) const KEY_LEN: usize = 4;

/// The bits of a stored position among `num_tokens`: ceil(log2 n), at least 1.
pub(crate) fn position_bits(num_tokens: u64) -> u16 {
    let bits = u64::BITS - num_tokens.saturating_sub(1).leading_zeros();
    u16::try_from(bits.max(1)).expect("64 bits at most")
}

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tokens = 1,
    Suffixes = 2,
    Firsts = 3,
    Keys = 4,
    Documents = 5,
}

impl Kind {
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens.bin",
            Self::Suffixes => "suffixes.bin",
            Self::Firsts => "firsts.bin",
            Self::Keys => "keys.bin",
            Self::Documents => "documents.bin",
        }
    }
}

/// The size and checksum of a section, as the manifest and the section's header state it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionManifest {
    /// The size of an element in bits.
    pub element_bits: u16,
    /// The number of elements.
    pub count: u64,
    /// The length of the payload in bytes.
    pub num_bytes: u64,
    /// The xxh3-64 of the payload.
    pub xxh3: u64,
}

impl SectionManifest {
    /// The length of the file that holds the section, in bytes.
    pub fn file_len(&self) -> u64 {
        self.num_bytes
            .saturating_add((PAYLOAD_OFFSET + TAIL_LEN) as u64)
    }
}

/// Where a section belongs: files of other shards are refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) shard_id: u128,
    pub(crate) kind: Kind,
}

fn encode(place: Place, section: &SectionManifest) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    header[10..12].copy_from_slice(&(place.kind as u16).to_le_bytes());
    header[12..16].copy_from_slice(&ENDIAN_MARK.to_le_bytes());
    header[16..32].copy_from_slice(&place.shard_id.to_be_bytes());
    header[32..40].copy_from_slice(&section.count.to_le_bytes());
    header[40..48].copy_from_slice(&section.num_bytes.to_le_bytes());
    header[48..56].copy_from_slice(&section.xxh3.to_le_bytes());
    header[56..58].copy_from_slice(&section.element_bits.to_le_bytes());
    let checksum = xxh3_64(&header[..60]).to_le_bytes();
    header[60..64].copy_from_slice(&checksum[..4]);
    header
}

/// Whether a file is of the version that is read.
pub(crate) fn check_version(path: &Path, found: u32) -> Result<()> {
    let expected = FORMAT_VERSION.into();
    if found == expected {
        return Ok(());
    }
    Err(Error::Version {
        path: path.to_owned(),
        expected,
        found,
    })
}

/// Whether a file has the length that it should have.
pub(crate) fn check_length(path: &Path, expected: u64, found: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Truncated {
        path: path.to_owned(),
        expected,
        found,
    })
}

/// Says why a header is not the expected one; what is wrong with the file itself comes first.
fn check_header(path: &Path, found: &[u8; HEADER_LEN], expected: &[u8; HEADER_LEN]) -> Result<()> {
    if found[0..8] != MAGIC {
        return Err(Error::corrupt(path, "it is not a section file"));
    }
    check_version(path, u16::from_le_bytes([found[8], found[9]]).into())?;
    if found[60..64] != xxh3_64(&found[..60]).to_le_bytes()[..4] {
        return Err(Error::Checksum(path.to_owned()));
    }
    if found != expected {
        return Err(Error::Mismatch(path.to_owned()));
    }
    Ok(())
}

/// A mapped section file.
#[derive(Debug)]
pub(crate) struct Section {
    path: PathBuf,
    map: Mmap,
    payload_end: usize,
    xxh3: u64,
}

impl Section {
    /// Maps a section of a finished datastore. O(1): the payload is not read.
    pub(crate) fn open(folder: &Path, place: Place, section: &SectionManifest) -> Result<Self> {
        let path = folder.join(place.kind.file_name());
        let map = map(&path)?;
        if let Some(header) = map.first_chunk() {
            check_header(&path, header, &encode(place, section))?;
        }
        Self::new(path, map, section)
    }

    /// Maps a section that was just written and has no header yet.
    pub(crate) fn reopen(folder: &Path, kind: Kind, section: &SectionManifest) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let map = map(&path)?;
        Self::new(path, map, section)
    }

    /// Maps the first bytes of the payload of a section that is being written.
    pub(crate) fn begun(folder: &Path, kind: Kind, num_bytes: u64) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let map = map(&path)?;
        let (length, found) = (num_bytes + PAYLOAD_OFFSET as u64, map.len() as u64);
        check_length(&path, length, found.min(length))?;
        Ok(Self {
            path,
            payload_end: PAYLOAD_OFFSET + usize::try_from(num_bytes).unwrap_or(0),
            map,
            xxh3: 0,
        })
    }

    fn new(path: PathBuf, map: Mmap, section: &SectionManifest) -> Result<Self> {
        check_length(&path, section.file_len(), map.len() as u64)?;
        let payload_end = map.len() - TAIL_LEN;
        let padding = [&map[HEADER_LEN..PAYLOAD_OFFSET], &map[payload_end..]];
        if padding
            .iter()
            .any(|bytes| bytes.iter().any(|&byte| byte != 0))
        {
            return Err(Error::corrupt(&path, "its padding is not zero"));
        }
        Ok(Self {
            path,
            map,
            payload_end,
            xxh3: section.xxh3,
        })
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.map[PAYLOAD_OFFSET..self.payload_end]
    }

    /// The payload and the eight zero bytes after it.
    pub(crate) fn padded_payload(&self) -> &[u8] {
        &self.map[PAYLOAD_OFFSET..]
    }

    /// Tells the system whether what is read lies anywhere, where that can be told: else a lookup in a
    /// file that is not in memory reads 128 KiB around every probe (187 ms against 3.1 ms for a draft).
    pub(crate) fn advise_random(&self, is_random: bool) -> Result<()> {
        #[cfg(unix)]
        {
            let advice = if is_random {
                memmap2::Advice::Random
            } else {
                memmap2::Advice::Sequential
            };
            self.map.advise(advice).map_err(Error::io(&self.path))?;
        }
        let _ = is_random;
        Ok(())
    }

    /// Asks for some bytes of the payload and does not wait for them, where the system takes such
    /// wishes: else they are fetched when they are read.
    pub(crate) fn will_need(&self, bytes: Range<usize>) {
        let end = bytes.end.min(self.payload().len());
        let length = end.saturating_sub(bytes.start);
        #[cfg(unix)]
        if length > 0 {
            let (advice, start) = (memmap2::Advice::WillNeed, PAYLOAD_OFFSET + bytes.start);
            let _ = self.map.advise_range(advice, start, length);
        }
        let _ = length;
    }

    /// Brings the section into memory: what the system does not do at once is read here.
    pub(crate) fn warm(&self) -> Result<()> {
        #[cfg(target_os = "linux")]
        if self.map.advise(memmap2::Advice::PopulateRead).is_ok() {
            return Ok(());
        }
        #[cfg(unix)]
        self.map
            .advise(memmap2::Advice::WillNeed)
            .map_err(Error::io(&self.path))?;
        std::hint::black_box(
            self.map
                .iter()
                .step_by(PAGE_LEN)
                .fold(0, |sum, byte| sum ^ byte),
        );
        Ok(())
    }

    /// Reads the whole payload and compares its checksum.
    pub(crate) fn verify(&self) -> Result<()> {
        if xxh3_64(self.payload()) == self.xxh3 {
            Ok(())
        } else {
            Err(Error::Checksum(self.path.clone()))
        }
    }

    pub(crate) fn corrupt(&self, reason: impl Into<String>) -> Error {
        Error::corrupt(&self.path, reason)
    }
}

fn map(path: &Path) -> Result<Mmap> {
    files::map(&files::open(path)?).map_err(Error::io(path))
}

/// Writes one section file: payload now, header once the whole datastore is known.
pub(crate) struct SectionWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl SectionWriter {
    /// Starts a section; what is there of an earlier attempt is replaced.
    pub(crate) fn create(folder: &Path, kind: Kind) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let file = create_anew(&path).map_err(Error::io(&path))?;
        let mut writer = Self::new(path, file);
        writer.write(&[0; PAYLOAD_OFFSET])?;
        Ok(writer)
    }

    /// Goes on after the first `num_bytes` of a payload that was written before; what lies behind
    /// them is cut off.
    pub(crate) fn resume(folder: &Path, kind: Kind, num_bytes: u64) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let length = num_bytes.saturating_add(PAYLOAD_OFFSET as u64);
        let open = || {
            let mut file = File::options().write(true).open(&path)?;
            let found = file.metadata()?.len().min(length);
            file.set_len(found)?;
            file.seek(SeekFrom::End(0))?;
            Ok((file, found))
        };
        let (file, found) = open().map_err(Error::io(&path))?;
        check_length(&path, length, found)?;
        Ok(Self::new(path, file))
    }

    fn new(path: PathBuf, file: File) -> Self {
        let file = BufWriter::with_capacity(1 << 16, file);
        Self { path, file }
    }

    /// Waits until what was written is on the disk.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let synced = self.file.flush();
        synced
            .and_then(|()| self.file.get_ref().sync_data())
            .map_err(Error::io(&self.path))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io(&self.path))
    }

    /// Ends the payload, and reads it once for its checksum.
    pub(crate) fn finish(mut self, element_bits: u16, count: u64) -> Result<SectionManifest> {
        self.write(&[0; TAIL_LEN])?;
        self.file.flush().map_err(Error::io(&self.path))?;
        let map = map(&self.path)?;
        let payload = &map[PAYLOAD_OFFSET..map.len() - TAIL_LEN];
        Ok(SectionManifest {
            element_bits,
            count,
            num_bytes: payload.len() as u64,
            xxh3: xxh3_64(payload),
        })
    }
}

/// Puts a section of the shard in `from` into the folder `to`: a link to a file of this user, which
/// no other can change later; else a copy, if it is what was written.
pub(crate) fn link(from: &Path, to: &Path, place: Place, section: &SectionManifest) -> Result<()> {
    let name = place.kind.file_name();
    let path = from.join(name);
    let found = fs::symlink_metadata(&path).map_err(Error::io(&path))?;
    if found.is_file() && is_ours(&found) && fs::hard_link(&path, to.join(name)).is_ok() {
        return Ok(());
    }
    Section::open(from, place, section)?.verify()?;
    let (mut source, copy) = (files::open(&path)?, to.join(name));
    let copied = create_anew(&copy).and_then(|mut file| {
        io::copy(&mut source, &mut file)?;
        file.sync_all()
    });
    copied.map_err(Error::io(&copy))
}

/// Writes the header of a finished section and waits until the whole file is on the disk.
pub(crate) fn stamp(folder: &Path, place: Place, section: &SectionManifest) -> Result<()> {
    let path = folder.join(place.kind.file_name());
    let write = || {
        let mut file = File::options().write(true).open(&path)?;
        file.write_all(&encode(place, section))?;
        file.sync_all()
    };
    write().map_err(Error::io(&path))
}

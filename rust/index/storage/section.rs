//! Sections, the files of a shard.
//!
//! A section is one little-endian array, written once and then mapped. Eight zero bytes follow the elements, so that
//! any element can be read as part of an eight-byte word. `shard.json` has its checksum and the counts that determine
//! its length. `docs/FORMAT.md` specifies every byte.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytemuck::AnyBitPattern;
use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;

use crate::base::error::{Error, Result};
use crate::storage::files::{self, create_anew, is_ours};

pub const FORMAT_VERSION: u16 = 5;

pub(crate) const TAIL_LEN: usize = 8;

/// Every 256th suffix has a key. With fewer keys a lookup reads more tokens, and more keys do not fit the processor's
/// cache: for 165 M tokens they take 5 MB and a lookup 1.4 µs (2 µs with a key for every 64th).
pub(crate) const KEY_STRIDE: usize = 256;

pub(crate) const KEY_LEN: usize = 4;

/// Returns the bits of a position among `num_tokens`: ceil(log2 n), at least 1.
pub(crate) fn position_bits(num_tokens: u64) -> u16 {
    let bits = u64::BITS - num_tokens.saturating_sub(1).leading_zeros();
    u16::try_from(bits.max(1)).expect("64 bits at most")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SectionKind {
    Tokens,
    Suffixes,
    Firsts,
    Keys,
    Documents,
    Sources,
}

impl SectionKind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Tokens, Self::Suffixes, Self::Firsts, Self::Keys, Self::Documents, Self::Sources];

    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens.bin",
            Self::Suffixes => "suffixes.bin",
            Self::Firsts => "firsts.bin",
            Self::Keys => "keys.bin",
            Self::Documents => "documents.bin",
            Self::Sources => "sources.bin",
        }
    }

    /// Returns whether a shard may be without the section: one whose documents have no names.
    pub(crate) fn is_optional(self) -> bool {
        self == Self::Sources
    }
}

pub(crate) fn check_version(path: &Path, found: u32) -> Result<()> {
    let expected = FORMAT_VERSION.into();
    if found == expected {
        return Ok(());
    }
    Err(Error::Version { path: path.to_owned(), expected, found })
}

pub(crate) fn check_length(path: &Path, expected: u64, found: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Truncated { path: path.to_owned(), expected, found })
}

#[derive(Debug)]
pub(crate) struct Section {
    path: PathBuf,
    map: Mmap,
    num_bytes: usize,
    pub(crate) xxh3: u64,
}

impl Section {
    /// Maps a section and checks its length. O(1): the payload is not read.
    pub(crate) fn open(
        folder: &Path,
        kind: SectionKind,
        num_bytes: u64,
        xxh3: u64,
    ) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let map = map(&path)?;
        let length = num_bytes.saturating_add(TAIL_LEN as u64);
        check_length(&path, length, map.len() as u64)?;
        if !map.ends_with(&[0; TAIL_LEN]) {
            return Err(Error::corrupt(&path, "its padding is not zero"));
        }
        Ok(Self { path, num_bytes: map.len() - TAIL_LEN, map, xxh3 })
    }

    /// Maps the beginning of a section that is being written.
    pub(crate) fn begun(folder: &Path, kind: SectionKind, num_bytes: u64) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let map = map(&path)?;
        check_length(&path, num_bytes, num_bytes.min(map.len() as u64))?;
        Ok(Self { path, map, num_bytes: usize::try_from(num_bytes).unwrap_or(0), xxh3: 0 })
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.map[..self.num_bytes]
    }

    /// Returns the payload as numbers, which are little-endian in memory too. It starts at a page, so it is aligned.
    pub(crate) fn numbers<T: AnyBitPattern>(&self) -> &[T] {
        bytemuck::try_cast_slice(self.payload()).unwrap_or_default()
    }

    pub(crate) fn padded_payload(&self) -> &[u8] {
        &self.map
    }

    /// Advises the operating system that reads will be random, or sequential. Without the advice, a lookup in a
    /// file that is not in memory reads 128 KiB around every probe (187 ms instead of 3.1 ms for a draft).
    pub(crate) fn advise_random(&self, is_random: bool) -> Result<()> {
        #[cfg(unix)]
        {
            let advice =
                if is_random { memmap2::Advice::Random } else { memmap2::Advice::Sequential };
            self.map.advise(advice).map_err(Error::io(&self.path))?;
        }
        let _ = is_random;
        Ok(())
    }

    /// Requests a range of the payload without waiting for it.
    pub(crate) fn will_need(&self, bytes: Range<usize>) {
        let end = bytes.end.min(self.payload().len());
        let length = end.saturating_sub(bytes.start);
        #[cfg(unix)]
        if length > 0 {
            let (advice, start) = (memmap2::Advice::WillNeed, bytes.start);
            let _ = self.map.advise_range(advice, start, length);
        }
        let _ = length;
    }

    pub(crate) fn warm(&self) {
        std::hint::black_box(xxh3_64(self.payload()));
    }

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

#[derive(Debug)]
pub(crate) struct SectionWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl SectionWriter {
    /// Creates a section, and replaces that of an earlier attempt.
    pub(crate) fn create(folder: &Path, kind: SectionKind) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let file = create_anew(&path).map_err(Error::io(&path))?;
        Ok(Self::new(path, file))
    }

    /// Resumes a section after `num_bytes` of its payload, and truncates the rest.
    pub(crate) fn resume(folder: &Path, kind: SectionKind, num_bytes: u64) -> Result<Self> {
        let path = folder.join(kind.file_name());
        let open = || {
            let mut file = File::options().write(true).open(&path)?;
            let found = file.metadata()?.len().min(num_bytes);
            file.set_len(found)?;
            file.seek(SeekFrom::End(0))?;
            Ok((file, found))
        };
        let (file, found) = open().map_err(Error::io(&path))?;
        check_length(&path, num_bytes, found)?;
        Ok(Self::new(path, file))
    }

    fn new(path: PathBuf, file: File) -> Self {
        let file = BufWriter::with_capacity(1 << 16, file);
        Self { path, file }
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        let synced = self.file.flush();
        synced.and_then(|()| self.file.get_ref().sync_data()).map_err(Error::io(&self.path))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io(&self.path))
    }

    /// Reads the payload once for its checksum and maps it.
    pub(crate) fn finish(mut self) -> Result<Section> {
        self.write(&[0; TAIL_LEN])?;
        self.file.flush().map_err(Error::io(&self.path))?;
        let map = map(&self.path)?;
        let num_bytes = map.len() - TAIL_LEN;
        Ok(Section { xxh3: xxh3_64(&map[..num_bytes]), path: self.path, map, num_bytes })
    }
}

/// Links a section into the folder `to`. A file of another user, who could change it later, is verified and copied.
pub(crate) fn link(section: &Section, to: &Path, kind: SectionKind) -> Result<()> {
    let (path, to) = (&section.path, to.join(kind.file_name()));
    let found = fs::symlink_metadata(path).map_err(Error::io(path))?;
    if found.is_file() && is_ours(&found) && fs::hard_link(path, &to).is_ok() {
        return Ok(());
    }
    section.verify()?;
    let copied = create_anew(&to).and_then(|mut file| {
        file.write_all(&section.map)?;
        file.sync_all()
    });
    copied.map_err(Error::io(&to))
}

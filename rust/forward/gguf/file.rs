//! An open file: its metadata and tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;

use super::blocks::BlockType;
use super::bytes::Bytes;
use super::reader::{Entry, Reader, Tables, Value};
use super::split::{self, Split};
use crate::error::{Error, Result};

/// A matrix or vector; `rows` is the number of its outputs.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The type of its blocks.
    pub kind: BlockType,
    /// The number of outputs of a matrix, and 1 for a vector.
    pub rows: usize,
    /// The number of inputs of a matrix, and the size of a vector.
    pub columns: usize,
    /// The blocks, row after row.
    pub bytes: Bytes,
}

impl Tensor {
    /// Returns the weights as numbers, row after row.
    pub fn numbers(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; self.rows * self.columns];
        self.kind.dequantize(&self.bytes, &mut numbers);
        numbers
    }

    /// Writes the weights of a row as numbers.
    pub(crate) fn embed(&self, row: usize, numbers: &mut [f32]) {
        let length = self.bytes.len() / self.rows.max(1);
        self.kind.dequantize(&self.bytes[row * length..][..length], numbers);
    }

    /// Returns some of its rows, `None` where they are not all there.
    pub(crate) fn part(&self, rows: Range<usize>) -> Option<Self> {
        let length = self.kind.row_bytes(self.columns)?;
        let bytes = rows.start.checked_mul(length)?..rows.end.checked_mul(length)?;
        let bytes = self.bytes.slice(bytes)?;
        Some(Self { rows: rows.len(), bytes, ..*self })
    }

    /// Returns a copy of some rows, in another order.
    pub(crate) fn select(&self, rows: impl Iterator<Item = usize>) -> Self {
        let length = self.bytes.len() / self.rows.max(1);
        let rows: Vec<_> = rows.map(|row| &self.bytes[row * length..][..length]).collect();
        Self { rows: rows.len(), bytes: Bytes::new(rows.concat()), ..*self }
    }
}

/// An open file, or all parts of a split one.
#[derive(Debug)]
pub struct Gguf {
    /// The path that was opened.
    path: PathBuf,
    /// The files, in the order of their parts; none for arrays.
    parts: Vec<MappedFile>,
    /// The fields, by their names.
    pub metadata: BTreeMap<String, Value>,
    /// The tensors of files by their names, each with the index of its part.
    tensors: BTreeMap<String, (usize, Entry)>,
    /// The tensors that were given apart from a file, by their names.
    arrays: BTreeMap<String, Tensor>,
}

/// Path, size, time and checksum, by which a file is known again.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// The canonical path of the first part.
    pub(crate) path: PathBuf,
    /// The bytes of all parts.
    pub(crate) num_bytes: u64,
    /// The latest time at which a part was modified.
    pub(crate) modified: SystemTime,
    /// A checksum of the sizes of all parts, their times, metadata and tables of tensors.
    pub(crate) checksum: u64,
}

/// A file of tensors.
#[derive(Debug)]
struct MappedFile {
    /// The path of the file.
    path: PathBuf,
    /// The time of modification when it was opened.
    modified: Option<SystemTime>,
    /// The bytes of the file.
    map: Arc<Mmap>,
    /// The index of the first byte of the tensors.
    data: usize,
}

impl Gguf {
    /// Opens a file and reads its metadata and the table of its tensors, not the tensors. A part of a split file
    /// opens them all.
    ///
    /// # Errors
    /// [`Error::NotGguf`], [`Error::Corrupt`] if the tables contradict the file, [`Error::Split`] if parts are
    /// missing or do not belong together, or an I/O error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let opened = Self::read(path.as_ref().to_owned())?;
        let Some(split) = Split::of(&opened.metadata).map_err(|reason| opened.corrupt(reason))?
        else {
            return Ok(opened);
        };
        let paths = split.paths(&opened.path)?;
        let mut joined = opened;
        for (number, path) in paths.into_iter().enumerate() {
            let part = Self::read(path)?;
            split.check(number, &part.path, &part.metadata)?;
            if number == 0 {
                joined = part;
                continue;
            }
            for (name, (_, entry)) in part.tensors {
                if joined.tensors.contains_key(&name) {
                    let reason = format!("and an earlier part has its tensor {name}");
                    return Err(split::error(part.path, reason));
                }
                joined.tensors.insert(name, (number, entry));
            }
            joined.parts.extend(part.parts);
        }
        let found = joined.tensors.len();
        match split.num_tensors {
            Some(number) if number != found => {
                let reason = format!("and all parts have {found} tensors instead of {number}");
                Err(split::error(joined.path, reason))
            }
            _ => Ok(joined),
        }
    }

    /// Reads one file.
    fn read(path: PathBuf) -> Result<Self> {
        let io = |source| Error::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        let found = file.metadata().map_err(io)?;
        if !found.is_file() {
            return Err(Error::NotGguf(path));
        }
        #[expect(unsafe_code, reason = "tensors stay in the file")]
        // SAFETY: the map is read-only, and its bytes are numbers and texts, valid whatever they are. A file
        // that is cut while it is open ends the process, as with every reader of GGUF by a memory map.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let mut reader = Reader::new(&map);
        let Some(header) = reader.header() else {
            return Err(Error::NotGguf(path));
        };
        let read = reader.tables(header).and_then(|tables| {
            separate(&tables.tensors, map.len().saturating_sub(tables.data))?;
            Ok(tables)
        });
        let Tables { metadata, tensors, data } = match read {
            Ok(tables) => tables,
            Err(reason) => return Err(Error::Corrupt { path, reason }),
        };
        let tensors = tensors.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
        let modified = found.modified().ok();
        let parts = vec![MappedFile { path: path.clone(), modified, map: Arc::new(map), data }];
        Ok(Self { path, parts, metadata, tensors, arrays: BTreeMap::new() })
    }

    /// Creates an in-memory file from metadata and arrays; `name` is its path in errors.
    pub fn of_arrays(
        name: &str,
        metadata: BTreeMap<String, Value>,
        arrays: BTreeMap<String, Tensor>,
    ) -> Self {
        Self { path: name.into(), parts: Vec::new(), metadata, tensors: BTreeMap::new(), arrays }
    }

    /// Returns `None` for arrays, and if the system does not know the time of the file.
    pub(crate) fn source(&self) -> Option<SourceFile> {
        let mut of_parts = Vec::new();
        let mut source = SourceFile {
            path: self.parts.first()?.path.canonicalize().ok()?,
            num_bytes: 0,
            modified: SystemTime::UNIX_EPOCH,
            checksum: 0,
        };
        for part in &self.parts {
            let (length, modified) = (part.map.len() as u64, part.modified?);
            let time = modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            of_parts.extend(length.to_le_bytes());
            of_parts.extend(time.as_nanos().to_le_bytes());
            of_parts.extend(xxh3_64(part.map.get(..part.data)?).to_le_bytes());
            source.num_bytes += length;
            source.modified = source.modified.max(modified);
        }
        source.checksum = xxh3_64(&of_parts);
        Some(source)
    }

    /// The names of all tensors.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().chain(self.arrays.keys()).map(String::as_str)
    }

    /// The names of all tensors with the names of their types and their bytes, 0 for an unknown type.
    pub fn tensor_sizes(&self) -> Vec<(&str, String, u64)> {
        let of_file = self.tensors.iter().map(|(name, (_, entry))| {
            let Some(kind) = BlockType::from_number(entry.kind) else {
                return (name.as_str(), BlockType::name_of(entry.kind), 0);
            };
            let blocks = (entry.columns / kind.block_size() as u64).saturating_mul(entry.rows);
            let bytes = blocks.saturating_mul(kind.block_bytes() as u64);
            (name.as_str(), format!("{kind:?}").replace('K', "_K"), bytes)
        });
        of_file.collect()
    }

    /// The number of all weights.
    pub fn num_weights(&self) -> u64 {
        let of_file =
            self.tensors.values().map(|(_, entry)| entry.rows.saturating_mul(entry.columns));
        let of_arrays = self.arrays.values();
        let of_arrays = of_arrays.map(|tensor| tensor.rows.saturating_mul(tensor.columns) as u64);
        of_file.chain(of_arrays).fold(0, u64::saturating_add)
    }

    /// Returns a text of the metadata, `None` for a field that is missing or no text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a whole number of the metadata, `None` for a field that is missing, negative or none.
    pub fn count(&self, key: &str) -> Option<usize> {
        match self.metadata.get(key)? {
            Value::Int(number) => usize::try_from(*number).ok(),
            Value::Uint(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns a float of the metadata, `None` for a field that is missing or no float.
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key)? {
            Value::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the tensor of this name, `None` where the file has none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type that is not computed here, and [`Error::Corrupt`] if the file ends early.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        let Some((part, entry)) = self.tensors.get(name) else {
            return Ok(self.arrays.get(name).cloned());
        };
        let part = &self.parts[*part];
        let Some(kind) = BlockType::from_number(entry.kind) else {
            let kind = BlockType::name_of(entry.kind);
            return Err(self.unsupported(format!("has the tensor {name} in the type {kind}")));
        };
        let corrupt = |reason: &str| Error::Corrupt {
            path: part.path.clone(),
            reason: format!("the tensor {name} {reason}"),
        };
        let (Ok(rows), Ok(columns)) = (usize::try_from(entry.rows), usize::try_from(entry.columns))
        else {
            return Err(corrupt("is too large"));
        };
        let row = kind.row_bytes(columns).ok_or_else(|| corrupt("has a part of a block"))?;
        let bytes = usize::try_from(entry.offset).ok().and_then(|offset| {
            let start = part.data.checked_add(offset)?;
            Bytes::part(&part.map, start..start.checked_add(row.checked_mul(rows)?)?)
        });
        let bytes = bytes.ok_or_else(|| corrupt("is not all in the file"))?;
        Ok(Some(Tensor { kind, rows, columns, bytes }))
    }

    /// Gives the memory of bytes of the file back; they are read again where they are used again.
    pub(crate) fn release(&self, bytes: &[u8]) {
        #[cfg(unix)]
        for part in &self.parts {
            let start = bytes.as_ptr().addr().wrapping_sub(part.map.as_ptr().addr());
            if start.saturating_add(bytes.len()) > part.map.len() {
                continue; // of another part, or a copy of some rows
            }
            #[expect(unsafe_code, reason = "the only way to release parts of a map")]
            // SAFETY: the map is shared and read-only, so that its pages have the same bytes when they are read again.
            let released = unsafe {
                part.map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    start,
                    bytes.len(),
                )
            };
            drop(released); // it is a hint
        }
    }

    pub(crate) fn corrupt(&self, reason: impl Into<String>) -> Error {
        Error::Corrupt { path: self.path.clone(), reason: reason.into() }
    }

    pub(super) fn layout(&self, reason: String) -> Error {
        Error::Layout { path: self.path.clone(), reason }
    }

    pub(crate) fn unsupported(&self, reason: impl Into<String>) -> Error {
        Error::Unsupported { path: self.path.clone(), reason: reason.into() }
    }
}

/// Checks that tensors lie within `left` bytes and apart from each other, so that work and memory are bounded by the
/// size of the file.
fn separate(tensors: &BTreeMap<String, Entry>, left: usize) -> std::result::Result<(), String> {
    let outside = |name: &str| format!("the tensor {name} is not all in the file");
    let mut places = Vec::with_capacity(tensors.len());
    for (name, entry) in tensors {
        let kind = BlockType::from_number(entry.kind);
        let row = kind.and_then(|kind| kind.row_bytes(usize::try_from(entry.columns).ok()?));
        // A type or a row that is not known is an error of `tensor`.
        let length = match row {
            Some(row) => (row as u64).checked_mul(entry.rows).ok_or_else(|| outside(name))?,
            None => 1,
        };
        let end = entry.offset.checked_add(length).filter(|&end| end <= left as u64);
        if end.is_none() || entry.offset >= left as u64 {
            return Err(outside(name));
        }
        if length > 0 {
            places.push((entry.offset, end, name));
        }
    }
    places.sort_unstable();
    match places.windows(2).find(|pair| pair[0].1 > Some(pair[1].0)) {
        Some(pair) => Err(format!("the tensors {} and {} overlap", pair[0].2, pair[1].2)),
        None => Ok(()),
    }
}

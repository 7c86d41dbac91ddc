//! An open file: its metadata and tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

use super::blocks::BlockType;
use super::bytes::Bytes;
use super::reader::{Entry, Reader, Value};
use crate::error::{Error, Result};

/// A matrix or vector; `rows` is the number of its outputs.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub kind: BlockType,
    pub rows: usize,
    pub columns: usize,
    pub bytes: Bytes,
}

impl Tensor {
    /// Returns the weights as numbers, row after row.
    pub fn numbers(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; self.rows * self.columns];
        self.kind.dequantize(&self.bytes, &mut numbers);
        numbers
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

/// An open file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Arc<Mmap>,
    pub metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Entry>,
    data: usize,
    arrays: BTreeMap<String, Tensor>,
}

impl Gguf {
    /// Opens a file and reads its metadata and the table of its tensors, not the tensors.
    ///
    /// # Errors
    /// [`Error::NotGguf`], [`Error::Corrupt`] if the metadata contradict the file, or an I/O error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let io = |source| Error::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(Error::NotGguf(path.to_owned()));
        }
        #[expect(unsafe_code, reason = "tensors stay in the file")]
        // SAFETY: the map is read-only, and its bytes are numbers and texts, valid whatever they are. A file
        // that is cut while it is open ends the process, as with every reader of GGUF by a memory map.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Self::read(path.to_owned(), map)
    }

    fn read(path: PathBuf, map: Mmap) -> Result<Self> {
        let mut reader = Reader::new(&map);
        let Some(header) = reader.header() else {
            return Err(Error::NotGguf(path));
        };
        let (metadata, tensors, data) = match reader.tables(header) {
            Ok(tables) => tables,
            Err(reason) => return Err(Error::Corrupt { path, reason }),
        };
        let left = map.len().saturating_sub(data) as u64;
        if let Some((name, _)) = tensors.iter().find(|(_, entry)| entry.offset >= left) {
            let reason = format!("the tensor {name} is not all in the file");
            return Err(Error::Corrupt { path, reason });
        }
        Ok(Self { path, map: Arc::new(map), metadata, tensors, data, arrays: BTreeMap::new() })
    }

    /// Returns what a file with these fields and tensors would be; `name` is its path in errors.
    ///
    /// # Errors
    /// An I/O error if the system gives no memory.
    pub fn of_arrays(
        name: &str,
        metadata: BTreeMap<String, Value>,
        arrays: BTreeMap<String, Tensor>,
    ) -> Result<Self> {
        let path = PathBuf::from(name);
        let io = |source| Error::Io { path: path.clone(), source };
        let map = MmapMut::map_anon(1).and_then(MmapMut::make_read_only).map_err(io)?;
        Ok(Self { path, map: Arc::new(map), metadata, tensors: BTreeMap::new(), data: 0, arrays })
    }

    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().chain(self.arrays.keys()).map(String::as_str)
    }

    /// The number of all weights.
    pub fn num_weights(&self) -> u64 {
        let of_file = self.tensors.values().map(|of| of.rows.saturating_mul(of.columns));
        of_file.chain(self.arrays.values().map(|of| (of.rows * of.columns) as u64)).sum()
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn count(&self, key: &str) -> Option<usize> {
        match self.metadata.get(key)? {
            Value::Int(number) => usize::try_from(*number).ok(),
            Value::Uint(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

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
        let Some(entry) = self.tensors.get(name) else {
            return Ok(self.arrays.get(name).cloned());
        };
        let Some(kind) = BlockType::from_number(entry.kind) else {
            let kind = BlockType::name_of(entry.kind);
            return Err(self.unsupported(format!("has the tensor {name} in the type {kind}")));
        };
        let corrupt = |reason: &str| self.corrupt(format!("the tensor {name} {reason}"));
        let (Ok(rows), Ok(columns)) = (usize::try_from(entry.rows), usize::try_from(entry.columns))
        else {
            return Err(corrupt("is too large"));
        };
        let row = kind.row_bytes(columns).ok_or_else(|| corrupt("has a part of a block"))?;
        let bytes = usize::try_from(entry.offset).ok().and_then(|offset| {
            let start = self.data.checked_add(offset)?;
            Bytes::part(&self.map, start..start.checked_add(row.checked_mul(rows)?)?)
        });
        let bytes = bytes.ok_or_else(|| corrupt("is not all in the file"))?;
        Ok(Some(Tensor { kind, rows, columns, bytes }))
    }

    /// Gives the memory of bytes of the file back; they are read again where they are used again.
    pub(crate) fn release(&self, bytes: &[u8]) {
        let start = bytes.as_ptr().addr().wrapping_sub(self.map.as_ptr().addr());
        if start.saturating_add(bytes.len()) > self.map.len() {
            return; // a copy of some rows
        }
        #[cfg(unix)]
        #[expect(unsafe_code, reason = "the only way to release parts of a map")]
        // SAFETY: the map is shared and read-only, so that its pages have the same bytes when they are read again.
        let released = unsafe {
            self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, bytes.len())
        };
        #[cfg(unix)]
        drop(released); // it is a hint
    }

    pub(crate) fn corrupt(&self, reason: impl Into<String>) -> Error {
        Error::Corrupt { path: self.path.clone(), reason: reason.into() }
    }

    pub(crate) fn unsupported(&self, reason: impl Into<String>) -> Error {
        Error::Unsupported { path: self.path.clone(), reason: reason.into() }
    }
}

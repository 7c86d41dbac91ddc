//! The tables before the tensors, from bytes that may be anything.

use std::collections::BTreeMap;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number of any size that 64 bits with a sign hold.
    Int(i64),
    /// Above the range of [`Int`](Self::Int).
    Uint(u64),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// A text, in which what is not UTF-8 is replaced.
    Text(String),
    /// Values of one kind, none of them a list.
    List(Vec<Value>),
}

/// A tensor in the table of a file.
#[derive(Debug)]
pub(super) struct Entry {
    /// The number of its type.
    pub(super) kind: u32,
    /// The product of all dimensions but the first.
    pub(super) rows: u64,
    /// The first dimension.
    pub(super) columns: u64,
    /// The first byte, counted from the start of the tensors.
    pub(super) offset: u64,
}

/// A result, or what is wrong with the file.
type Reason<T> = Result<T, String>;

/// The part of a file before its tensors.
#[derive(Debug)]
pub(super) struct Tables {
    /// The fields, by their names.
    pub(super) metadata: BTreeMap<String, Value>,
    /// The table of tensors, by their names.
    pub(super) tensors: BTreeMap<String, Entry>,
    /// The index of the first byte of the tensors.
    pub(super) data: usize,
}

/// The number of the kind of texts.
const TEXT: u32 = 8;
/// The number of the kind of arrays.
const ARRAY: u32 = 9;
/// The smallest field: a key of no bytes, a kind and a byte.
const MIN_FIELD_BYTES: u64 = 13;
/// The smallest tensor: a name of no bytes and no dimensions.
const MIN_TENSOR_BYTES: u64 = 24;

/// The most memory of all values: a sparse file may hold more than its bytes on disk.
const MAX_BYTES: usize = 1 << 28;
/// The bytes of memory that values of any file may take.
const ALLOWED: usize = 1 << 25;
/// The bytes that they may take besides for each byte of the file.
const ALLOWED_PER_BYTE: usize = 3;
/// The memory of a field, a tensor or a text besides its letters.
const OVERHEAD: usize = 64;

/// A reader of the bytes of a file.
pub(super) struct Reader<'a> {
    /// The whole file.
    bytes: &'a [u8],
    /// The index of the next byte.
    next: usize,
    /// The bytes of memory that values may still take.
    left: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let most = bytes.len().saturating_mul(ALLOWED_PER_BYTE).saturating_add(ALLOWED);
        Self { bytes, next: 0, left: most.min(MAX_BYTES) }
    }

    /// Returns the stated numbers of tensors and fields, `None` where it is not in GGUF's format.
    pub(super) fn header(&mut self) -> Option<(u64, u64)> {
        let is_gguf = self.take(4).ok()? == b"GGUF" && matches!(self.u32().ok()?, 2 | 3);
        if is_gguf { Some((self.u64().ok()?, self.u64().ok()?)) } else { None }
    }

    pub(super) fn tables(&mut self, (num_tensors, num_fields): (u64, u64)) -> Reason<Tables> {
        let mut metadata = BTreeMap::new();
        for _ in 0..self.count(num_fields, MIN_FIELD_BYTES)? {
            let key = self.text()?;
            let kind = self.u32()?;
            self.reserve(OVERHEAD)?;
            let value = self.value(kind, &key)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("two fields are called {key:?}"));
            }
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..self.count(num_tensors, MIN_TENSOR_BYTES)? {
            let name = self.text()?;
            self.reserve(OVERHEAD)?;
            let mut dimensions = [1_u64; 4];
            let number = self.u32()? as usize;
            let read = dimensions.get_mut(..number).filter(|read| !read.is_empty());
            let Some(read) = read else {
                return Err(format!("the tensor {name:?} has {number} dimensions"));
            };
            for dimension in read {
                *dimension = self.u64()?;
            }
            let rows = dimensions[1..].iter().try_fold(1_u64, |all, &size| all.checked_mul(size));
            let rows = rows.ok_or_else(|| format!("the tensor {name:?} is too large"))?;
            let entry =
                Entry { columns: dimensions[0], rows, kind: self.u32()?, offset: self.u64()? };
            if tensors.insert(name.clone(), entry).is_some() {
                return Err(format!("two tensors are called {name:?}"));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Int(number @ 1..=0x10000)) => usize::try_from(*number).unwrap_or(32),
            Some(_) => return Err("general.alignment is not an alignment".to_owned()),
        };
        Ok(Tables { metadata, tensors, data: self.next.next_multiple_of(alignment) })
    }

    fn u32(&mut self) -> Reason<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Reason<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn take(&mut self, length: usize) -> Reason<&'a [u8]> {
        let end = self.next.checked_add(length);
        let taken = end.and_then(|end| self.bytes.get(self.next..end));
        let taken = taken.ok_or_else(|| "it is cut off".to_owned())?;
        self.next += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Reason<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| "it is cut off".to_owned())
    }

    /// A number of things of at least `least` bytes that can still follow.
    fn count(&self, number: u64, least: u64) -> Reason<usize> {
        let left = (self.bytes.len() - self.next) as u64;
        match usize::try_from(number) {
            Ok(count) if number <= left / least => Ok(count),
            _ => Err(format!("{number} values cannot follow in the {left} bytes that are left")),
        }
    }

    fn reserve(&mut self, bytes: usize) -> Reason<()> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| {
            "its metadata takes more memory than a file of its size needs".to_owned()
        })?;
        Ok(())
    }

    fn text(&mut self) -> Reason<String> {
        let length = self.u64()?;
        let length = self.count(length, 1)?;
        self.reserve(length.max(OVERHEAD / 2))?;
        // Tokens of some files are single bytes above 127: what is not UTF-8 is replaced, as transformers does.
        let text = String::from_utf8_lossy(self.take(length)?);
        self.reserve(text.len() - length.min(text.len()))?;
        Ok(text.into_owned())
    }

    fn value(&mut self, kind: u32, key: &str) -> Reason<Value> {
        Ok(match kind {
            0 => Value::Int(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Int(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Int(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            TEXT => Value::Text(self.text()?),
            10 => {
                let number = self.u64()?;
                i64::try_from(number).map_or(Value::Uint(number), Value::Int)
            }
            11 => Value::Int(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            ARRAY => {
                let (kind, number) = (self.u32()?, self.u64()?);
                if kind == ARRAY {
                    return Err(format!("the field {key:?} is an array of arrays"));
                }
                let number = self.count(number, 1)?;
                self.reserve(number.saturating_mul(size_of::<Value>()))?;
                Value::List((0..number).map(|_| self.value(kind, key)).collect::<Reason<_>>()?)
            }
            _ => return Err(format!("the field {key:?} has the unknown kind {kind}")),
        })
    }
}

//! Names of the places that documents came from, such as files and rows.
//!
//! A name is one byte for the number of its first bytes that equal the name before, the rest of its bytes, and a line
//! break. Rows of one file take about 4 bytes each.

/// Appends the entry of `name` after the entry of `before`. Line breaks become spaces.
pub(crate) fn encode(before: &[u8], name: &[u8], bytes: &mut Vec<u8>) {
    let pairs = before.iter().zip(name).take(usize::from(u8::MAX));
    let num_shared = pairs.take_while(|(one, other)| one == other).count();
    bytes.push(u8::try_from(num_shared).unwrap_or(u8::MAX));
    bytes.extend(&name[num_shared..]);
    bytes.push(b'\n');
}

/// A reader of the names of consecutive documents.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// Bytes of the section that were read.
    pub(crate) num_read: usize,
    pub(crate) name: Vec<u8>,
}

impl Sources {
    /// Reads the next name of the section into `name`, and returns false at its end or at damage.
    pub(crate) fn advance(&mut self, section: &[u8]) -> bool {
        let rest = section.get(self.num_read..).unwrap_or_default();
        let Some((&num_shared, rest)) = rest.split_first() else {
            return false;
        };
        let end = rest.iter().position(|&byte| byte == b'\n');
        let (Some(end), true) = (end, usize::from(num_shared) <= self.name.len()) else {
            return false;
        };
        self.name.truncate(num_shared.into());
        self.name.extend(&rest[..end]);
        self.num_read += end + 2;
        true
    }
}

/// Returns a name as it is stored.
pub(crate) fn stored(name: &str) -> Vec<u8> {
    name.replace('\n', " ").into_bytes()
}

/// Returns whether no document has a name.
pub(crate) fn are_empty(bytes: &[u8]) -> bool {
    bytes.chunks(2).all(|entry| entry == [0, b'\n'])
}

//! Files in parts, `NAME-00001-of-00003.gguf`: the first one has the metadata, each has some tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::reader::Value;
use crate::error::{Error, Result};

/// The fields of a part that describe the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// The index of the part, from 0.
    pub(super) number: usize,
    /// The number of parts.
    count: usize,
    /// The number of tensors of all parts, if the file says it.
    pub(super) num_tensors: Option<usize>,
}

/// The most parts that names have room for.
const MAX_PARTS: usize = 99_999;

impl Split {
    /// Reads the fields of a file, `None` for a file of one part.
    pub(super) fn of(
        metadata: &BTreeMap<String, Value>,
    ) -> std::result::Result<Option<Self>, String> {
        let field = |name: &str, most: usize| match metadata.get(name) {
            None => Ok(None),
            Some(Value::Int(number))
                if usize::try_from(*number).is_ok_and(|number| number <= most) =>
            {
                Ok(usize::try_from(*number).ok())
            }
            Some(_) => Err(format!("{name} is not a number of this size")),
        };
        let Some(count @ 2..) = field("split.count", MAX_PARTS)? else {
            return Ok(None);
        };
        let number = field("split.no", count - 1)?.unwrap_or(0);
        let num_tensors = field("split.tensors.count", usize::MAX)?;
        Ok(Some(Self { number, count, num_tensors }))
    }

    /// Returns the paths of all parts, by that of this one; all of them exist.
    pub(super) fn paths(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let end = |number: usize| format!("-{:05}-of-{:05}.gguf", number + 1, self.count);
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(start) = name.and_then(|name| name.strip_suffix(&end(self.number))) else {
            let end = end(self.number);
            let reason =
                format!("and its name does not end in {end}: name all parts so, in one folder");
            return Err(error(path.to_owned(), reason));
        };
        let paths =
            (0..self.count).map(|number| path.with_file_name(format!("{start}{}", end(number))));
        let mut found = Vec::new();
        for part in paths {
            if !part.exists() {
                let missing = part.file_name().unwrap_or_default().to_string_lossy();
                let reason = format!("and {missing} is missing: download it into the same folder");
                return Err(error(path.to_owned(), reason));
            }
            found.push(part);
        }
        Ok(found)
    }

    /// Checks that a file is the part of this number.
    pub(super) fn check(
        &self,
        number: usize,
        path: &Path,
        metadata: &BTreeMap<String, Value>,
    ) -> Result<()> {
        match Self::of(metadata) {
            Ok(Some(found)) if found == Self { number, ..*self } => Ok(()),
            _ => Err(error(
                path.to_owned(),
                format!(
                    "and does not belong to its other parts: it is not part {} of {}, with {} tensors in all: \
                 download all parts from one place",
                    number + 1,
                    self.count,
                    self.num_tensors.map_or("unknown".to_owned(), |number| number.to_string()),
                ),
            )),
        }
    }
}

pub(super) fn error(path: PathBuf, reason: String) -> Error {
    Error::Split { path, reason }
}

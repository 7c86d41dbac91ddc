//! A folder as a store of a request cache.
//!
//! The file with the largest number is the head. A link can be made only if no file has its name, on network file
//! systems too, so two processes cannot write the same number.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::head::{is_segment_name, random};
use crate::memory::object_store::{FoundHead, ObjectStore};
use specds_index::storage::files::{create_owned, make_folder, resolve, sync_parent};
use specds_index::{Error, Result};

#[derive(Clone)]
pub(crate) struct Folder(PathBuf);

const HEAD: &str = "head-";
/// Number of earlier heads that are kept for processes that have just read one.
const NUM_HEADS: u64 = 16;

impl Folder {
    /// Resolves the path once, so that a link that is changed later leads to no other folder.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        path.file_name().ok_or_else(|| Error::invalid("path", "must name a folder"))?;
        resolve(path).map(Self)
    }

    /// Makes the folder, and rejects one with other files: a mistyped path must not fill it.
    fn make(&self) -> Result<()> {
        // The folder of tenants' stores is made with the first of them.
        self.0.parent().map_or(Ok(()), make_folder)?;
        make_folder(&self.0)?;
        let names = self.names()?;
        let is_ours = |name: &String| name.starts_with(HEAD) || is_segment_name(name);
        let reason = "it is a folder with other files: name a new one, or a request cache";
        let foreign = || Error::io(&self.0)(io::Error::new(ErrorKind::InvalidInput, reason));
        if names.is_empty() || names.iter().any(is_ours) { Ok(()) } else { Err(foreign()) }
    }

    fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                let reason = "it is not a folder".to_owned();
                return Err(Error::Snapshot { path: self.0.clone(), reason });
            }
            entries => entries.map_err(Error::io(&self.0))?,
        };
        let name = |entry: io::Result<fs::DirEntry>| entry.map(|it| it.file_name());
        let names: io::Result<Vec<_>> = entries.map(name).collect();
        let names = names.map_err(Error::io(&self.0))?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    fn last_head(&self) -> Result<Option<u64>> {
        Ok(self.names()?.iter().filter_map(|name| number(name)).max())
    }

    fn head_path(&self, number: u64) -> PathBuf {
        self.0.join(format!("{HEAD}{number:012}"))
    }

    /// Writes a file that has the owner of the folder.
    fn write(&self, path: &Path, content: &[u8]) -> Result<()> {
        let mut file = create_owned(path, &self.0)?;
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.map_err(Error::io(path)).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    fn remove_old_heads(&self, last: u64) -> Result<()> {
        for name in self.names()? {
            let named = name.split('.').next().and_then(number);
            if named.is_some_and(|number| number + NUM_HEADS < last) {
                let _ = fs::remove_file(self.0.join(name));
            }
        }
        Ok(())
    }
}

fn version(number: u64, head: &[u8]) -> String {
    format!("{number}-{:016x}", xxh3_64(head))
}

/// Reads a regular file; a pipe would block.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    fs::read(path)
}

/// Returns the number of a head.
fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(HEAD)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

impl ObjectStore for Folder {
    fn head(&self, known: Option<&str>) -> Result<FoundHead> {
        loop {
            let Some(last) = self.last_head()? else { return Ok(FoundHead::Missing) };
            let path = self.head_path(last);
            match read(&path) {
                // It was the last one when the names were read.
                Err(error) if is_missing(&error) && self.last_head()? != Some(last) => {}
                content => {
                    let content = content.map_err(Error::io(&path))?;
                    let version = version(last, &content);
                    return Ok(match known {
                        Some(known) if known == version => FoundHead::Unchanged,
                        _ => FoundHead::Changed(content, version),
                    });
                }
            }
        }
    }

    fn replace_head(&self, head: &[u8], before: Option<&str>) -> Result<Option<String>> {
        let next = match before {
            None => 0,
            Some(before) => {
                let last = before.split('-').next().and_then(|last| last.parse().ok());
                let last: u64 = last.unwrap_or_default();
                // A copy of the folder may have been put back, with other heads of these numbers.
                if read(&self.head_path(last)).map_or(true, |it| version(last, &it) != before) {
                    return Ok(None);
                }
                last + 1
            }
        };
        let path = self.head_path(next);
        let partial = path.with_extension(format!("{:016x}", random()));
        self.write(&partial, head)?;
        let linked = fs::hard_link(&partial, &path);
        let _ = fs::remove_file(&partial);
        match linked {
            // A slow writer's file may have been removed with the heads of its time.
            Err(error)
                if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) =>
            {
                return Ok(None);
            }
            linked => linked.map_err(Error::io(&path))?,
        }
        sync_parent(&path)?;
        // The number is free again if the head has been replaced, and removed, since it was read.
        if self.last_head()? != Some(next) {
            let _ = fs::remove_file(&path);
            return Ok(None);
        }
        self.remove_old_heads(next)?;
        Ok(Some(version(next, head)))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.0.join(name);
        match read(&path) {
            Err(error) if is_missing(&error) => Ok(None),
            content => content.map(Some).map_err(Error::io(&path)),
        }
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<()> {
        if self.last_head()?.is_none() {
            self.make()?;
        }
        self.write(&self.0.join(name), content)
    }

    fn delete(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.0.join(name)) {
            Err(error) if !is_missing(&error) => Err(Error::io(&self.0.join(name))(error)),
            _ => Ok(()),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut names = self.names()?;
        names.retain(|name| is_segment_name(name));
        Ok(names)
    }

    fn below(&self, name: &str) -> Result<Box<dyn ObjectStore + '_>> {
        Ok(Box::new(Self(self.0.join(name))))
    }

    fn stores(&self) -> Result<Vec<String>> {
        let mut stores = Vec::new();
        for name in self.names()? {
            let path = self.0.join(&name);
            // A link may lead to a folder above it.
            if path.is_dir() && !path.is_symlink() {
                let folder = Self(path);
                let below = folder.stores()?.into_iter().map(|store| format!("{name}/{store}"));
                stores.extend(folder.last_head()?.map(|_| name.clone()).into_iter().chain(below));
            }
        }
        Ok(stores)
    }
}

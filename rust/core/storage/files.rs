//! When is a file on the disk, whole, and still what its path names?

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;

use crate::base::error::{Error, Result};

/// Waits until the entries of a folder are on the disk, where the system can.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(Error::io(folder))
    } else {
        Ok(())
    }
}

/// Waits until what a path names is on the disk under that name.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) if folder != Path::new("") => sync_folder(folder),
        _ => sync_folder(Path::new(".")),
    }
}

/// Writes a small file so that it is there completely or not at all, and on the disk.
pub(crate) fn write_whole(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) -> Result<()> {
    let partial = path.with_extension("new");
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(content.as_ref())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(Error::io(path))?;
    sync_parent(path)
}

/// Locks the file at `path`, as it is opened by `open`: for this caller alone, who writes what will be
/// at `target`. `open` may give nothing, to be asked again.
pub(crate) fn lock(
    path: &Path,
    target: &Path,
    open: impl Fn() -> io::Result<Option<File>>,
) -> Result<File> {
    loop {
        let Some(file) = open().map_err(Error::io(path))? else {
            continue;
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: target.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io(path)(error)),
            // Who held the lock until now may have moved or removed the file.
            Ok(()) if is_at(&file, path) => return Ok(file),
            Ok(()) => {}
        }
    }
}

/// Whether `file` is what `path` names: a process that ends removes the file that it has locked.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => id(ours) == id(there),
        _ => false,
    }
}

/// Elsewhere, a file that is open cannot be removed.
#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

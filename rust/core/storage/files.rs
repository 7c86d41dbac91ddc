//! When is a file on the disk, whole, and still what its path names?

use std::fs::{self, File};
use std::io::Write;
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
    path.parent().map_or(Ok(()), sync_folder)
}

/// Whether `file` is what `path` names: a process that ends removes the file that it has locked.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => id(ours) == id(there),
        _ => false,
    }
}

/// Elsewhere, a file that is open cannot be removed.
#[cfg(not(unix))]
pub(crate) fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

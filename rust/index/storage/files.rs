//! Safe creation, locking and atomic replacement of files.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use memmap2::Mmap;
use serde::de::DeserializeOwned;

use crate::base::error::{Error, Result};

/// Resolves a path, so that all paths of a target have one lock. The target of a link need not exist.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_symlink() => {
            let target = fs::read_link(path).map_err(Error::io(path))?;
            resolve(&path.parent().unwrap_or(Path::new("")).join(target))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let path = std::path::absolute(path).map_err(Error::io(path))?;
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Error::invalid("path", "must name a folder below another"));
            };
            let parent = fs::canonicalize(parent).map_err(Error::io(parent))?;
            Ok(parent.join(name))
        }
        resolved => resolved.map_err(Error::io(path)),
    }
}

pub fn hidden(name: &OsStr, ending: &str) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(ending);
    hidden
}

/// Opens a regular file; opening a pipe would block.
pub fn open(path: &Path) -> Result<File> {
    let open = || {
        if fs::metadata(path)?.is_file() {
            File::open(path)
        } else {
            let reason = "it is not a regular file";
            Err(io::Error::new(ErrorKind::InvalidInput, reason))
        }
    };
    open().map_err(Error::io(path))
}

#[expect(unsafe_code, reason = "a file can only be mapped by promising that it does not change")]
pub fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: sections and snapshots are written under another name, renamed into place when they are
    // complete, and never written again; what replaces one unlinks it, which leaves its mapping alone.
    // Someone who edits the file in place changes bytes that are only ever read with checks.
    unsafe { Mmap::map(file) }
}

/// Reads at most `max_bytes + 1` bytes, so that the caller can detect a longer file.
pub(crate) fn read_up_to(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut file = open(path)?.take(max_bytes.saturating_add(1));
    file.read_to_end(&mut content).map_err(Error::io(path))?;
    Ok(content)
}

/// Creates a file. An existing file or link of this name is removed, never written to.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

/// Makes a folder that only this user can read, unless the path exists.
pub fn make_folder(path: &Path) -> Result<()> {
    #[cfg_attr(not(unix), expect(unused_mut))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(Error::io(path)),
    }
}

pub(crate) fn make_private(folder: &Path) -> Result<()> {
    make_folder(folder)?;
    let found = fs::symlink_metadata(folder).map_err(Error::io(folder))?;
    check_ours(folder, found.is_dir() && is_ours_alone(&found))
}

/// Opens or creates a file that only this user can read. Links, pipes and files of other users are rejected: their
/// owner could choose which file is overwritten, or read it.
pub(crate) fn open_private(path: &Path) -> Result<File> {
    open_of(path, is_ours)
}

/// Does the same for a file that replaces `target`. The owner of that may own the file.
pub fn open_beside(path: &Path, target: &Path) -> Result<File> {
    let of_target = fs::metadata(target).ok();
    let is_owners =
        |found: &Metadata| of_target.as_ref().is_some_and(|of| owner(of) == owner(found));
    open_of(path, |found| is_ours(found) || is_owners(found))
}

fn open_of(path: &Path, is_known: impl Fn(&Metadata) -> bool) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    options.create(true).truncate(false);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path).map_err(|error| {
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| !found.is_file());
        let foreign = check_ours(path, !is_link).err();
        foreign.unwrap_or_else(|| Error::io(path)(error))
    })?;
    let found = file.metadata().map_err(Error::io(path))?;
    // A file that its last owner has just removed has no name.
    check_ours(path, found.is_file() && is_known(&found) && num_names(&found) <= 1)?;
    #[cfg(unix)]
    {
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        file.set_permissions(private).map_err(Error::io(path))?;
    }
    Ok(file)
}

/// Creates a file in a folder, with the owner, the group and the permissions of the folder.
pub fn create_owned(path: &Path, folder: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path).map_err(Error::io(path))?;
    inherit_owner(&file, folder).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })?;
    Ok(file)
}

/// Gives a new file the owner, the group and the permissions of a folder.
pub fn inherit_owner(file: &File, folder: &Path) -> Result<()> {
    let both = fs::metadata(folder).and_then(|found| Ok((found, file.metadata()?)));
    let (of, new) = both.map_err(Error::io(folder))?;
    set_owner(file, &of, &new).map_err(Error::io(folder))
}

#[cfg(unix)]
fn owner(found: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(found)
}

#[cfg(unix)]
fn set_owner(file: &File, old: &Metadata, new: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let (user, group) = (old.uid(), old.gid());
    if (user, group) != (new.uid(), new.gid()) {
        fchown(file, Some(user), Some(group)).map_err(|_| {
            let reason =
                format!("it belongs to user {user} and group {group}: run this as that user");
            io::Error::new(ErrorKind::PermissionDenied, reason)
        })?;
    }
    file.set_permissions(PermissionsExt::from_mode(old.mode() & 0o666))
}

pub(crate) fn check_ours(path: &Path, is_ours: bool) -> Result<()> {
    is_ours.then_some(()).ok_or_else(|| Error::Foreign(path.to_owned()))
}

#[cfg(unix)]
pub(crate) fn is_ours(found: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(found) == rustix::process::geteuid().as_raw()
}

#[cfg(unix)]
fn is_ours_alone(found: &Metadata) -> bool {
    is_ours(found) && std::os::unix::fs::MetadataExt::mode(found) & 0o022 == 0
}

#[cfg(unix)]
fn num_names(found: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(found)
}

#[cfg(not(unix))]
fn owner(_found: &Metadata) -> u32 {
    0
}

#[cfg(not(unix))]
fn set_owner(_file: &File, _old: &Metadata, _new: &Metadata) -> io::Result<()> {
    Ok(())
}

/// Returns true: on other systems, the permissions of the parent folder protect the file.
#[cfg(not(unix))]
pub(crate) fn is_ours(_found: &Metadata) -> bool {
    true
}

#[cfg(not(unix))]
use is_ours as is_ours_alone;

#[cfg(not(unix))]
fn num_names(_found: &Metadata) -> u64 {
    1
}

pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io(folder))
    } else {
        Ok(())
    }
}

pub fn sync_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) if folder != Path::new("") => sync_folder(folder),
        _ => sync_folder(Path::new(".")),
    }
}

/// Writes a file completely or not at all.
pub(crate) fn write_whole(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) -> Result<()> {
    let partial = path.with_extension("new");
    let write = || {
        let mut file = create_anew(&partial)?;
        file.write_all(content.as_ref())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(Error::io(path))?;
    sync_parent(path)
}

/// Reads a JSON file; `None` if it is missing or damaged.
pub(crate) fn read_note<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = read_up_to(path, MAX_NOTE_BYTES).ok()?;
    serde_json::from_slice(&text).ok()
}

pub(crate) const MAX_NOTE_BYTES: u64 = 1 << 16;

/// Opens a file with `open`, repeatedly if that returns `None`, and locks it for a writer of `target`. Waits for
/// another lock holder while the file changes, and for `patience` after the last change, because a holder may be
/// frozen.
pub fn lock(
    path: &Path,
    target: &Path,
    patience: Duration,
    open: impl Fn() -> Result<Option<File>>,
) -> Result<File> {
    let (mut seen, mut since) = (None, Instant::now());
    loop {
        let Some(file) = open()? else {
            continue;
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let state = |found: Metadata| (found.len(), found.modified().ok());
                let now = fs::metadata(path).ok().map(state);
                if seen != now {
                    (seen, since) = (now, Instant::now());
                }
                if since.elapsed() >= patience {
                    return Err(Error::Locked(target.to_owned()));
                }
                thread::sleep(LOCK_POLL);
            }
            Err(TryLockError::Error(error)) => return Err(Error::io(path)(error)),
            // The previous holder may have moved or removed the file.
            Ok(()) if is_at(&file, path) => return Ok(file),
            Ok(()) => {}
        }
    }
}

const LOCK_POLL: Duration = Duration::from_millis(2);

/// Returns whether the file is still at its path: the previous holder of a lock may have removed it.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => id(ours) == id(there),
        _ => false,
    }
}

/// Returns whether there is a file at the path: on other systems, an open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::{lock, open_private};
    use crate::base::error::Error;

    #[test]
    fn lock_waits_while_its_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("held");
        let take = |patience| lock(&path, &path, patience, || open_private(&path).map(Some));
        let patience = Duration::from_millis(400);
        let held = take(Duration::ZERO).unwrap();
        assert!(matches!(take(Duration::ZERO), Err(Error::Locked(_))));
        assert!(matches!(take(patience), Err(Error::Locked(_))), "frozen");
        thread::scope(|scope| {
            scope.spawn(|| {
                for length in 0..20 {
                    held.set_len(length).unwrap();
                    thread::sleep(patience / 8);
                }
                held.unlock().unwrap();
            });
            take(patience).unwrap();
        });
    }
}

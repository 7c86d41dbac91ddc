//! The staging folder of a build.
//!
//! A datastore is written to `.NAME.build` next to its target `NAME`; `docs/FORMAT.md` lists the files. It is
//! published by renaming the whole folder, or if there is a datastore at the target, the shards and then the manifest.
//! Shards never change and the manifest is replaced atomically, so readers always find a complete datastore.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::indexing::document_log::Checkpoint;
use crate::storage::files::{
    check_ours, hidden, lock, make_private, open_private, resolve, sync_folder, sync_parent,
    write_whole,
};
use crate::storage::manifest::{self, FOLDER_PREFIX, Manifest, folder_name};

/// The folder in which a datastore is built, locked by this process. Dropping removes it, unless the next build of the
/// same plan can resume from it.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) target: PathBuf,
    pub(crate) folder: PathBuf,
    is_kept: bool,
    /// Closed before the folder is removed, which needs descriptors when the process may have no others.
    spare: Vec<File>,
    _lock: File,
}

impl Staging {
    /// Creates the folder, or takes over that of a killed process, which is empty or has the lock file. All paths
    /// of a target have one folder and one lock.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let target = resolve(path)?;
        if target.file_name().is_none() {
            return Err(Error::invalid("path", "must name a folder below another"));
        }
        let folder = folder_of(&target);
        let path = folder.join(LOCK);
        let enter = || {
            let mut entries = fs::read_dir(&folder).map_err(Error::io(&folder))?;
            check_ours(&folder, entries.next().is_none() || path.exists())?;
            open_private(&path).map(Some)
        };
        let locked = lock(&path, &target, Duration::ZERO, || {
            make_private(&folder)?;
            match enter() {
                // Another process may have removed the folder at its end.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
                entered => entered,
            }
        });
        let opened = locked.and_then(|lock| {
            let spare = (0..NUM_SPARE).map(|_| lock.try_clone()).collect::<io::Result<_>>();
            let is_new = !folder.join(PLAN).exists() && !folder.join(SHARDS).exists();
            if spare.is_err() && is_new {
                let _ = fs::remove_file(&path);
            }
            Ok((lock, spare.map_err(Error::io(&path))?))
        });
        let (lock, spare) = opened.inspect_err(|error| {
            if !matches!(error, Error::Foreign(_)) {
                let _ = fs::remove_dir(&folder); // fails unless it is empty
            }
        })?;
        Ok(Self { target, folder, is_kept: true, spare, _lock: lock })
    }

    /// Returns whether a build of the same plan can be resumed. Files of other builds are removed.
    pub(crate) fn begin(&mut self, plan: Option<&str>) -> Result<bool> {
        let path = self.folder.join(PLAN);
        let is_same = plan.is_some() && fs::read_to_string(&path).ok().as_deref() == plan;
        self.is_kept = plan.is_some();
        if !is_same {
            self.clear()?;
        }
        let shards = self.shards();
        fs::create_dir_all(&shards).map_err(Error::io(&shards))?;
        if let Some(plan) = plan {
            write_whole(&path, plan)?;
        }
        Ok(is_same)
    }

    fn clear(&self) -> Result<()> {
        // The plan is removed first: after a kill, no build may resume from the remaining files.
        let plan = self.folder.join(PLAN);
        if plan.exists() {
            fs::remove_file(&plan).map_err(Error::io(&plan))?;
        }
        let entries: Vec<_> =
            fs::read_dir(&self.folder).map_err(Error::io(&self.folder))?.collect();
        for entry in entries {
            let entry = entry.map_err(Error::io(&self.folder))?;
            if entry.file_name() != LOCK {
                remove(&entry)?;
            }
        }
        Ok(())
    }

    pub(crate) fn workplace(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{index:05}"))
    }

    /// Returns the folder of the shards that are about to be published.
    pub(crate) fn shards(&self) -> PathBuf {
        self.folder.join(SHARDS)
    }

    /// Replaces the datastore at the target in one step, then removes shards that only the old one had. The new
    /// shards are in [`shards`](Self::shards) or at the target.
    pub(crate) fn publish(&mut self, mut manifest: Manifest) -> Result<()> {
        let text = manifest.seal();
        let (shards, target) = (self.shards(), &self.target);
        if fs::symlink_metadata(target).is_err() {
            remove_unlisted(&shards, &manifest)?; // shards of a killed build
            sync_folder(&shards)?;
            write_whole(&shards.join(manifest::FILE_NAME), &text)?;
            fs::rename(&shards, target).map_err(Error::io(target))?;
            sync_parent(target)?;
        } else {
            for shard in &manifest.shards {
                let (from, to) = (shard.folder(&shards), shard.folder(target));
                if from.is_dir() && !to.exists() {
                    fs::rename(&from, &to).map_err(Error::io(&to))?;
                }
            }
            sync_folder(target)?;
            write_whole(&target.join(manifest::FILE_NAME), &text)?;
            remove_unlisted(target, &manifest)?;
        }
        self.is_kept = false;
        Ok(())
    }

    /// Does not change the datastore at the target, and removes shards that a killed publication left there.
    pub(crate) fn leave(&mut self, manifest: &Manifest) -> Result<()> {
        self.is_kept = false;
        remove_unlisted(&self.target, manifest)
    }
}

fn folder_of(target: &Path) -> PathBuf {
    target.with_file_name(hidden(target.file_name().unwrap_or_default(), ".build"))
}

/// Returns whether a build was killed after it had published its datastore at `target`.
#[must_use]
pub fn was_killed_after_publishing(target: &Path) -> bool {
    let staging = folder_of(target);
    let is_moved = staging.is_dir() && !staging.join(SHARDS).exists();
    is_moved && target.join(manifest::FILE_NAME).is_file()
}

/// Removes the staging folder of a killed build, unless the next build can continue it. Returns false if a build is
/// running.
///
/// # Errors
/// [`Error::Foreign`] if specds did not create the folder, or an I/O error.
pub fn remove_abandoned(target: &Path) -> Result<bool> {
    let folder = folder_of(target);
    if fs::symlink_metadata(&folder).is_err() {
        return Ok(true);
    }
    match Staging::open(target) {
        Ok(staging) if staging.folder.join(PLAN).exists() => Ok(true),
        Ok(mut staging) => staging.begin(None).map(|_| true),
        Err(Error::Locked(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for Staging {
    /// Removes the folder, or leaves it to the next build if that fails.
    fn drop(&mut self) {
        self.spare.clear();
        let is_kept = self.is_kept && Checkpoint::read(&self.workplace(0)).is_some();
        if !is_kept && self.clear().is_ok() {
            let _ = fs::remove_file(self.folder.join(LOCK));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// File name of the description of a build that can be resumed.
const PLAN: &str = "plan";

/// File name of the folder of shards.
const SHARDS: &str = "datastore";

/// Folders in each other that removing opens: that of shards, and a shard in it.
const NUM_SPARE: usize = 2;

/// File name of the lock, which also identifies a staging folder.
const LOCK: &str = "specds.lock";

/// Removes a file or a folder without following links.
fn remove(entry: &DirEntry) -> Result<()> {
    let path = entry.path();
    let removed = entry.file_type().and_then(|kind| {
        if kind.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
    });
    removed.map_err(Error::io(&path))
}

fn remove_unlisted(datastore: &Path, manifest: &Manifest) -> Result<()> {
    let shards = manifest.shards.iter().map(|shard| folder_name(&shard.id));
    let listed: BTreeSet<_> = shards.collect();
    for entry in fs::read_dir(datastore).map_err(Error::io(datastore))? {
        let entry = entry.map_err(Error::io(datastore))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(FOLDER_PREFIX) && !listed.contains(&*name) {
            remove(&entry)?;
        }
    }
    Ok(())
}

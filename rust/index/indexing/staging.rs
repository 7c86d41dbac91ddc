//! The folder in which a datastore grows before it is published.
//!
//! Beside the target `NAME` lies `.NAME.build` while a datastore is written; `docs/FORMAT.md` lists its
//! files. Publishing renames: the whole folder where nothing is at the target, else the shards and then
//! the manifest. Shards never change and the manifest is replaced in one step, so readers always find a
//! complete datastore.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::indexing::document_log::Checkpoint;
use crate::storage::files::{
    check_ours, hidden, lock, make_private, open_private, resolve, sync_folder, sync_parent,
    write_whole,
};
use crate::storage::manifest::{self, FOLDER_PREFIX, Manifest, folder_name};

/// The folder beside a datastore in which this process alone writes it. Dropping it removes the folder,
/// unless the next build of the same plan can go on from it.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) target: PathBuf,
    pub(crate) folder: PathBuf,
    is_kept: bool,
    _lock: File,
}

impl Staging {
    /// Makes the folder, or takes over what a killed process has left: one that has our lock, or nothing.
    /// All names of a target lead to one folder and one lock.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let target = resolve(path)?;
        let Some(name) = target.file_name() else {
            return Err(Error::invalid("path", "must name a folder below another"));
        };
        let folder = target.with_file_name(hidden(name, ".build"));
        let path = folder.join(LOCK);
        let enter = || {
            let mut entries = fs::read_dir(&folder).map_err(Error::io(&folder))?;
            check_ours(&folder, entries.next().is_none() || path.exists())?;
            open_private(&path).map(Some)
        };
        let lock = lock(&path, &target, Duration::ZERO, || {
            make_private(&folder)?;
            match enter() {
                // Another process that ends may have removed the folder.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
                entered => entered,
            }
        })?;
        Ok(Self { target, folder, is_kept: true, _lock: lock })
    }

    /// Whether there is something of the same plan to go on from. Anything else is removed.
    pub(crate) fn begin(&mut self, plan: Option<&str>) -> Result<bool> {
        let path = self.folder.join("plan");
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
        // First, so that nobody goes on from what a kill may leave of the rest.
        let plan = self.folder.join("plan");
        if plan.exists() {
            fs::remove_file(&plan).map_err(Error::io(&plan))?;
        }
        for entry in fs::read_dir(&self.folder).map_err(Error::io(&self.folder))? {
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

    /// Shards that are about to be published.
    pub(crate) fn shards(&self) -> PathBuf {
        self.folder.join("datastore")
    }

    /// Replaces the datastore at the target in one step, then removes what only the old one had. Shards lie
    /// in [`shards`](Self::shards) or at the target.
    pub(crate) fn publish(&mut self, mut manifest: Manifest) -> Result<()> {
        let text = manifest.seal();
        let (shards, target) = (self.shards(), &self.target);
        if fs::symlink_metadata(target).is_err() {
            remove_unlisted(&shards, &manifest)?; // what a killed build has left
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

    /// Leaves the datastore at the target as it is, and removes what a kill amid publishing has left.
    pub(crate) fn leave(&mut self, manifest: &Manifest) -> Result<()> {
        self.is_kept = false;
        remove_unlisted(&self.target, manifest)
    }
}

impl Drop for Staging {
    /// Removes the folder; what cannot be removed is left to the next build.
    fn drop(&mut self) {
        let is_kept = self.is_kept && Checkpoint::read(&self.workplace(0)).is_some();
        if !is_kept && self.clear().is_ok() {
            let _ = fs::remove_file(self.folder.join(LOCK));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// The name of the lock, which also marks a folder as ours.
const LOCK: &str = "specds.lock";

/// Removes a file or a folder, and follows no link.
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

//! Which shards of a build are complete, and where are they?

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};
use crate::build::document_log::Checkpoint;
use crate::build::staging::Staging;
use crate::storage::files::{read_note, sync_parent, write_note};
use crate::storage::manifest::{ShardEntry, ShardManifest, folder_name};

/// What `00000.json` says: a shard is complete. It is written before the shard is moved, so that the
/// shard is found wherever it is.
#[derive(Serialize, Deserialize)]
pub(crate) struct FinishedShard {
    /// The documents that the build was given up to its end.
    pub(crate) num_given: u64,
    pub(crate) shard: ShardEntry,
}

impl FinishedShard {
    /// Writes it down for shard `index`.
    pub(crate) fn write(&self, staging: &Staging, index: usize) -> Result<()> {
        write_note(&note_path(staging, index), self)
    }

    /// Whether a build can go on from anything: from a shard, or from a checkpoint of the first.
    pub(crate) fn has_begun(staging: &Staging) -> bool {
        note_path(staging, 0).exists() || Checkpoint::read(&staging.workplace(0)).is_some()
    }

    /// What is complete of shard `index` of a killed build, and where it is.
    pub(crate) fn recover(staging: &Staging, index: usize) -> Result<Option<(Self, PathBuf)>> {
        let folder = staging.workplace(index);
        let noted: Option<Self> = read_note(&note_path(staging, index));
        let noted = noted.filter(|noted| noted.shard.is_usable());
        let sealed = || {
            Some(FinishedShard {
                num_given: Checkpoint::read(&folder)?.num_given,
                shard: ShardManifest::read_sealed(&folder)?.entry(),
            })
        };
        let Some(completed) = noted.or_else(sealed) else {
            return Ok(None);
        };
        let id = &completed.shard.id;
        if folder.is_dir() {
            completed.write(staging, index)?;
            move_shard(&folder, &staging.shards().join(folder_name(id)))?;
        }
        Ok(staging.find(id).map(|place| (completed, place)))
    }
}

fn note_path(staging: &Staging, index: usize) -> PathBuf {
    staging.workplace(index).with_extension("json")
}

/// Moves a complete shard to its place, unless one of the same contents is there.
pub(crate) fn move_shard(from: &Path, to: &Path) -> Result<()> {
    Checkpoint::remove(from)?;
    match fs::rename(from, to) {
        Ok(()) => sync_parent(to),
        Err(_) if to.is_dir() => fs::remove_dir_all(from).map_err(Error::io(from)),
        Err(error) => Err(Error::io(to)(error)),
    }
}

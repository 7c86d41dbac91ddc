//! Moves of a tenant's texts from a store to a datastore.
//!
//! A deletion also holds for texts that are being moved: the tombstones are read again right before the texts are
//! published. A note next to a store's folder leads to the files of a killed move.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::exchange::at;
use crate::memory::object_store::{as_url, of_tenants, resolved};
use crate::memory::store::{Memory, MemoryOptions};
use crate::memory::tenant::Tenant;
use crate::memory::tenant_stores::store_of;
use crate::memory::tombstones::NameHash;
use specds_index::storage::files::{hidden, inherit_owner, open_beside, resolve, sync_parent};
use specds_index::{
    Datastore, DatastoreBuilder, DatastoreOptions, Error, Report, Result, remove_abandoned,
};

/// A move that has read its texts. Dropping it removes everything that it wrote.
pub struct Transfer {
    memory: Memory,
    path: PathBuf,
    target: PathBuf,
    tenant: Option<Arc<Tenant>>,
    builder: Option<DatastoreBuilder>,
    /// Declared after the builder, so that it is removed last.
    _note: Option<Note>,
    pub num_texts: usize,
}

/// The results of a [`Transfer`].
#[derive(Debug)]
pub struct TransferReport {
    /// `None` if there is none, because there were no texts.
    pub datastore: Option<Arc<Datastore>>,
    pub num_texts: usize,
    /// Number of documents that the datastore did not have before.
    pub num_added_documents: u64,
    pub num_added_tokens: u64,
    /// Number of tokens that all tenants still have in the memory.
    pub num_left: usize,
}

impl Transfer {
    /// Reads a tenant's texts in the file at `path`, and writes their parts between separators into a staging
    /// folder. The datastore at `target` is appended to if it exists.
    ///
    /// # Errors
    /// A snapshot that cannot be read, or those of [`DatastoreBuilder::create`].
    pub fn begin(
        path: impl AsRef<Path>,
        tenant: &str,
        target: impl AsRef<Path>,
        options: DatastoreOptions,
    ) -> Result<Self> {
        let (path, target) = (resolved(path.as_ref())?, resolve(target.as_ref())?);
        let of_tenant = |base: PathBuf| store_of(&base, NameHash::of(tenant));
        let path = of_tenants(&path).map_or(path, of_tenant);
        let memory = Memory::open(
            &path,
            MemoryOptions {
                vocab_size: options.vocab_size,
                max_bytes: MemoryOptions::MAX_BYTES,
                tokenizer: options.tokenizer_fingerprint.clone(),
                ..MemoryOptions::new(options.vocab_size)
            },
        )?;
        let (texts, append) = (memory.texts(tenant), target.exists());
        // A builder also removes what an earlier move could not, so one that adds nothing is opened too.
        let builder = (append || !texts.is_empty()).then(|| {
            let separator = options.separator;
            let options = DatastoreOptions { append, plan: None, ..options };
            let mut builder = DatastoreBuilder::create(&target, options)?;
            // The builder's lock is held, so that no other move removes the note.
            let has_note = as_url(&path).is_none();
            let write = || Note::write(&path, &target, builder.staging_folder());
            let note = has_note.then(write).transpose()?;
            for part in texts.iter().flat_map(|text| text.split(|&token| token == separator)) {
                builder.add_document(part)?;
            }
            Ok((builder, note))
        });
        let (builder, note) = builder.transpose()?.unzip();
        let note = note.flatten();
        let (tenant, num_texts) = (memory.find(tenant), texts.len());
        Ok(Self { memory, path, target, tenant, builder, _note: note, num_texts })
    }

    /// Indexes and publishes the texts, then removes them from the file. Texts that the datastore has are
    /// removed from all tenants.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tenant was deleted from the file meanwhile; nothing is published.
    pub fn finish(mut self, report: &mut Report<'_>) -> Result<TransferReport> {
        let builder = self.builder.take();
        let num_added_documents = builder.as_ref().map_or(0, DatastoreBuilder::num_documents);
        let num_added_tokens = builder.as_ref().map_or(0, DatastoreBuilder::num_tokens);
        let mut builder = builder.filter(|_| num_added_documents > 0);
        if let Some(builder) = &mut builder {
            builder.index(report)?;
        }
        let mut datastore: Option<Arc<Datastore>> = None;
        if self.num_texts > 0 {
            let (tenant, target) = (self.tenant.take(), &self.target);
            let is_deleted = || tenant.as_ref().is_some_and(|tenant| tenant.read().is_deleted);
            let (store, name) = at(&self.path)?;
            self.memory.exchange(&*store, &name, &mut |memory| {
                if datastore.is_none() && is_deleted() {
                    let reason = "was deleted meanwhile, and nothing of it was added: repeat the call \
                                  to add later texts";
                    return Err(Error::invalid("tenant", reason));
                }
                let mut publish = || match builder.take() {
                    Some(builder) => builder.finish(),
                    None => Datastore::open(target),
                };
                let published = match &datastore {
                    Some(published) => published,
                    None => datastore.insert(Arc::new(publish()?)),
                };
                memory.remove_known(published)?;
                Ok(Some(Arc::clone(published)))
            })?;
        } else if self.target.exists() {
            datastore = Some(Arc::new(Datastore::open(&self.target)?));
        }
        Ok(TransferReport {
            datastore,
            num_texts: self.num_texts,
            num_added_documents,
            num_added_tokens,
            num_left: self.memory.num_tokens(),
        })
    }
}

/// A file in the folder of the memory's file, with the path of the datastore that its texts move to.
struct Note {
    path: PathBuf,
    staging: PathBuf,
}

impl Note {
    const ENDING: &str = ".move";

    fn write(path: &Path, target: &Path, staging: &Path) -> Result<Self> {
        let target = target.as_os_str().as_encoded_bytes();
        let ending = format!(".{:016x}{}", xxh3_64(target), Self::ENDING);
        let name = path.file_name().unwrap_or_default();
        let note = path.with_file_name(hidden(name, &ending));
        let mut file = open_beside(&note, path)?;
        let note = Self { path: note, staging: staging.to_owned() };
        inherit_owner(&file, path)?;
        let written = file.set_len(0).and_then(|()| file.write_all(target));
        written.and_then(|()| file.sync_all()).map_err(Error::io(&note.path))?;
        sync_parent(&note.path)?;
        Ok(note)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if !self.staging.exists() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the staging folders of killed moves from the file at `path`. Running moves continue: they read the file
/// again before they publish.
pub(crate) fn clear_transfers(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let start = hidden(path.file_name().unwrap_or_default(), ".");
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let note = entry.map_err(Error::io(folder))?.path();
        let name = note.file_name().unwrap_or_default().as_encoded_bytes();
        let is_note =
            name.starts_with(start.as_encoded_bytes()) && name.ends_with(Note::ENDING.as_bytes());
        if is_note && remove_abandoned(&target_of(&note)?).map_err(as_owner)? {
            fs::remove_file(&note).map_err(Error::io(&note))?;
        }
    }
    Ok(())
}

fn as_owner(error: Error) -> Error {
    let Error::Foreign(path) = error else { return error };
    let reason = "it has texts of a move that was killed and belongs to another user: repeat this as that user";
    Error::io(&path)(io::Error::new(ErrorKind::PermissionDenied, reason))
}

#[cfg(unix)]
fn target_of(note: &Path) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let target = fs::read(note).map_err(Error::io(note))?;
    Ok(std::ffi::OsString::from_vec(target).into())
}

#[cfg(not(unix))]
fn target_of(note: &Path) -> Result<PathBuf> {
    fs::read_to_string(note).map(PathBuf::from).map_err(Error::io(note))
}

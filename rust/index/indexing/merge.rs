//! Merging of datastores, and compaction of shards.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::error::{Error, Result};
use crate::indexing::builder::DatastoreBuilder;
use crate::indexing::checks::{check_replaceable, check_tokenizer};
use crate::indexing::document_log::Documents;
use crate::indexing::options::DatastoreOptions;
use crate::indexing::staging::Staging;
use crate::lookup::datastore::Datastore;
use crate::storage::manifest::{MAX_SHARDS, Manifest, ShardManifest};
use crate::suffixes::write::{Report, Stage};

/// Merges datastores of one tokenizer: the new one at `path` has all their shards in order, each once. Documents are
/// not compared.
///
/// # Errors
/// Without `overwrite`, [`Error::Exists`] if there is something at `path`; [`Error::OtherTokenizer`] if the
/// tokenizers differ.
pub fn merge(
    sources: &[impl AsRef<Path>],
    path: impl AsRef<Path>,
    overwrite: bool,
) -> Result<Datastore> {
    check_replaceable(path.as_ref(), overwrite)?;
    let mut staging = Staging::open(path.as_ref())?;
    check_replaceable(&staging.target, overwrite)?;
    staging.begin(None)?;
    let manifest = join(sources, &staging.shards())?;
    staging.publish(manifest)?;
    Datastore::open(&staging.target)
}

/// Links all shards into a folder and returns the manifest of the merged datastore.
fn join(sources: &[impl AsRef<Path>], folder: &Path) -> Result<Manifest> {
    let mut merged: Option<Manifest> = None;
    for source in sources {
        let source = source.as_ref();
        let mut manifest = Manifest::read(source)?;
        let shards = std::mem::take(&mut manifest.shards);
        let merged = merged.get_or_insert_with(|| Manifest {
            num_tokens: 0,
            num_documents: 0,
            corpus: Vec::new(),
            commands: Vec::new(),
            ..manifest.clone()
        });
        check_tokenizer(source, &manifest, merged.tokenizer())?;
        add_new(&mut merged.corpus, manifest.corpus);
        add_new(&mut merged.commands, manifest.commands);
        for shard in shards {
            if merged.shards.contains(&shard) {
                continue;
            }
            let (from, to) = (shard.folder(source), shard.folder(folder));
            ShardManifest::read(&from, merged, &shard)?.link(&from, &to)?;
            merged.extend([shard]);
        }
    }
    let merged = merged.ok_or_else(|| Error::invalid("sources", "are empty: give at least one"))?;
    if merged.shards.len() > MAX_SHARDS {
        let reason = format!("have more than {MAX_SHARDS} shards: compact them first");
        return Err(Error::invalid("sources", reason));
    }
    Ok(merged)
}

fn add_new(lines: &mut Vec<String>, more: Vec<String>) {
    for line in more {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
}

/// Options of [`compact`], which have the same meaning as in [`DatastoreOptions`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactOptions {
    pub max_shard_tokens: Option<u64>,
    pub max_memory: Option<u64>,
    /// Retains only one copy of equal documents.
    pub drop_duplicates: bool,
}

/// Rebuilds the datastore at `path` with as few shards as the options allow, as one build of all its documents would
/// have made it. A single shard is not rebuilt. Open readers keep the old shards. If a call is killed, the next one
/// resumes it.
///
/// # Errors
/// [`Error::Locked`] if another process writes to `path`, or an I/O error; the datastore is then unchanged.
pub fn compact(path: impl AsRef<Path>, options: CompactOptions) -> Result<Datastore> {
    compact_with(path, options, &mut |_stage, _done, _total| Ok(()))
}

/// Does the same as [`compact`] and reports progress.
///
/// # Errors
/// Those of [`compact`], or the error of `report`, which stops the call.
pub fn compact_with(
    path: impl AsRef<Path>,
    options: CompactOptions,
    report: &mut Report<'_>,
) -> Result<Datastore> {
    let path = path.as_ref();
    loop {
        let old = Manifest::read(path)?;
        let mut builder = DatastoreBuilder::create(path, rebuild(&old, options))?;
        // Other writers are locked out only now, so the manifest is read again.
        if Manifest::read(path)?.build_id != old.build_id {
            continue;
        }
        let is_one = old.shards.len() == 1 && old.num_tokens <= builder.limit;
        if is_one && !options.drop_duplicates {
            builder.leave(&old)?;
            return Datastore::open(path);
        }
        add_all(&mut builder, &old, path, report)?;
        return builder.finish_with(report);
    }
}

fn rebuild(old: &Manifest, options: CompactOptions) -> DatastoreOptions {
    DatastoreOptions {
        tokenizer_name: old.tokenizer_name.clone(),
        tokenizer_fingerprint: old.tokenizer_fingerprint.clone(),
        corpus: old.corpus.clone(),
        commands: old.commands.clone(),
        max_shard_tokens: options.max_shard_tokens,
        max_memory: options.max_memory,
        drop_duplicates: options.drop_duplicates,
        overwrite: true,
        plan: Some(format!("compact {}", old.build_id)),
        ..DatastoreOptions::new(old.vocab_size, old.separator)
    }
}

/// Adds all documents of a datastore, except those that the builder had before a kill.
fn add_all(
    builder: &mut DatastoreBuilder,
    old: &Manifest,
    path: &Path,
    report: &mut Report<'_>,
) -> Result<()> {
    let mut to_skip = builder.num_given();
    let mut done = 0;
    for shard in &old.shards {
        let mut documents = Documents::of_shard(path, old, shard)?;
        while let Some(document) = documents.next().transpose()? {
            done += document.len() as u64 + 1;
            if to_skip > 0 {
                to_skip -= 1;
                continue;
            }
            builder.add_documents(&document, &[document.len()], &[documents.source()])?;
            if done % REPORT_TOKENS < document.len() as u64 + 1 {
                report(Stage::Read, done, old.num_tokens)?;
            }
        }
    }
    Ok(())
}

const REPORT_TOKENS: u64 = 1 << 20;

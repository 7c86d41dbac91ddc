//! The builder of datastores.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::base::error::{Error, Result};
use crate::indexing::admission::Admission;
use crate::indexing::checks::{check_documents, check_target, split_documents};
use crate::indexing::document_log::{Checkpoint, DocumentLog, Documents};
use crate::indexing::index_workers::IndexWorkers;
use crate::indexing::options::DatastoreOptions;
use crate::indexing::staging::Staging;
use crate::lookup::datastore::Datastore;
use crate::storage::manifest::{self, MAX_SHARDS, Manifest, ShardEntry, ShardManifest};
use crate::storage::section::FORMAT_VERSION;
use crate::suffixes::write::{Report, Stage};

/// Takes documents, streams their tokens to disk, and indexes each complete shard in the background.
///
/// Everything is written beside the target and published in one step: a build that fails or is killed
/// leaves the old datastore, or none. With a [`plan`](DatastoreOptions::plan), the next build of the same
/// plan goes on after the first [`num_given`](Self::num_given) documents.
#[derive(Debug)]
pub struct DatastoreBuilder {
    options: DatastoreOptions,
    /// The manifest of the datastore that is added to.
    old: Option<Manifest>,
    /// How many tokens the largest shard may have.
    pub(crate) limit: u64,
    /// It stands before `staging`, so it is dropped before the folder in which its threads write.
    indexer: IndexWorkers,
    staging: Staging,
    /// How many tokens each new shard has whose text is complete.
    shards: Vec<u64>,
    current: Option<DocumentLog>,
    admission: Admission,
    has_failed: bool,
}

impl DatastoreBuilder {
    /// Starts a build at `path`, whose parent folder must exist, or goes on with one that was killed.
    pub fn create(path: impl AsRef<Path>, options: DatastoreOptions) -> Result<Self> {
        options.check()?;
        let limit = options.largest_shard()?;
        check_target(path.as_ref(), &options)?;
        let mut staging = Staging::open(path.as_ref())?;
        let target = staging.target.clone();
        let old = check_target(&target, &options)?; // again, now that nobody else changes it
        let old_id = old.as_ref().map(|old| old.build_id.as_str());
        let goes_on = staging.begin(options.recipe(old_id).as_deref())?;
        let mut builder = Self {
            indexer: IndexWorkers::new(options.num_threads(limit))?,
            admission: Admission::default(),
            options,
            old,
            limit,
            staging,
            shards: Vec::new(),
            current: None,
            has_failed: false,
        };
        // What is there already is a duplicate.
        if builder.options.drop_duplicates
            && let Some(old) = &builder.old
        {
            for shard in &old.shards {
                let documents = Documents::of_shard(&target, old, shard)?;
                builder.admission.remember(documents)?;
            }
        }
        if goes_on {
            builder.go_on()?;
        }
        Ok(builder)
    }

    /// Adds a document; one without tokens is skipped.
    pub fn add_document(&mut self, tokens: &[u32]) -> Result<()> {
        self.add_documents(tokens, &[tokens.len()])
    }

    /// Adds documents: their tokens one after the other, and the number of tokens of each; empty ones are
    /// skipped. What is refused adds nothing, and the build can go on; after an error of the disk, it
    /// cannot.
    pub fn add_documents(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<()> {
        self.check_not_failed()?;
        check_documents(tokens, lengths, self.options.vocab_size, self.limit)?;
        self.has_failed = true;
        for document in split_documents(tokens, lengths) {
            if self.admission.admit(document, &self.options) {
                self.write_document(document)?;
            }
        }
        self.has_failed = false;
        Ok(())
    }

    /// The tokens that were added, separators included.
    pub fn num_tokens(&self) -> u64 {
        self.admission.num_tokens
    }

    /// The documents that were added, without those left out.
    pub fn num_documents(&self) -> u64 {
        self.admission.num_documents
    }

    /// The documents that were left out as duplicates; those before a kill are not counted.
    pub fn num_duplicates(&self) -> u64 {
        self.admission.num_duplicates
    }

    /// Whether a limit is reached, so that no more documents are taken.
    pub fn is_full(&self) -> bool {
        self.admission.is_full(&self.options)
    }

    /// All documents that were given so far, those before a kill included. Who reads the same corpus
    /// again skips
    /// these.
    pub fn num_given(&self) -> u64 {
        self.admission.num_given
    }

    /// The folder in which the build writes. The caller may keep notes there; they are removed with the rest.
    pub fn staging_folder(&self) -> &Path {
        &self.staging.folder
    }

    /// Makes a checkpoint from which the next build goes on: for a user's interrupt.
    pub fn keep(&mut self) {
        if let (false, Some(text)) = (self.has_failed, &mut self.current) {
            let _ = text.checkpoint(); // what cannot be kept is given again
        }
    }

    /// Waits until all shards are indexed, publishes the datastore and opens it. Where it fails without a
    /// plan, nothing is left. O(tokens).
    pub fn finish(self) -> Result<Datastore> {
        self.finish_with(&mut |_stage, _done, _total| Ok(()))
    }

    /// [`finish`](Self::finish), and reports how far it has come.
    pub fn finish_with(mut self, report: &mut Report<'_>) -> Result<Datastore> {
        self.check_not_failed()?;
        self.complete_text()?;
        if self.shards.is_empty() && (self.old.is_none() || self.admission.num_given == 0) {
            return Err(Error::EmptyCorpus);
        }
        self.index_shards(report)?;
        let manifest = self.manifest(self.gather()?);
        check_target(&self.staging.target, &self.options)?;
        if self.shards.is_empty() {
            self.staging.leave(&manifest)?; // every document was there before
        } else {
            self.staging.publish(manifest)?;
        }
        Datastore::open(&self.staging.target)
    }

    /// Ends a build that would not change the datastore.
    pub(crate) fn leave(mut self, manifest: &Manifest) -> Result<()> {
        self.staging.leave(manifest)
    }

    fn check_not_failed(&self) -> Result<()> {
        if self.has_failed { Err(Error::BuildFailed) } else { Ok(()) }
    }

    fn write_document(&mut self, document: &[u32]) -> Result<()> {
        let num_tokens = document.len() as u64 + 1;
        let is_full = |text: &DocumentLog| text.num_tokens() + num_tokens > self.limit;
        if self.current.as_ref().is_some_and(is_full) {
            self.complete_text()?;
        }
        let text = if let Some(text) = &mut self.current {
            text
        } else {
            let folder = self.staging.workplace(self.shards.len());
            let text = DocumentLog::open(&folder, &self.options, None)?;
            self.current.insert(text)
        };
        text.add(document, self.admission.num_given)
    }

    fn complete_text(&mut self) -> Result<()> {
        let Some(text) = self.current.take() else {
            return Ok(());
        };
        let (folder, text, checkpoint) = text.finish()?;
        self.push(checkpoint.num_tokens)?;
        self.indexer.add(folder, text)
    }

    fn push(&mut self, num_tokens: u64) -> Result<()> {
        let num_old = self.old.as_ref().map_or(0, |old| old.shards.len());
        if num_old + self.shards.len() == MAX_SHARDS {
            let reason = format!("is too small: it makes more than {MAX_SHARDS} shards");
            return Err(Error::invalid("max_shard_tokens", reason));
        }
        self.shards.push(num_tokens);
        Ok(())
    }

    fn index_shards(&mut self, report: &mut Report<'_>) -> Result<()> {
        let (num_shards, num_tokens) = (self.shards.len() as u64, self.shards.iter().sum());
        self.indexer.finish(|progress| {
            let stages = [
                (Stage::Sort, &progress.num_sorted, num_tokens),
                (Stage::Write, &progress.num_written, num_tokens),
                (Stage::Sync, &progress.num_complete, num_shards),
            ];
            let mut stages = stages.into_iter();
            stages
                .try_for_each(|(stage, done, all)| report(stage, done.load(Ordering::Relaxed), all))
        })
    }

    /// Links complete shards to where they are published from: if a kill comes now, they are still here.
    fn gather(&self) -> Result<Vec<ShardEntry>> {
        let staging = &self.staging;
        let gather = |index| {
            let from = staging.workplace(index);
            let shard = ShardManifest::read_sealed(&from).ok_or(Error::BuildFailed)?;
            let entry = shard.entry();
            shard.link(&from, &entry.folder(&staging.shards()))?;
            Ok(entry)
        };
        (0..self.shards.len()).map(gather).collect()
    }

    fn manifest(&self, shards: Vec<ShardEntry>) -> Manifest {
        let options = self.options.clone();
        let mut manifest = self.old.clone().unwrap_or_else(|| Manifest {
            format: manifest::FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            vocab_size: options.vocab_size,
            separator: options.separator,
            num_tokens: 0,
            num_documents: 0,
            tokenizer_name: options.tokenizer_name,
            tokenizer_fingerprint: options.tokenizer_fingerprint,
            corpus: Vec::new(),
            commands: Vec::new(),
            shards: Vec::new(),
            build_id: String::new(),
        });
        manifest.corpus.extend(options.corpus);
        manifest.commands.extend(options.commands);
        manifest.extend(shards);
        manifest
    }

    /// Goes on from the complete shards, the complete texts and the last checkpoint of a killed build.
    fn go_on(&mut self) -> Result<()> {
        self.has_failed = true;
        loop {
            let folder = self.staging.workplace(self.shards.len());
            let Some(checkpoint) = Checkpoint::read(&folder) else {
                break;
            };
            (self.admission).take_up(&checkpoint, &folder, &self.options)?;
            if ShardManifest::read_sealed(&folder).is_some() {
                self.push(checkpoint.num_tokens)?;
                self.indexer.progress.skip(checkpoint.num_tokens);
                continue;
            }
            let text = DocumentLog::open(&folder, &self.options, Some(checkpoint))?;
            self.current = Some(text);
            if !checkpoint.is_complete {
                break;
            }
            self.complete_text()?;
        }
        self.has_failed = false;
        Ok(())
    }
}

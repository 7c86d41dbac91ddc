//! Datastore builder.

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

/// Streams the tokens of documents to disk and indexes each complete shard in the background.
///
/// A build is written to a staging folder next to the target and published in one step: a build that fails or is
/// killed leaves the old datastore, or none. With a [`plan`](DatastoreOptions::plan), the next build of the same plan
/// resumes after the first [`num_given`](Self::num_given) documents. Private memory is bounded by
/// [`max_memory`](DatastoreOptions::max_memory) and 16 bytes a document if duplicates are dropped; time is linear in
/// the tokens.
#[derive(Debug)]
pub struct DatastoreBuilder {
    options: DatastoreOptions,
    /// The manifest of the datastore that is added to.
    old: Option<Manifest>,
    /// Maximum number of tokens of a shard.
    pub(crate) limit: u64,
    /// Fields are dropped in order, so its threads end before the folder in which they write is removed.
    indexer: IndexWorkers,
    staging: Staging,
    /// Number of tokens of each new shard whose text is complete.
    shards: Vec<u64>,
    current: Option<DocumentLog>,
    admission: Admission,
    has_failed: bool,
}

impl DatastoreBuilder {
    /// Starts a build at `path`, whose parent folder must exist, or resumes one that was killed.
    ///
    /// # Errors
    /// An invalid option or plan, a running build of this path ([`Error::Locked`]), or a path that may not be replaced.
    pub fn create(path: impl AsRef<Path>, options: DatastoreOptions) -> Result<Self> {
        options.check()?;
        let limit = options.largest_shard()?;
        check_target(path.as_ref(), &options)?;
        let mut staging = Staging::open(path.as_ref())?;
        let target = staging.target.clone();
        let old = check_target(&target, &options)?; // again, now that nobody else changes it
        let old_id = old.as_ref().map(|old| old.build_id.as_str());
        let is_resumed = staging.begin(options.build_key(old_id).as_deref())?;
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
        // Copies of documents in the old datastore are duplicates.
        if builder.options.drop_duplicates
            && let Some(old) = &builder.old
        {
            for shard in &old.shards {
                let documents = Documents::of_shard(&target, old, shard)?;
                builder.admission.remember(documents)?;
            }
        }
        if is_resumed {
            builder.resume()?;
        }
        Ok(builder)
    }

    /// Adds a document; an empty one is skipped.
    ///
    /// # Errors
    /// Those of [`add_documents`](Self::add_documents).
    pub fn add_document(&mut self, tokens: &[u32]) -> Result<()> {
        self.add_documents(tokens, &[tokens.len()], &[])
    }

    /// Adds documents, given as their concatenated tokens and the length of each; empty ones are skipped. `sources`
    /// has the name of the place of each, or is empty.
    ///
    /// # Errors
    /// Rejected arguments add nothing, and the build can continue. After an I/O error it cannot.
    pub fn add_documents(
        &mut self,
        tokens: &[u32],
        lengths: &[usize],
        sources: &[String],
    ) -> Result<()> {
        self.check_not_failed()?;
        check_documents(tokens, lengths, self.options.vocab_size, self.limit)?;
        if !sources.is_empty() && sources.len() != lengths.len() {
            let reason = format!("must be one for each of the {} documents", lengths.len());
            return Err(Error::invalid("sources", reason));
        }
        self.has_failed = true;
        for (index, document) in split_documents(tokens, lengths).enumerate() {
            if self.admission.admit(document, &self.options) {
                self.write_document(document, sources.get(index).map_or("", |source| source))?;
            }
        }
        self.has_failed = false;
        Ok(())
    }

    /// Number of added tokens, separators included.
    pub fn num_tokens(&self) -> u64 {
        self.admission.num_tokens
    }

    /// Number of added documents.
    pub fn num_documents(&self) -> u64 {
        self.admission.num_documents
    }

    /// Number of rejected duplicates, without those before a kill.
    pub fn num_duplicates(&self) -> u64 {
        self.admission.num_duplicates
    }

    /// Returns whether a limit is reached, so that further documents are ignored.
    pub fn is_full(&self) -> bool {
        self.admission.is_full(&self.options)
    }

    /// Number of documents that were passed so far, including those before a kill: a caller that reads the same
    /// corpus again skips these.
    pub fn num_given(&self) -> u64 {
        self.admission.num_given
    }

    /// Returns the staging folder. The caller may store files of its own in it, which are removed with the folder.
    pub fn staging_folder(&self) -> &Path {
        &self.staging.folder
    }

    /// Writes a checkpoint from which the next build resumes, for an interrupt by the user.
    pub fn keep(&mut self) {
        if let (false, Some(text)) = (self.has_failed, &mut self.current) {
            let _ = text.checkpoint(); // what cannot be kept is given again
        }
    }

    /// Waits until all shards are indexed, publishes the datastore and opens it. O(tokens).
    ///
    /// # Errors
    /// Without a plan, a failure removes everything that the build wrote.
    pub fn finish(self) -> Result<Datastore> {
        self.finish_with(&mut |_stage, _done, _total| Ok(()))
    }

    /// Does the same as [`finish`](Self::finish) and reports progress.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish), or the error of `report`, which stops the build.
    pub fn finish_with(mut self, report: &mut Report<'_>) -> Result<Datastore> {
        self.index(report)?;
        let manifest = self.manifest(self.gather()?);
        check_target(&self.staging.target, &self.options)?;
        if self.shards.is_empty() {
            self.staging.leave(&manifest)?; // every document was there before
        } else {
            self.staging.publish(manifest)?;
        }
        Datastore::open(&self.staging.target)
    }

    /// Waits until all shards are indexed; what is left is to publish them. No documents can be added any more.
    ///
    /// # Errors
    /// [`Error::EmptyCorpus`] without documents, an I/O error, or the error of `report`.
    pub fn index(&mut self, report: &mut Report<'_>) -> Result<()> {
        self.check_not_failed()?;
        self.complete_text()?;
        if self.shards.is_empty() && (self.old.is_none() || self.admission.num_given == 0) {
            return Err(Error::EmptyCorpus);
        }
        self.index_shards(report)
    }

    /// Ends a build that would not change the datastore.
    pub(crate) fn leave(mut self, manifest: &Manifest) -> Result<()> {
        self.staging.leave(manifest)
    }

    fn check_not_failed(&self) -> Result<()> {
        if self.has_failed { Err(Error::BuildFailed) } else { Ok(()) }
    }

    fn write_document(&mut self, document: &[u32], source: &str) -> Result<()> {
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
        text.add(document, source, self.admission.num_given)
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

    /// Links complete shards into the folder that is published. The links keep the originals, so that a build that
    /// is killed here can resume.
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

    /// Resumes from the complete shards, the complete texts and the last checkpoint of a killed build.
    fn resume(&mut self) -> Result<()> {
        self.has_failed = true;
        loop {
            let folder = self.staging.workplace(self.shards.len());
            let Some(checkpoint) = Checkpoint::read(&folder) else {
                break;
            };
            self.admission.resume(&checkpoint, &folder, &self.options)?;
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

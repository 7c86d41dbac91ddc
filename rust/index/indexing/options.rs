//! Options of a build.

use std::thread;

use serde::{Deserialize, Serialize};

use crate::base::checks::check_within;
use crate::base::error::{Error, Result};
use crate::storage::manifest::{MAX_SHARD_TOKENS, MAX_VOCAB_SIZE};
use crate::storage::token_array::TokenWidth;
use crate::suffixes::suffix_array::{self, most_tokens};

/// Options of a [`DatastoreBuilder`](crate::DatastoreBuilder).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatastoreOptions {
    /// Token ids of documents are below this number, which is at most [`MAX_VOCAB_SIZE`].
    #[serde(skip)]
    pub vocab_size: u32,
    /// The token that ends each document: one of the vocabulary, or `vocab_size` if the tokenizer has none.
    /// Documents may contain it; no match does.
    #[serde(skip)]
    pub separator: u32,
    /// The tokenizer's name, for readers.
    pub tokenizer_name: String,
    /// The tokenizer's fingerprint, which programs compare: drafts of a datastore with another tokenizer would be
    /// wrong.
    pub tokenizer_fingerprint: String,
    /// The origins of the documents, one line a source.
    pub corpus: Vec<String>,
    /// The commands that made the datastore, one a line.
    pub commands: Vec<String>,
    /// Maximum number of tokens of a shard, separators included; [`MAX_SHARD_TOKENS`] by default. Lookups are faster
    /// in few large shards.
    pub max_shard_tokens: Option<u64>,
    /// Maximum private memory in bytes of all concurrent sorts: 4 bytes a token (8 with 24-bit tokens), so it also
    /// bounds the size of shards.
    pub max_memory: Option<u64>,
    /// Rejects copies of earlier documents.
    pub drop_duplicates: bool,
    /// Maximum number of documents; further ones are ignored.
    pub max_documents: Option<u64>,
    /// Maximum number of tokens, separators included; the first document that does not fit and all after it are
    /// ignored.
    pub max_tokens: Option<u64>,
    /// Replaces a datastore at the path when the new one is complete.
    pub overwrite: bool,
    /// Adds the documents to the datastore at the path, in new shards.
    pub append: bool,
    /// A description of the build by the caller. The next build at this path with the same plan and options resumes
    /// one that was killed. A build without a plan removes everything that it wrote.
    pub plan: Option<String>,
}

impl DatastoreOptions {
    pub fn new(vocab_size: u32, separator: u32) -> Self {
        Self { vocab_size, separator, ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_within("vocab_size", self.vocab_size, 1..=MAX_VOCAB_SIZE)?;
        if self.separator > self.vocab_size {
            let (most, found) = (self.vocab_size, self.separator);
            let reason = format!("must be at most the vocabulary's size: {most}, not {found}");
            return Err(Error::invalid("separator", reason));
        }
        if self.overwrite && self.append {
            return Err(Error::invalid("append", "excludes `overwrite`"));
        }
        check_within("max_shard_tokens", self.shard_tokens(), 2..=MAX_SHARD_TOKENS)
    }

    fn shard_tokens(&self) -> u64 {
        self.max_shard_tokens.unwrap_or(MAX_SHARD_TOKENS)
    }

    fn memory(&self) -> u64 {
        self.max_memory.unwrap_or(u64::MAX)
    }

    pub(crate) fn largest_shard(&self) -> Result<u64> {
        let limit = most_tokens(self.memory(), self.width()).min(self.shard_tokens());
        if limit < 2 {
            let reason = format!("is too small to sort anything: {} bytes", self.memory());
            return Err(Error::invalid("max_memory", reason));
        }
        Ok(limit)
    }

    pub(crate) fn width(&self) -> TokenWidth {
        TokenWidth::of(self.vocab_size, self.separator)
    }

    /// Returns a key that is equal for builds of the same plan that make the same shards. `old` is the build id of
    /// the datastore that is appended to.
    pub(crate) fn build_key(&self, old: Option<&str>) -> Option<String> {
        let plan = self.plan.as_ref()?;
        let shaping = Self {
            tokenizer_name: String::new(),
            corpus: Vec::new(),
            commands: Vec::new(),
            plan: None,
            ..self.clone()
        };
        Some(format!("{plan}\n{shaping:?} {}", old.unwrap_or_default()))
    }

    /// Returns the number of shards that are sorted concurrently.
    pub(crate) fn num_threads(&self, limit: u64) -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let in_memory = self.memory() / suffix_array::memory(limit, self.width());
        usize::try_from(in_memory).unwrap_or(cores).clamp(1, cores)
    }
}

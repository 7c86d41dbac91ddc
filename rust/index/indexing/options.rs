//! The options of a build.

use std::thread;

use serde::{Deserialize, Serialize};

use crate::base::checks::check_within;
use crate::base::error::{Error, Result};
use crate::storage::manifest::{MAX_SHARD_TOKENS, MAX_VOCAB_SIZE};
use crate::storage::token_array::TokenWidth;
use crate::suffixes::suffix_array::{self, most_tokens};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatastoreOptions {
    /// Tokens of documents are below this; at most [`MAX_VOCAB_SIZE`].
    #[serde(skip)]
    pub vocab_size: u32,
    /// Ends each document: a token of the vocabulary, or `vocab_size` where the tokenizer has none.
    /// Documents may contain it; no match does.
    #[serde(skip)]
    pub separator: u32,
    /// The tokenizer's name, for people.
    pub tokenizer_name: String,
    /// The tokenizer's fingerprint, for programs: a datastore of another tokenizer drafts nonsense.
    pub tokenizer_fingerprint: String,
    /// Where the documents come from, one line a source.
    pub corpus: Vec<String>,
    /// What asked for this build, for its readers, one line a command.
    pub commands: Vec<String>,
    /// The most tokens of a shard, separators included; [`MAX_SHARD_TOKENS`] where none is given. Few large
    /// shards are faster to look up in.
    pub max_shard_tokens: Option<u64>,
    /// The most private memory, in bytes, over all shards that are sorted at the same time: 4 a token (8
    /// where tokens have 24 bits), so it bounds the shards too.
    pub max_memory: Option<u64>,
    /// Whether documents that were added before are left out.
    pub drop_duplicates: bool,
    /// The most documents to add; those beyond are ignored.
    pub max_documents: Option<u64>,
    /// The most tokens to add, separators included: the first document that does not fit, and all after it,
    /// are ignored.
    pub max_tokens: Option<u64>,
    /// Whether a datastore at the path is replaced once the new one is complete.
    pub overwrite: bool,
    /// Whether the documents are added to the datastore at the path, in shards of their own.
    pub append: bool,
    /// What is built, in the caller's words: the next build at this path with the same words and options
    /// goes on from one that was killed. Without words, builds leave nothing.
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

    /// A text that is equal for builds that make the same shards. `old` is the build id of the
    /// datastore that is added to.
    pub(crate) fn recipe(&self, old: Option<&str>) -> Option<String> {
        let words = self.plan.as_ref()?;
        let shaping = Self {
            tokenizer_name: String::new(),
            corpus: Vec::new(),
            commands: Vec::new(),
            plan: None,
            ..self.clone()
        };
        Some(format!("{words}\n{shaping:?} {}", old.unwrap_or_default()))
    }

    /// How many shards are sorted at the same time.
    pub(crate) fn num_threads(&self, limit: u64) -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let in_memory = self.memory() / suffix_array::memory(limit, self.width());
        usize::try_from(in_memory).unwrap_or(cores).clamp(1, cores)
    }
}

//! Which shards does a build wait for that others write?

use std::collections::VecDeque;

use crate::build::document_log::Checkpoint;
use crate::storage::manifest::ShardEntry;

/// The documents that a build has placed into shards without having their tokens: what each shard
/// will hold, from the first that the build has not adopted.
#[derive(Debug, Default)]
pub(crate) struct ShardPlan(VecDeque<Checkpoint>);

impl ShardPlan {
    /// Puts one more document into the last shard, or into a new one where that would exceed
    /// `limit`; gives the number of its shard.
    pub(crate) fn add(&mut self, num_tokens: u64, num_given: u64, limit: u64) -> usize {
        let fits = |shard: &Checkpoint| shard.num_tokens + num_tokens <= limit;
        if !self.0.back().is_some_and(fits) {
            self.0.push_back(Checkpoint::default());
        }
        if let Some(shard) = self.0.back_mut() {
            shard.num_tokens += num_tokens;
            shard.num_documents += 1;
            shard.num_given = num_given;
        }
        self.0.len() - 1
    }

    /// Takes the next shard off the list, if `entry` is what it was to be.
    pub(crate) fn adopt(&mut self, entry: &ShardEntry) -> Option<Checkpoint> {
        let is_next = |shard: &Checkpoint| {
            (shard.num_tokens, shard.num_documents) == (entry.num_tokens, entry.num_documents)
        };
        self.0
            .front()
            .is_some_and(is_next)
            .then(|| self.0.pop_front())?
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

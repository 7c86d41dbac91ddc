//! Sorted n-grams of a datastore with their counts.

use std::ops::Range;

use crate::base::checks::check_within;
use crate::base::error::{Error, Result};
use crate::base::threads::in_parallel;
use crate::lookup::datastore::Datastore;
use crate::lookup::shard::Shard;

/// Number of suffixes that are read at a time.
const CHUNK: usize = 1 << 18;

/// Number of suffixes of a chunk that one thread reads.
const PIECE: usize = 1 << 12;

const MAX_ORDER: usize = 5;

/// Bits of a token, sufficient for [`MAX_VOCAB_SIZE`](crate::MAX_VOCAB_SIZE).
const TOKEN_BITS: usize = 24;

/// Tokens packed into a number, so that n-grams sort as their numbers.
type NGram = u128;

impl Datastore {
    /// Visits every n-gram of `order` tokens, 1 to 5, that occurs within a document, ascending, with its exact
    /// count. Only its last token may be the separator, if that is in the vocabulary. The result does not depend on
    /// the division into shards. An error of `visit` ends the visits.
    ///
    /// Suffixes of a shard are sorted, so equal n-grams are adjacent: O(n) time, and no memory but the tokens,
    /// 2 or 3 bytes each.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another order, [`Error::Corrupt`] if suffixes are not sorted, or the error of `visit`.
    pub fn visit_ngrams(
        &self,
        order: usize,
        mut visit: impl FnMut(&[u32], u64) -> Result<()>,
    ) -> Result<()> {
        check_within("order", order, 1..=MAX_ORDER)?;
        self.shards.iter().try_for_each(Shard::warm)?;
        let in_shard = |shard| ngrams(shard, self.separator(), order).peekable();
        let mut shards: Vec<_> = self.shards.iter().map(in_shard).collect();
        let mut last = None;
        while let Some(&ngram) = shards.iter_mut().filter_map(|shard| shard.peek()).min() {
            if last.replace(ngram).is_some_and(|last| last >= ngram) {
                let reason = "its suffixes are not in order";
                return Err(Error::corrupt(self.path(), reason));
            }
            let mut count = 0;
            for shard in &mut shards {
                while shard.next_if_eq(&ngram).is_some() {
                    count += 1;
                }
            }
            visit(&tokens(ngram)[MAX_ORDER - order..], count)?;
        }
        Ok(())
    }
}

/// Unpacks an n-gram into the last elements of the array.
fn tokens(ngram: NGram) -> [u32; MAX_ORDER] {
    std::array::from_fn(|index| {
        let bits = ngram >> (TOKEN_BITS * (MAX_ORDER - 1 - index));
        #[expect(clippy::cast_possible_truncation, reason = "the other tokens are cut off")]
        let token = bits as u32 & ((1 << TOKEN_BITS) - 1);
        token
    })
}

/// Returns the n-grams of a shard, ascending.
fn ngrams(shard: &Shard, separator: u32, order: usize) -> impl Iterator<Item = NGram> + use<'_> {
    let ngram = move |start: usize| {
        (0..order).try_fold(0, |ngram, index| {
            let token = shard.token_at(start + index);
            let is_part = token < shard.vocab_size && (index + 1 == order || token != separator);
            is_part.then(|| ngram << TOKEN_BITS | NGram::from(token))
        })
    };
    let num_suffixes = shard.num_tokens();
    (0..num_suffixes).step_by(CHUNK).flat_map(move |start| {
        let pieces = (start..num_suffixes.min(start + CHUNK)).step_by(PIECE);
        let pieces = in_parallel(&mut pieces.collect::<Vec<_>>(), 1, |start| {
            // All positions and one token of each are read first, so that the cache misses overlap.
            let ranks: Range<usize> = *start..num_suffixes.min(*start + PIECE);
            let mut positions: Vec<_> = ranks.map(|rank| shard.position(rank)).collect();
            positions.retain(|&position| position < num_suffixes);
            shard.touch(&positions, 0, order);
            positions.into_iter().filter_map(ngram).collect::<Vec<_>>()
        });
        pieces.into_iter().flatten()
    })
}

//! How often does each n-gram occur in a datastore?

use crate::base::error::{Error, Result};
use crate::base::threads::in_parallel;
use crate::index::write::{Report, Stage};
use crate::lookup::datastore::Datastore;
use crate::lookup::shard::Shard;
use crate::papers::aded::trigrams::{Prefix, TrigramOptions, Trigrams, Word};

/// The suffixes that are read at a time, in parallel by pieces.
const CHUNK: usize = 1 << 18;
const PIECE: usize = 1 << 12;

/// N-grams between two reports.
const REPORT: u64 = 1 << 18;

impl Trigrams {
    /// Counts the n-grams of a datastore. How it is cut into shards makes no difference.
    ///
    /// The suffixes of a shard are in order, so equal n-grams stand together: O(n) time, and no memory but
    /// the matrix and the tokens, 2 or 3 bytes each.
    pub fn build(
        datastore: &Datastore,
        options: TrigramOptions,
        report: &mut Report<'_>,
    ) -> Result<Self> {
        let mut matrix = Self::empty(options, datastore.vocab_size(), datastore.separator())?;
        let total = datastore.num_tokens();
        let shards = &datastore.shards;
        shards.iter().try_for_each(Shard::warm)?;
        let grams = shards.iter().map(|shard| grams(shard, &matrix).peekable());
        let mut grams: Vec<_> = grams.collect();
        let (mut num_read, mut next_report) = (0, REPORT);
        let mut last = None;
        let mut counts = Vec::new();
        while let Some(&gram) = grams.iter_mut().filter_map(|grams| grams.peek()).min() {
            if let Some(last) = last.replace(gram) {
                if last >= gram {
                    let reason = "its suffixes are not in order";
                    return Err(Error::corrupt(datastore.path(), reason));
                }
                if last.0 != gram.0 {
                    matrix.append(last.0, words(&mut counts));
                }
            }
            let mut count = 0;
            for grams in &mut grams {
                while grams.next_if_eq(&gram).is_some() {
                    count += 1;
                }
            }
            counts.push((gram.1, count));
            num_read += count;
            if num_read >= next_report {
                next_report = num_read + REPORT;
                report(Stage::Read, num_read, total)?;
            }
        }
        report(Stage::Read, total, total)?;
        if let Some((prefix, _)) = last {
            matrix.append(prefix, words(&mut counts));
        }
        Ok(matrix)
    }
}

/// The words after a prefix, given how often each follows it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "as precise as a probability is"
)]
fn words(counts: &mut Vec<(u32, u64)>) -> Vec<Word> {
    let total = counts.iter().map(|&(_, count)| count).sum::<u64>() as f64;
    let word = |(token, count)| Word {
        token,
        prob: (count as f64 / total) as f32,
    };
    counts.drain(..).map(word).collect()
}

/// The n-grams of a shard, ascending. Only the last token of one can be the separator.
fn grams<'a>(shard: &'a Shard, matrix: &Trigrams) -> impl Iterator<Item = (Prefix, u32)> + use<'a> {
    let (order, vocab_size) = (matrix.options().order, matrix.vocab_size());
    let separator = matrix.separator;
    let gram = move |start: usize| {
        let token = |index| Some(shard.token_at(start + index)).filter(|&token| token < vocab_size);
        let before = |index| token(index).filter(|&token| token != separator);
        let prefix = (0..order - 1).try_fold(Prefix::default(), |prefix, index| {
            Some(prefix.then(before(index)?, order))
        });
        Some((prefix?, token(order - 1)?))
    };
    let num_suffixes = shard.num_tokens();
    (0..num_suffixes).step_by(CHUNK).flat_map(move |start| {
        let pieces = (start..num_suffixes.min(start + CHUNK)).step_by(PIECE);
        let grams = in_parallel(&mut pieces.collect::<Vec<_>>(), 1, |start| {
            // Positions and one token of each first: these reads overlap.
            let ranks = *start..num_suffixes.min(*start + PIECE);
            let mut positions: Vec<_> = ranks.map(|rank| shard.position(rank)).collect();
            positions.retain(|&position| position < num_suffixes);
            shard.touch(&positions, 0, order);
            positions.into_iter().filter_map(gram).collect::<Vec<_>>()
        });
        grams.into_iter().flatten()
    })
}

//! How often does each n-gram occur in a datastore?

use std::ops::ControlFlow;

use crate::base::error::{Error, Result};
use crate::base::threads::in_parallel;
use crate::index::write::Stage;
use crate::lookup::datastore::Datastore;
use crate::lookup::shard::Shard;
use crate::papers::aded::trigrams::{Prefix, TrigramFacts, TrigramOptions, Trigrams, Word};

/// The suffixes of a shard that are read at a time, in parallel by pieces.
const CHUNK: usize = 1 << 18;
const PIECE: usize = 1 << 12;

/// How many n-grams are counted between two reports.
const REPORT: u64 = 1 << 18;

impl Trigrams {
    /// Counts the n-grams of a datastore. How it is cut into shards makes no difference.
    ///
    /// The suffixes of a shard are in order, so equal n-grams stand together: counting takes O(n) time
    /// and hardly any memory beside the matrix. It reads tokens in the order of the suffixes: where they do
    /// not fit into memory, 2 or 3 bytes each, it waits for the disk.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless `order` lies in 2..=4, the limits are at least 1 and the
    /// vocabulary has at most [`MAX_VOCAB_SIZE`](crate::papers::aded::MAX_VOCAB_SIZE) tokens;
    /// [`Error::Stopped`] where `progress` says so; [`Error::Corrupt`] where suffixes are not in order.
    pub fn build(
        datastore: &Datastore,
        options: TrigramOptions,
        progress: &mut dyn FnMut(Stage, u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let facts = TrigramFacts {
            options,
            vocab_size: datastore.vocab_size(),
            separator: datastore.separator(),
        };
        facts.check()?;
        let total = datastore.num_tokens();
        let mut report = |done| match progress(Stage::Read, done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Stopped),
        };
        let shards = datastore.shards();
        shards.iter().try_for_each(Shard::warm)?;
        let grams = shards.iter().map(|shard| grams(shard, &facts).peekable());
        let mut grams: Vec<_> = grams.collect();
        let mut rows = Rows::default();
        let (mut num_read, mut next_report) = (0, REPORT);
        let mut last = None;
        while let Some(&gram) = grams.iter_mut().filter_map(|grams| grams.peek()).min() {
            if last.replace(gram).is_some_and(|last| last >= gram) {
                let reason = "its suffixes are not in order";
                return Err(Error::corrupt(datastore.path(), reason));
            }
            let mut count = 0;
            for grams in &mut grams {
                while grams.next_if_eq(&gram).is_some() {
                    count += 1;
                }
            }
            let (prefix, token) = gram;
            rows.add(prefix, token, count, &options);
            num_read += count;
            if num_read >= next_report {
                next_report = num_read + REPORT;
                report(num_read)?;
            }
        }
        report(total)?;
        rows.end(&options);
        rows.starts.push(rows.words.len());
        Ok(Self::new(facts, rows.prefixes, rows.starts, rows.words))
    }
}

/// The n-grams of a shard in ascending order, each as often as it occurs. Only the last token of one
/// can be the separator.
fn grams<'a>(
    shard: &'a Shard,
    facts: &TrigramFacts,
) -> impl Iterator<Item = (Prefix, u32)> + use<'a> {
    let (order, vocab_size, separator) = (facts.options.order, facts.vocab_size, facts.separator);
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
            // Positions and one token of each first: the processor then waits for many at a time.
            let ranks = *start..num_suffixes.min(*start + PIECE);
            let mut positions: Vec<_> = ranks.map(|rank| shard.position(rank)).collect();
            positions.retain(|&position| position < num_suffixes);
            shard.touch(&positions, 0);
            positions.into_iter().filter_map(gram).collect::<Vec<_>>()
        });
        grams.into_iter().flatten()
    })
}

/// The rows of a matrix as they are counted.
#[derive(Default)]
struct Rows {
    prefixes: Vec<Prefix>,
    starts: Vec<usize>,
    words: Vec<Word>,
    /// The prefix whose words are counted now, and these with their counts.
    prefix: Prefix,
    counts: Vec<(u32, u64)>,
}

impl Rows {
    fn add(&mut self, prefix: Prefix, token: u32, count: u64, options: &TrigramOptions) {
        if prefix != self.prefix {
            self.end(options);
            self.prefix = prefix;
        }
        self.counts.push((token, count));
    }

    /// Appends what is to be kept of the words that were counted.
    fn end(&mut self, options: &TrigramOptions) {
        let start = self.words.len();
        let total = self.counts.iter().map(|&(_, count)| count).sum();
        let frequent = self.counts.drain(..);
        let frequent = frequent.filter(|&(_, count)| count >= options.min_count);
        self.words.extend(frequent.map(|(token, count)| Word {
            token,
            prob: share(count, total),
        }));
        if self.words.len() > start {
            self.words[start..].sort_unstable_by(Word::compare);
            self.words.truncate(start.saturating_add(options.max_words));
            self.prefixes.push(self.prefix);
            self.starts.push(start);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "as precise as a probability is"
)]
fn share(part: u64, whole: u64) -> f32 {
    (part as f64 / whole as f64) as f32
}

//! How often does each n-gram occur in a datastore?

use std::ops::{ControlFlow, Range};

use crate::base::error::{Error, Result};
use crate::base::threads::in_parallel;
use crate::index::write::Stage;
use crate::lookup::datastore::Datastore;
use crate::papers::aded::trigrams::{
    Prefix, TOKEN_BITS, TrigramFacts, TrigramOptions, Trigrams, Word, low,
};

/// The n-grams that are counted at a time: 8 bytes each.
const BATCH: u64 = 1 << 25;

/// The tokens that are read at a time.
const CHUNK: usize = 1 << 18;

impl Trigrams {
    /// Counts the n-grams of a datastore. How it is cut into shards makes no difference.
    ///
    /// O(n log n) time, some of it in parallel; 256 MiB of memory, and more only where the n-grams
    /// that begin with one token alone take more, 8 bytes each.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless `order` lies in 2..=4, the limits are at least 1 and the
    /// vocabulary has at most [`MAX_VOCAB_SIZE`](crate::papers::aded::MAX_VOCAB_SIZE) tokens; [`Error::Stopped`] where `progress` says so.
    pub fn build(
        datastore: &Datastore,
        options: TrigramOptions,
        progress: &mut dyn FnMut(Stage, u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let manifest = datastore.manifest();
        let facts = TrigramFacts {
            order: options.order,
            max_words: options.max_words,
            min_count: options.min_count,
            vocab_size: manifest.vocab_size,
            separator: manifest.separator,
            tokenizer_name: manifest.tokenizer_name.clone(),
            tokenizer_fingerprint: manifest.tokenizer_fingerprint.clone(),
            corpus: manifest.corpus.clone(),
        };
        facts.check()?;
        Counter::new(datastore, facts, progress).count()
    }
}

/// Counts n-grams: those that begin with some of the tokens at a time, so that they fit in memory.
struct Counter<'a> {
    datastore: &'a Datastore,
    facts: TrigramFacts,
    progress: &'a mut dyn FnMut(Stage, u64, u64) -> ControlFlow<()>,
    num_read: u64,
    num_to_read: u64,
}

impl<'a> Counter<'a> {
    /// Nothing is read yet.
    fn new(
        datastore: &'a Datastore,
        facts: TrigramFacts,
        progress: &'a mut dyn FnMut(Stage, u64, u64) -> ControlFlow<()>,
    ) -> Self {
        Self {
            datastore,
            facts,
            progress,
            num_read: 0,
            num_to_read: 2 * datastore.num_tokens(),
        }
    }

    /// Reads the datastore once to see what begins how often, and then once for each batch.
    fn count(mut self) -> Result<Trigrams> {
        let mut num_first = vec![0_u64; self.facts.vocab_size as usize];
        self.scan(|first, _| num_first[first] += 1)?;
        let batches = batches(&num_first);
        self.num_to_read = (1 + batches.len() as u64) * self.datastore.num_tokens();
        let mut rows = Rows::default();
        for firsts in batches {
            self.count_batch(firsts.clone(), &num_first[firsts], &mut rows)?;
        }
        rows.starts.push(rows.words.len());
        let assembled = Trigrams::assemble(self.facts, rows.prefixes, rows.starts, rows.words);
        Ok(assembled.expect("counted in ascending order of tokens of the vocabulary"))
    }

    /// Counts the n-grams that begin with one of the tokens `firsts`, `num_first` each.
    fn count_batch(
        &mut self,
        firsts: Range<usize>,
        num_first: &[u64],
        rows: &mut Rows,
    ) -> Result<()> {
        let mut ends = Vec::with_capacity(num_first.len());
        let mut end = 0;
        for &number in num_first {
            ends.push(end);
            end += usize::try_from(number).expect("fewer than tokens of files that are mapped");
        }
        let mut rests = vec![0; end];
        self.scan(|first, rest| {
            if firsts.contains(&first) {
                let end = &mut ends[first - firsts.start];
                rests[*end] = rest;
                *end += 1;
            }
        })?;
        let mut buckets = Vec::with_capacity(ends.len());
        let (mut remaining, mut start) = (rests.as_mut_slice(), 0);
        for end in ends {
            let (bucket, behind) = remaining.split_at_mut(end - start);
            buckets.push(bucket);
            (remaining, start) = (behind, end);
        }
        in_parallel(&mut buckets, 1, |bucket| bucket.sort_unstable());
        for (first, bucket) in firsts.zip(buckets) {
            let first = Prefix(first as u64);
            for alike in bucket.chunk_by(|a, b| a >> TOKEN_BITS == b >> TOKEN_BITS) {
                let rest = alike[0] >> TOKEN_BITS;
                let others = TOKEN_BITS as usize * (self.facts.order - 2);
                rows.push(Prefix(first.0 << others | rest), alike, &self.facts);
            }
        }
        Ok(())
    }

    /// Hands every n-gram to `visit`: its first token, and the others as a prefix packs them.
    fn scan(&mut self, mut visit: impl FnMut(usize, u64)) -> Result<()> {
        let order = self.facts.order;
        let others = (1 << (TOKEN_BITS as usize * (order - 2))) - 1;
        for shard in self.datastore.shards().iter() {
            let (mut prefix, mut length) = (Prefix::default(), 0);
            for start in (0..shard.num_tokens()).step_by(CHUNK) {
                let end = shard.num_tokens().min(start + CHUNK);
                shard.fetch(&[start], 0, CHUNK);
                for token in shard.tokens(start..end) {
                    let is_token = token < self.facts.vocab_size;
                    if is_token && length >= order - 1 {
                        let rest = (prefix.0 & others) << TOKEN_BITS | u64::from(token);
                        visit(prefix.first(order), rest);
                    }
                    if !is_token || token == self.facts.separator {
                        length = 0;
                    } else {
                        prefix = prefix.then(token, order);
                        length += 1;
                    }
                }
                self.num_read += (end - start) as u64;
                if (self.progress)(Stage::Read, self.num_read, self.num_to_read).is_break() {
                    return Err(Error::Stopped);
                }
            }
        }
        Ok(())
    }
}

/// Ranges of first tokens that are counted at a time, given how many n-grams begin with each.
fn batches(num_first: &[u64]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (first, &number) in num_first.iter().enumerate() {
        if size > 0 && size + number > BATCH {
            batches.push(start..first);
            (start, size) = (first, 0);
        }
        size += number;
    }
    batches.push(start..num_first.len());
    batches
}

/// The rows of a matrix as they are counted.
#[derive(Default)]
struct Rows {
    prefixes: Vec<Prefix>,
    starts: Vec<usize>,
    words: Vec<Word>,
}

impl Rows {
    /// Appends what is to be kept of sorted n-grams that differ in their last token alone.
    fn push(&mut self, prefix: Prefix, alike: &[u64], facts: &TrigramFacts) {
        let start = self.words.len();
        let same = alike.chunk_by(|a, b| a == b);
        let frequent = same.filter(|same| same.len() as u64 >= facts.min_count);
        self.words.extend(frequent.map(|same| Word {
            token: low(same[0]),
            prob: share(same.len(), alike.len()),
        }));
        if self.words.len() > start {
            self.words[start..].sort_unstable_by(Word::compare);
            self.words.truncate(start.saturating_add(facts.max_words));
            self.prefixes.push(prefix);
            self.starts.push(start);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "as precise as a probability is"
)]
fn share(part: usize, whole: usize) -> f32 {
    (part as f64 / whole as f64) as f32
}

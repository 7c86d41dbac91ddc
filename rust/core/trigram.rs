//! What follows two tokens, and how often? ADED's matrix of tri-grams.

use std::ops::{ControlFlow, Range};

use serde::{Deserialize, Serialize};

use crate::datastore::{Datastore, Stage};
use crate::error::{Error, Result};
use crate::threads::in_parallel;

/// The bits that a token takes in a prefix.
const TOKEN_BITS: u32 = 21;

/// The largest vocabulary of a matrix: three of its tokens fit 64 bits.
pub const MAX_VOCAB_SIZE: u32 = 1 << TOKEN_BITS;

/// What is counted, and what of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrigramOptions {
    /// The tokens of an n-gram, 2 to 4.
    pub order: usize,
    /// Only so many words are kept after each prefix, the likeliest.
    pub max_words: usize,
    /// N-grams that occur less often are left out.
    pub min_count: u64,
}

impl Default for TrigramOptions {
    /// ADED's: tri-grams, and its threshold of 12.
    ///
    /// "The threshold for the elimination of tri-gram probability" can be no count, as the paper's
    /// corpora differ in size by six, nor a probability: the program that its authors have published
    /// takes the 12 likeliest words.
    fn default() -> Self {
        Self {
            order: 3,
            max_words: 12,
            min_count: 1,
        }
    }
}

/// The n-grams that are counted at a time: 8 bytes each.
const BATCH: u64 = 1 << 25;

/// The tokens that are read at a time.
const CHUNK: usize = 1 << 18;

/// What a matrix is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrigramFacts {
    /// The tokens of an n-gram, 2 to 4: a word and the `order - 1` before it. ADED's is 3.
    pub order: usize,
    /// Only so many words are kept after each prefix, the likeliest: ADED's threshold `t`.
    pub max_words: usize,
    /// N-grams that occur less often are left out.
    pub min_count: u64,
    /// Tokens are below this.
    pub vocab_size: u32,
    /// The token that ends a document: only the last of an n-gram, and `vocab_size` where it is none.
    pub separator: u32,
    /// The name of the tokenizer, as the builder of the datastore was told.
    pub tokenizer_name: String,
    /// The fingerprint of the tokenizer, as the builder of the datastore was told.
    pub tokenizer_fingerprint: String,
    /// Where the corpus came from, as the builder of the datastore was told.
    pub corpus: Vec<String>,
}

impl TrigramFacts {
    pub(crate) fn check(&self) -> Result<()> {
        let Self {
            order,
            max_words,
            min_count,
            vocab_size,
            separator,
            ..
        } = self;
        if !(2..=4).contains(order) {
            return Err(Error::invalid(
                "order",
                format!("must lie in 2..=4, not {order}"),
            ));
        }
        if *max_words == 0 {
            return Err(Error::invalid("max_words", "must be at least 1"));
        }
        if *min_count == 0 {
            return Err(Error::invalid("min_count", "must be at least 1"));
        }
        if !(1..=MAX_VOCAB_SIZE).contains(vocab_size) || separator > vocab_size {
            let reason = format!("must lie in 1..={MAX_VOCAB_SIZE} for tri-grams, not {vocab_size}");
            return Err(Error::invalid("vocab_size", reason));
        }
        Ok(())
    }
}

/// A token after a prefix, and how likely it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word {
    pub(crate) token: u32,
    pub(crate) prob: f32,
}

impl Word {
    /// The order of a row: the likeliest first, then by token.
    pub(crate) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let by_prob = other.prob.total_cmp(&self.prob);
        by_prob.then(self.token.cmp(&other.token))
    }
}

/// The words after a prefix in their order, and the sum of their probabilities.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Row<'a> {
    pub(crate) words: &'a [Word],
    pub(crate) total: f64,
}

/// The sum of probabilities as a row states it, added in the order of the row.
pub(crate) fn total(words: &[Word]) -> f64 {
    words.iter().map(|word| f64::from(word.prob)).sum()
}

/// The tokens before a word, of which there are `order - 1`; ordered as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix(pub(crate) u64);

impl Prefix {
    /// The prefix of the word after `token`.
    pub(crate) fn then(self, token: u32, order: usize) -> Self {
        let mask = (1 << (TOKEN_BITS as usize * (order - 1))) - 1;
        Self((self.0 << TOKEN_BITS | u64::from(token)) & mask)
    }

    /// The prefix of all these tokens.
    pub(crate) fn of(tokens: &[u32]) -> Self {
        let join = |prefix, &token| prefix << TOKEN_BITS | u64::from(token);
        Self(tokens.iter().fold(0, join))
    }

    /// Its tokens.
    pub(crate) fn tokens(self, order: usize) -> impl Iterator<Item = u32> {
        let token = move |place| low(self.0 >> (TOKEN_BITS as usize * place));
        (0..order - 1).rev().map(token)
    }

    fn first(self, order: usize) -> usize {
        low(self.0 >> (TOKEN_BITS as usize * (order - 2))) as usize
    }
}

#[expect(clippy::cast_possible_truncation, reason = "masked to the bits of a token")]
fn low(number: u64) -> u32 {
    (number & u64::from(MAX_VOCAB_SIZE - 1)) as u32
}

/// The probabilities of frequent n-grams: `P(w₃ | w₁, w₂) = C(w₁, w₂, w₃) / C(w₁, w₂)` (ADED, Eq. 1).
///
/// `C(w₁, w₂)` counts the places where a token follows, so the probabilities of all words would add
/// up to 1; those of the words that are kept add up to less. The end of a document follows as its
/// separator, where that is a token of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigrams {
    pub(crate) facts: TrigramFacts,
    /// Ascending.
    pub(crate) prefixes: Vec<Prefix>,
    /// Where the words of each prefix begin, and where those of the last one end.
    pub(crate) starts: Vec<usize>,
    pub(crate) words: Vec<Word>,
    totals: Vec<f64>,
    /// How many prefixes begin with a token below each.
    heads: Vec<usize>,
}

impl Trigrams {
    /// Counts the n-grams of a datastore. How it is cut into shards makes no difference.
    ///
    /// O(n log n) time, some of it in parallel; 256 MiB of memory, and more only where the n-grams
    /// that begin with one token alone take more, 8 bytes each.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless `order` lies in 2..=4, the limits are at least 1 and the
    /// vocabulary has at most [`MAX_VOCAB_SIZE`] tokens; [`Error::Stopped`] where `progress` says so.
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

    /// Puts a matrix together, or says what does not fit.
    pub(crate) fn assemble(
        facts: TrigramFacts,
        prefixes: Vec<Prefix>,
        starts: Vec<usize>,
        words: Vec<Word>,
    ) -> std::result::Result<Self, &'static str> {
        let is_token = |token: u32| token < facts.vocab_size;
        let are_tokens = |prefix: &Prefix| prefix.tokens(facts.order).all(is_token);
        if !prefixes.iter().all(are_tokens) || !prefixes.is_sorted_by(|a, b| a < b) {
            return Err("its prefixes are not tokens in ascending order");
        }
        if starts.len() != prefixes.len() + 1
            || starts.first() != Some(&0)
            || starts.last() != Some(&words.len())
            || !starts.is_sorted_by(|a, b| a < b)
        {
            return Err("its words do not belong to its prefixes");
        }
        let is_word = |word: &Word| is_token(word.token) && word.prob > 0.0 && word.prob <= 1.0;
        let rows = || starts.windows(2).map(|range| &words[range[0]..range[1]]);
        let is_row = |row: &[Word]| row.is_sorted_by(|a, b| a.compare(b).is_lt());
        if !words.iter().all(is_word) || !rows().all(is_row) {
            return Err("its words are not tokens by descending probability");
        }
        let totals = rows().map(total).collect();
        let mut heads = vec![0; facts.vocab_size as usize + 1];
        for prefix in &prefixes {
            heads[prefix.first(facts.order) + 1] += 1;
        }
        for token in 1..heads.len() {
            heads[token] += heads[token - 1];
        }
        Ok(Self {
            facts,
            prefixes,
            starts,
            words,
            totals,
            heads,
        })
    }

    /// What it is made of.
    pub fn facts(&self) -> &TrigramFacts {
        &self.facts
    }

    /// The n-grams that it keeps.
    pub fn num_entries(&self) -> usize {
        self.words.len()
    }

    /// The different beginnings of these n-grams, all tokens but the last.
    pub fn num_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// The words after some tokens and their probabilities, likeliest first, then by token; none
    /// unless there are `order - 1` tokens. O(log prefixes) and the words.
    pub fn words(&self, tokens: &[u32]) -> Vec<(u32, f32)> {
        let is_prefix = tokens.len() == self.facts.order - 1
            && tokens.iter().all(|&token| token < self.facts.vocab_size);
        let row = if is_prefix {
            self.row(Prefix::of(tokens))
        } else {
            Row::default()
        };
        row.words.iter().map(|word| (word.token, word.prob)).collect()
    }

    /// The words after a prefix of tokens of the vocabulary. O(log of those that begin alike).
    pub(crate) fn row(&self, prefix: Prefix) -> Row<'_> {
        let first = prefix.first(self.facts.order);
        let range = self.heads[first]..self.heads[first + 1];
        match self.prefixes[range.clone()].binary_search(&prefix) {
            Ok(index) => self.row_at(range.start + index),
            Err(_) => Row::default(),
        }
    }

    fn row_at(&self, index: usize) -> Row<'_> {
        Row {
            words: &self.words[self.starts[index]..self.starts[index + 1]],
            total: self.totals[index],
        }
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

    /// Counts the n-grams that begin with one of these tokens, of which there are so many.
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
        for shard in self.datastore.shards() {
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

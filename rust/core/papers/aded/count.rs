//! N-gram counts of a datastore, from which the matrix is built.

use specds_index::{Datastore, Report, Result, Stage};

use crate::papers::aded::trigrams::{Prefix, TrigramOptions, Trigrams, Word};

/// N-grams between two reports.
const REPORT: u64 = 1 << 18;

impl Trigrams {
    /// Counts the n-grams of a datastore in O(n) time. The memory is that of the matrix and of the tokens, 2
    /// or 3 bytes each.
    ///
    /// # Errors
    /// An invalid option, a file that cannot be read, or the error of `report`.
    pub fn build(
        datastore: &Datastore,
        options: TrigramOptions,
        report: &mut Report<'_>,
    ) -> Result<Self> {
        let mut matrix = Self::empty(options, datastore.vocab_size(), datastore.separator())?;
        let total = datastore.num_tokens();
        let (mut num_read, mut next_report) = (0, REPORT);
        let (mut last, mut counts) = (Prefix::default(), Vec::new());
        datastore.visit_ngrams(options.order, |ngram, count| {
            let (&word, before) = ngram.split_last().unwrap_or((&0, &[]));
            let then = |prefix: Prefix, &token| prefix.then(token, options.order);
            let prefix = before.iter().fold(Prefix::default(), then);
            if prefix != last {
                append(&mut matrix, last, &mut counts);
                last = prefix;
            }
            counts.push((word, count));
            num_read += count;
            if num_read >= next_report {
                next_report = num_read + REPORT;
                report(Stage::Read, num_read, total)?;
            }
            Ok(())
        })?;
        append(&mut matrix, last, &mut counts);
        report(Stage::Read, total, total)?;
        Ok(matrix)
    }
}

/// Appends the words after a prefix, given how often each follows it.
#[expect(clippy::cast_possible_truncation, reason = "as precise as a probability is")]
fn append(matrix: &mut Trigrams, prefix: Prefix, counts: &mut Vec<(u32, u64)>) {
    let total = counts.iter().map(|&(_, count)| count).sum::<u64>() as f64;
    let word = |(token, count)| Word { token, prob: (count as f64 / total) as f32 };
    let words: Vec<_> = counts.drain(..).map(word).collect();
    if !words.is_empty() {
        matrix.append(prefix, words);
    }
}

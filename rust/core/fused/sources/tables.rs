//! What do the target model's own tables, and tri-grams, say comes next at a node?

use crate::fused::evidence::{Evidence, Kind, Matched, TableSource};
use crate::papers::aded::adaptive::{Adaptation, AdaptiveTrigrams, Reader};
use crate::papers::aded::trigrams::{Prefix, TrigramFacts};
use crate::papers::model_tables::ModelTables;

/// How many tokens of a row are looked at, the likeliest: what comes later hardly ever comes.
const MAX_TOKENS: usize = 8;

/// How much less a token of the unigram counts than the one before it: it has ranks alone.
const DECAY: f32 = 0.5;

/// The model's tables, for a drafter of this vocabulary: a model may have tokens to spare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model<'a> {
    pub(crate) tables: &'a ModelTables,
    pub(crate) vocab_size: u32,
    pub(crate) unigram: bool,
}

impl TableSource for Model<'_> {
    fn add_experts(&self, tail: &[u32], evidence: &mut Evidence) {
        let is_known = |&(token, _): &(u32, f32)| token < self.vocab_size;
        if let Some(&last) = tail.last() {
            let row = self.tables.after(last).filter(is_known);
            evidence.add(matched(Kind::Bigram, 1), Some(1.0), row.take(MAX_TOKENS));
        }
        if self.unigram {
            let tokens = self.tables.unigram().iter().copied();
            let counts = std::iter::successors(Some(1.0), |count| Some(count * DECAY));
            let row = tokens.zip(counts).filter(is_known);
            evidence.add(matched(Kind::Unigram, 1), None, row.take(MAX_TOKENS));
        }
    }
}

impl TableSource for Reader<'_> {
    fn add_experts(&self, tail: &[u32], evidence: &mut Evidence) {
        let facts = self.facts();
        let start = tail.len().checked_sub(facts.order - 1);
        let Some(prefix) = start.and_then(|start| prefix(&tail[start..], facts)) else {
            return;
        };
        let row = self.row(prefix);
        // What is learned may add up to more than 1.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "as precise as a probability is"
        )]
        let total = row.total.max(1.0) as f32;
        let words = row.words.iter().map(|word| (word.token, word.prob));
        let matched = matched(Kind::Trigram, facts.order - 1);
        evidence.add(matched, Some(total), words.take(MAX_TOKENS));
    }
}

fn matched(kind: Kind, order: usize) -> Matched {
    Matched {
        kind,
        order,
        rank: 0,
        num_matches: 1.0,
    }
}

/// The prefix of these tokens, unless one of them ends a document or is not in the vocabulary.
fn prefix(tokens: &[u32], facts: &TrigramFacts) -> Option<Prefix> {
    let is_word = |&token: &u32| token < facts.vocab_size && token != facts.separator;
    tokens
        .iter()
        .all(is_word)
        .then(|| Prefix::of(tokens.iter().copied()))
}

/// Learns the tri-grams that end in `tokens`, which come after `context`.
pub(crate) fn learn(trigrams: &AdaptiveTrigrams, context: &[u32], tokens: &[u32]) {
    let facts = trigrams.trigrams().facts();
    let before = &context[context.len().saturating_sub(facts.order - 1)..];
    let mut learner = trigrams.learner();
    for ngram in [before, tokens].concat().windows(facts.order) {
        if let Some((&token, before)) = ngram.split_last()
            && let Some(prefix) = prefix(before, facts)
        {
            learner.learn(prefix, token, &Adaptation::default());
        }
    }
}

//! What would a datastore say without one of its documents?

use std::ops::Range;

use crate::base::even_sample::EvenSample;
use crate::lookup::continuations::Samples;
use crate::lookup::matches::Match;
use crate::lookup::shards::{Shards, StoredDocument};

/// Matches that occur more often are read with the document: its share of their samples is small, and
/// finding it would take reading all occurrences.
const MAX_CHECKED: u64 = 512;

/// A document that is left out while drafting for it: else it would predict itself.
#[derive(Debug, Clone)]
pub(crate) struct Holdout {
    positions: Range<u64>,
}

impl Holdout {
    pub(crate) fn of(document: &StoredDocument) -> Self {
        let end = document.start + document.tokens.len() as u64;
        Self {
            positions: document.start..end,
        }
    }

    /// How often the match occurs elsewhere, and the [samples](Shards::read_samples) there; `None` where it
    /// occurs too often to be checked.
    pub(crate) fn samples_elsewhere(
        &self,
        shards: &Shards,
        found: &Match,
        length: usize,
        max_samples: usize,
        before: &[u32],
    ) -> Option<(u64, Samples)> {
        if found.count() > MAX_CHECKED {
            return None;
        }
        let (mut tokens, mut rows) = (Vec::new(), Vec::new());
        for ((before_shard, shard), ranks) in shards.with_starts().zip(&found.ranges) {
            let positions: Vec<usize> = ranks.clone().map(|rank| shard.position(rank)).collect();
            shard.touch(&positions, found.length, length);
            for position in positions {
                let in_corpus = before_shard.num_tokens + position as u64;
                if !self.positions.contains(&in_corpus) {
                    rows.push(shard.row(position, found.length, length, before, &mut tokens));
                }
            }
        }
        let num_elsewhere = rows.len() as u64;
        let sampled = EvenSample::new(num_elsewhere, max_samples as u64).occurrences();
        let sampled = sampled.filter_map(|row| rows.get(usize::try_from(row).ok()?).cloned());
        let mut samples = Samples::new(tokens, sampled.collect());
        if !found.is_in_one_shard() {
            samples.sort();
        }
        Some((num_elsewhere, samples))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::Holdout;
    use crate::build::builder::DatastoreBuilder;
    use crate::build::options::{DatastoreOptions, Existing};
    use crate::draft::session::{DraftLimits, Session};
    use crate::draft::token_tree::TokenTree;
    use crate::fused::drafter::{FusedConfig, FusedDrafter, FusedSession};
    use crate::lookup::datastore::Datastore;
    use crate::weights::initial::Weights;

    const VOCAB_SIZE: u32 = 4;

    /// A datastore with a shard for each of these lists of documents.
    fn build(shards: &[Vec<Vec<u32>>], separator: u32) -> Arc<Datastore> {
        // In memory where the system has a place for that: builds wait for the disk. The files stay
        // mapped when their folder is gone.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let path = folder.as_ref().unwrap().path().join("d");
        let mut built = None;
        for documents in shards.iter().filter(|documents| !documents.is_empty()) {
            let mut options = DatastoreOptions::new(VOCAB_SIZE, separator);
            options.existing = built.map_or(Existing::Refuse, |_: Datastore| Existing::Append);
            let mut builder = DatastoreBuilder::create(&path, options).unwrap();
            let lengths: Vec<_> = documents.iter().map(Vec::len).collect();
            let added = builder.add_documents(&documents.concat(), &lengths);
            added.unwrap();
            let finished = builder.finish(&mut |_, _, _| Ok(()));
            built = Some(finished.unwrap());
        }
        Arc::new(built.unwrap())
    }

    /// Starts to draft from the datastore alone, by weights that do not look at how frequent a token
    /// is: to that, hidden documents count.
    fn start(datastore: &Arc<Datastore>, hidden: Option<Holdout>) -> FusedSession {
        let config = FusedConfig {
            context: false,
            recycled: false,
            learns: false,
            ..FusedConfig::default()
        };
        let datastore = Some(Arc::clone(datastore));
        let drafter = FusedDrafter::new(datastore, None, config, Weights::default()).unwrap();
        let mut session = FusedSession::new(Arc::new(drafter), "").unwrap();
        session.holdout = hidden;
        session
    }

    /// The drafts after every fourth token of a text.
    fn drafts(mut session: FusedSession, text: &[u32]) -> Vec<TokenTree> {
        let drafts = text.chunks(4).map(|tokens| {
            session.observe(tokens, None).unwrap();
            session.draft(DraftLimits::nodes(24)).unwrap()
        });
        drafts.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn a_hidden_document_is_drafted_for_as_if_it_were_not_there(
            mut documents in vec(vec(0_u32..4, 1..160), 2..6),
            separator in 3_u32..5,
            hidden in any::<prop::sample::Index>(),
            shard_size in 2_usize..6,
        ) {
            documents.iter_mut().flatten().for_each(|token| *token %= separator.min(VOCAB_SIZE));
            // One that came twice would make two shards the same.
            documents.sort();
            documents.dedup();
            prop_assume!(documents.len() > 1);
            let mut shards: Vec<_> = documents.chunks(shard_size).map(<[_]>::to_vec).collect();
            let whole = build(&shards, separator);
            let hidden = hidden.index(documents.len());
            let text = shards[hidden / shard_size].remove(hidden % shard_size);
            let document = whole.document(hidden as u64).unwrap();
            prop_assert_eq!(&document.tokens, &text);
            let others = build(&shards, separator);
            let session = start(&whole, Some(Holdout::of(&document)));
            prop_assert_eq!(drafts(session, &text), drafts(start(&others, None), &text));
        }
    }

    #[test]
    fn a_document_that_is_not_hidden_foretells_itself() {
        let text = vec![0, 1, 2, 3, 3, 1, 0, 2, 2];
        let whole = build(&[vec![vec![0, 0], text.clone()]], VOCAB_SIZE);
        let document = Holdout::of(&whole.document(1).unwrap());
        let seen = drafts(start(&whole, None), &text[..4]);
        assert_eq!(seen[0].token_ids()[..3], text[4..7]);
        let unseen = drafts(start(&whole, Some(document)), &text[..4]);
        assert!(unseen[0].is_empty());
    }
}

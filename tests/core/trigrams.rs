//! Tri-grams: counted, and learned from.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::Error;
use specds::draft::{DraftLimits, Session, Source};
use specds::index::Stage;
use specds::lookup::Datastore;
use specds::papers::aded::{
    AdaptiveTrigrams, AdedConfig, AdedSession, SearchConfig, TrigramOptions, Trigrams,
};

use crate::oracle::{Oracle, corpora, shift};
use crate::{built, options, silent};

fn count(datastore: &Datastore, options: TrigramOptions) -> Trigrams {
    Trigrams::build(datastore, options, &mut silent).unwrap()
}

/// The words after a prefix by definition.
fn naive(oracle: &Oracle, prefix: &[u32], options: TrigramOptions) -> Vec<(u32, f32)> {
    let mut counts: BTreeMap<u32, u16> = BTreeMap::new();
    for text in oracle.shards() {
        for gram in text.windows(options.order) {
            let (&word, before) = gram.split_last().unwrap();
            if before == prefix && !before.contains(&oracle.separator) && word < oracle.vocab_size {
                *counts.entry(word).or_default() += 1;
            }
        }
    }
    let total: u16 = counts.values().sum();
    let mut words: Vec<_> = counts
        .into_iter()
        .filter(|&(_, count)| u64::from(count) >= options.min_count)
        .map(|(word, count)| (word, f32::from(count) / f32::from(total)))
        .collect();
    words.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    words.truncate(options.max_words);
    words
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn words_are_counted_however_a_datastore_is_cut(
        oracle in corpora(),
        order in 2_usize..5,
        max_words in 1_usize..5,
        min_count in 1_u64..3,
        prefixes in vec(vec(0_u32..4, 3), 1..20),
    ) {
        let datastore = built(oracle.options(), &oracle.documents);
        let options = TrigramOptions { order, max_words, min_count };
        let trigrams = count(&datastore, options);
        for prefix in prefixes {
            let prefix = shift(&prefix[..order - 1], oracle.vocab_size);
            prop_assert_eq!(trigrams.words(&prefix), naive(&oracle, &prefix, options));
        }
    }
}

#[test]
fn a_count_can_be_stopped_and_tells_how_far_it_is() {
    let datastore = built(options(4, 4), &[vec![1, 2, 3]]);
    let mut told = Vec::new();
    let mut stop = |stage: Stage, done, total| {
        told.push((stage.name(), done, total));
        ControlFlow::Break(())
    };
    let stopped = Trigrams::build(&datastore, TrigramOptions::default(), &mut stop);
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(told, [("read", 4, 4)]);
}

/// Two prefixes of two tokens, one with two words.
fn small() -> Arc<Trigrams> {
    let documents = [vec![1, 2, 3, 0], vec![1, 2, 3], vec![1, 2, 0]];
    let datastore = built(options(4, 4), &documents);
    Arc::new(count(&datastore, TrigramOptions::default()))
}

fn session(trigrams: &Arc<Trigrams>, config: AdedConfig) -> AdedSession {
    let trigrams = AdaptiveTrigrams::new(Arc::clone(trigrams));
    AdedSession::new(Arc::new(trigrams), config).unwrap()
}

#[test]
fn a_session_drafts_the_likeliest_words_and_learns_others() {
    let trigrams = small();
    let mut session = session(&trigrams, AdedConfig::default());
    assert!(session.draft(DraftLimits::nodes(64)).unwrap().is_empty());
    session.observe(&[1, 2], None).unwrap();
    let tree = session.draft(DraftLimits::nodes(64)).unwrap();
    assert_eq!(tree.token_ids(), [3, 0, 0]);
    assert_eq!(tree.parents(), [-1, 0, -1]);
    assert!(
        tree.sources()
            .iter()
            .all(|&source| source == Source::Trigram)
    );
    assert_eq!(session.match_length(), 2);
    assert_eq!(session.draft(DraftLimits::nodes(0)).unwrap().len(), 0);

    session.observe(&[1, 2, 1, 2, 1, 2], None).unwrap();
    assert_eq!(
        session.draft(DraftLimits::nodes(1)).unwrap().token_ids(),
        [1]
    );
    assert_eq!(trigrams.words(&[1, 2]), [(3, 2.0 / 3.0), (0, 1.0 / 3.0)]);
}

#[test]
fn the_smallest_and_the_largest_search_work() {
    let trigrams = small();
    for (searches, depth, num_nodes) in [(1, 1, 1), (65_536, 1024, 3)] {
        let search = SearchConfig {
            searches,
            depth,
            candidates: usize::MAX,
            ..SearchConfig::default()
        };
        let config = AdedConfig {
            search,
            adaptation: None,
            ..AdedConfig::default()
        };
        let mut session = session(&trigrams, config);
        session.observe(&[1, 2], None).unwrap();
        assert_eq!(
            session.draft(DraftLimits::nodes(usize::MAX)).unwrap().len(),
            num_nodes
        );
    }
}

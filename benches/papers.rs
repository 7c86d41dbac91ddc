//! Drafts that search tri-grams, and what counting them takes.

use std::sync::{Arc, LazyLock};

use divan::{Bencher, counter::ItemsCount};
use specds::draft::{DraftLimits, Session};
use specds::papers::aded::{AdaptiveTrigrams, AdedConfig, AdedSession, TrigramOptions, Trigrams};

use crate::{BUILT, CORPUS, MAX_NODES, SEPARATOR, contexts};

static TRIGRAMS: LazyLock<Arc<Trigrams>> = LazyLock::new(|| Arc::new(count()));

fn count() -> Trigrams {
    let read_on = &mut |_, _, _| Ok(());
    Trigrams::build(&BUILT.datastore, TrigramOptions::default(), read_on).expect("a matrix")
}

/// Every word after some pairs has the probability that a scan gives it.
pub(crate) fn check_answers() {
    for context in contexts().into_iter().step_by(97).take(12) {
        let [.., first, second] = *context else {
            continue;
        };
        let mut followers = Vec::new();
        for document in &CORPUS.documents {
            let ended: Vec<_> = document.iter().copied().chain([SEPARATOR]).collect();
            let found = ended.windows(3).filter(|gram| gram[..2] == [first, second]);
            followers.extend(found.map(|gram| gram[2]));
        }
        for (word, prob) in TRIGRAMS.words(&[first, second]) {
            let times = followers.iter().filter(|&&next| next == word).count();
            let expected = times as f32 / followers.len() as f32;
            assert!((prob - expected).abs() < 1e-6, "{prob} is not {expected}");
        }
    }
}

fn aded(searches: usize) -> AdedSession {
    let config = AdedConfig {
        searches,
        ..AdedConfig::default()
    };
    let trigrams = Arc::new(AdaptiveTrigrams::new(Arc::clone(&TRIGRAMS)));
    AdedSession::new(trigrams, config).expect("usable limits")
}

/// Drafts of sessions that have seen half a held-out file.
fn draft(bencher: Bencher, start: impl Fn() -> Box<dyn Session>) {
    let contexts = contexts();
    let mut contexts = contexts.iter().step_by(25).cycle();
    let input = || {
        let mut session = start();
        let context = contexts.next().expect("a context");
        session.observe(context, None).expect("known tokens");
        session
    };
    bencher
        .with_inputs(input)
        .bench_local_values(|mut session| session.draft(DraftLimits::nodes(MAX_NODES)));
}

#[divan::bench(sample_count = 3)]
fn count_trigrams(bencher: Bencher) {
    let num_tokens = ItemsCount::new(CORPUS.num_tokens());
    bencher.counter(num_tokens).bench(count);
}

#[divan::bench(args = [50, 150, 300])]
fn draft_by_mcts(bencher: Bencher, searches: usize) {
    draft(bencher, || Box::new(aded(searches)));
}

/// Counting and sorting what a request says, at its start: 2,000 tokens.
#[divan::bench]
fn learn_trigrams(bencher: Bencher) {
    let longest = CORPUS.held_out.iter().max_by_key(|file| file.len());
    let file = longest.expect("a held-out file");
    let tokens = &file[..file.len().min(2000)];
    bencher
        .counter(ItemsCount::new(tokens.len()))
        .with_inputs(|| aded(150))
        .bench_local_values(|mut session| session.observe(tokens, None));
}

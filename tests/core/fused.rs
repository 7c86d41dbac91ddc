//! Drafts from all sources: what they hold to, what they learn, and how soon.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{DraftLimits, Session, TokenTree};
use specds::fused::Weights;
use specds::fused::{FusedConfig, FusedDrafter, FusedSession, Memory};
use specds::lookup::Datastore;
use specds::memory::MemoryOptions;
use specds::papers::aded::{TrigramOptions, Trigrams};
use specds::papers::model_tables::ModelTables;

use crate::oracle::{Oracle, corpora, parts, paths, shift};
use crate::random::Random;
use crate::{build, drafted, options, tempdir};

pub(crate) fn drafter(
    datastore: Option<&Arc<Datastore>>,
    memory: Option<&Arc<Memory>>,
    config: FusedConfig,
) -> Arc<FusedDrafter> {
    let (datastore, memory) = (datastore.cloned(), memory.cloned());
    Arc::new(FusedDrafter::new(datastore, memory, config, Weights::default()).unwrap())
}

pub(crate) fn alone() -> Arc<FusedDrafter> {
    drafter(None, None, FusedConfig::default())
}

pub(crate) fn start(drafter: &Arc<FusedDrafter>, prompt: &[u32]) -> FusedSession {
    let mut session = FusedSession::new(Arc::clone(drafter), "").unwrap();
    session.observe(prompt, None).unwrap();
    session
}

pub(crate) fn memory(vocab_size: u32) -> Arc<Memory> {
    Arc::new(Memory::new(MemoryOptions::new(vocab_size)).unwrap())
}

/// A drafter with the bigrams of a model.
pub(crate) fn with_tables(
    datastore: Option<&Arc<Datastore>>,
    memory: &Arc<Memory>,
    config: FusedConfig,
) -> Arc<FusedDrafter> {
    let vocab_size = memory.options().vocab_size;
    let bigram: Vec<u32> = (0..vocab_size)
        .flat_map(|token| [(token + 1) % vocab_size, token])
        .collect();
    let probs = [0.5, 0.25].repeat(vocab_size as usize);
    let tables = ModelTables::new(bigram, probs, (0..vocab_size).collect()).unwrap();
    let (cloned, memory) = (datastore.cloned(), Some(Arc::clone(memory)));
    let drafter = FusedDrafter::new(cloned, memory, config, Weights::default()).unwrap();
    Arc::new(drafter.with_model_tables(Arc::new(tables)).unwrap())
}

pub(crate) fn trigrams(datastore: &Datastore) -> Arc<Trigrams> {
    let options = TrigramOptions::default();
    let progress = &mut |_, _, _| Ok(());
    Arc::new(Trigrams::build(datastore, options, progress).unwrap())
}

pub(crate) fn build_one(documents: &[Vec<u32>], vocab_size: u32) -> Arc<Datastore> {
    let folder = tempdir().unwrap();
    let path = folder.path().join("datastore");
    // The files stay mapped when their folder is gone.
    Arc::new(build(&path, options(vocab_size, vocab_size), documents).unwrap())
}

/// How many of `tokens` follow a path of the tree.
pub(crate) fn num_accepted(tree: &TokenTree, tokens: &[u32]) -> usize {
    let mut parent = -1;
    let child = |parent: i32, token: u32| {
        let mut edges = tree.parents().iter().zip(tree.token_ids());
        edges.position(|edge| edge == (&parent, &token))
    };
    let accepted = tokens.iter().map_while(|&token| {
        parent = i32::try_from(child(parent, token)?).unwrap();
        Some(())
    });
    accepted.count()
}

/// Drafts for a text as a model would write it: for each step, where it began, how many tokens it
/// emitted, and how many were expected.
pub(crate) fn replay(
    session: &mut FusedSession,
    text: &[u32],
    max_nodes: usize,
) -> Vec<(usize, usize, f32)> {
    let mut steps = Vec::new();
    let mut begin = 0;
    while begin < text.len() {
        let tree = drafted(session, max_nodes);
        let rest = &text[begin..];
        let emitted = (num_accepted(&tree, rest) + 1).min(rest.len());
        session.observe(&rest[..emitted], None).unwrap();
        steps.push((begin, emitted, 1.0 + tree.probs().iter().sum::<f32>()));
        begin += emitted;
    }
    steps
}

fn check_tree(tree: &TokenTree, max_nodes: usize) {
    assert!(tree.len() <= max_nodes);
    let (tokens, parents, probs) = parts(tree);
    TokenTree::new(tokens, parents.clone(), probs.clone()).unwrap();
    assert!(probs.is_sorted_by(|a, b| a >= b), "{probs:?}");
    for (node, parent) in parents.iter().enumerate() {
        if let Ok(parent) = usize::try_from(*parent) {
            assert!(probs[node] <= probs[parent]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_request_gets_trees_that_are_sound_and_the_same_in_every_run(
        oracle in corpora(),
        has_datastore in any::<bool>(),
        requests in vec(vec(vec(0_u32..4, 0..9), 1..7), 1..4),
        max_nodes in prop_oneof![Just(0_usize), Just(1), 2_usize..20, Just(64), Just(1000)],
        k in 0_usize..4,
    ) {
        let folder = tempdir().unwrap();
        let path = folder.path().join("datastore");
        let datastore = Arc::new(build(&path, oracle.options(), &oracle.documents).unwrap());
        let run = || {
            let datastore = has_datastore.then_some(&datastore);
            let memory = memory(oracle.vocab_size);
            let drafter = with_tables(datastore, &memory, FusedConfig::default());
            let mut trees = Vec::new();
            for request in &requests {
                let mut session = start(&drafter, &shift(&request[0], oracle.vocab_size));
                session.expect_output(&shift(&request[0], oracle.vocab_size)).unwrap();
                for piece in request {
                    let tree = drafted(&mut session, max_nodes);
                    let predictions = vec![0; (tree.len() + 1) * k];
                    session.observe_predictions(&tree, &predictions, k).unwrap();
                    session.observe(&shift(piece, oracle.vocab_size), None).unwrap();
                    trees.push(tree);
                }
                session.finish();
            }
            trees
        };
        let trees = run();
        for tree in &trees {
            check_tree(tree, max_nodes);
            prop_assert!(tree.token_ids().iter().all(|&token| token < oracle.vocab_size));
        }
        prop_assert_eq!(trees, run());
    }

    #[test]
    fn no_cut_into_shards_changes_a_draft_that_reads_all_occurrences(
        documents in vec(vec(0_u32..4, 1..8), 2..5),
        (vocab_size, separator) in prop_oneof![Just((4, 4)), Just((4, 3)), Just((70_000, 70_000))],
        num_shards in 2_u64..6,
        contexts in vec(vec(0_u32..4, 1..6), 1..4),
    ) {
        let documents: Vec<_> = documents.iter().map(|one| shift(one, vocab_size)).collect();
        let num_tokens: usize = documents.iter().map(|document| document.len() + 1).sum();
        let longest = documents.iter().map(|document| document.len() as u64 + 1).max().unwrap();
        let max_shard_tokens = (num_tokens as u64 / num_shards).max(longest);
        let cut = Oracle { vocab_size, separator, max_shard_tokens, documents };
        let whole = Oracle { max_shard_tokens: 1 << 20, ..cut.clone() };
        let folder = tempdir().unwrap();
        let trees = |name: &str, oracle: &Oracle| {
            let path = folder.path().join(name);
            let datastore = Arc::new(build(&path, oracle.options(), &oracle.documents).unwrap());
            if name == "whole" {
                datastore.warm().unwrap(); // what follows tokens is then looked up at once
            }
            let drafter = drafter(Some(&datastore), None, FusedConfig::default());
            let draft = |context: &Vec<u32>| {
                start(&drafter, &shift(context, vocab_size)).draft(DraftLimits::nodes(32)).unwrap()
            };
            contexts.iter().map(draft).collect::<Vec<_>>()
        };
        prop_assert_eq!(trees("cut", &cut), trees("whole", &whole));
    }
}

#[test]
fn a_request_without_tokens_drafts_nothing() {
    let mut session = FusedSession::new(alone(), "").unwrap();
    assert!(drafted(&mut session, 64).is_empty());
    session.observe(&[], None).unwrap();
    assert!(drafted(&mut session, 64).is_empty());
    assert_eq!(session.match_length(), 0);
    session.finish();
}

#[test]
fn what_the_memory_has_of_a_prompt_is_not_kept_twice() {
    let memory = memory(1000);
    let drafter = drafter(None, Some(&memory), FusedConfig::default());
    let turns: Vec<u32> = (0..100).collect();
    for length in [40, 70, 100] {
        let mut session = start(&drafter, &turns[..length - 10]);
        session.observe(&turns[length - 10..length], None).unwrap();
        session.finish();
    }
    assert_eq!(
        memory.find("").unwrap().read().texts().tokens().len(),
        100 + 3
    );
}

#[test]
fn an_answer_is_kept_with_the_end_of_its_prompt() {
    let memory = memory(1000);
    let drafter = drafter(None, Some(&memory), FusedConfig::default());
    let prompt: Vec<u32> = (0..40).collect();
    for answer in [50, 60, 70] {
        let mut session = start(&drafter, &prompt);
        session.observe(&[answer], None).unwrap();
        session.finish();
    }
    let tenant = memory.find("").unwrap();
    assert_eq!(tenant.read().texts().of_pair(39, 60).count(), 1);
    assert_eq!(tenant.read().texts().tokens().len(), 42 + 2 * 18);
}

#[test]
fn only_nodes_of_enough_probability_are_drafted_until_a_gain() {
    let mut random = Random(1);
    let phrases: Vec<_> = (0..6).map(|_| random.tokens(6, 0, 30)).collect();
    let mut session = start(&alone(), &random.phrases(&phrases, 300));
    let all = drafted(&mut session, 64);
    for min_gain in [0.0, 0.05, 0.3, 1.0] {
        let limits = DraftLimits {
            min_gain,
            ..DraftLimits::nodes(64)
        };
        let tree = session.draft(limits).unwrap();
        assert!(tree.probs().iter().all(|&prob| prob >= min_gain));
        // What follows nodes that are not twice as likely is not looked up; all else is there.
        let drafted = paths(&tree);
        let expected = paths(&all);
        assert!(drafted.iter().all(|path| expected.contains(path)));
        for (path, &prob) in expected.iter().zip(all.probs()) {
            assert!(prob < 2.0 * min_gain || drafted.contains(path));
        }
    }
    let limits = DraftLimits {
        min_gain: 0.05,
        ..DraftLimits::nodes(64)
    };
    assert!(session.draft(limits).unwrap().len() > 1);
}

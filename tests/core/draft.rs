//! Sessions: observe, draft.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{DraftLimits, Session, Source, TokenTree, draft_batch};
use specds::fused::FusedConfig;
use specds::papers::rest::{RestConfig, RestSession};

use crate::files::{Victim, ask, write_in_place};
use crate::fused::drafter;
use crate::oracle::{Oracle, corpora, naive_draft, parts, shift};
use crate::random::Random;
use crate::{built, drafted, options, refusal};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_draft_of_a_session_equals_the_oracle_and_a_fresh_session(
        oracle in corpora(),
        pieces in vec((vec(0_u32..4, 0..5), any::<bool>()), 1..10),
        max_match in 1_usize..7,
        min_match in 1_usize..4,
        continuation in 1_usize..6,
        max_samples in prop_oneof![1_usize..8, Just(256)],
        max_nodes in 0_usize..20,
    ) {
        let datastore = Arc::new(built(oracle.options(), &oracle.documents));
        let max_match = max_match.max(min_match);
        let config = RestConfig { max_match, min_match, continuation, max_samples };
        let mut session = RestSession::new(Arc::clone(&datastore), config).unwrap();
        let mut context = Vec::new();
        for (piece, is_drafted) in pieces {
            let piece: Vec<_> = shift(&piece, oracle.vocab_size);
            session.observe(&piece, None).unwrap();
            context.extend(piece);
            if is_drafted {
                let tree = drafted(&mut session, max_nodes);
                let (pattern, _) = oracle.lookup(&context, max_match, min_match);
                prop_assert_eq!(session.match_length(), pattern.len());
                let samples = oracle.samples(&pattern, continuation, max_samples);
                prop_assert_eq!(parts(&tree), naive_draft(&samples, max_nodes));
                prop_assert!(tree.sources().iter().all(|&source| source == Source::Datastore));

                let mut fresh = RestSession::new(Arc::clone(&datastore), config).unwrap();
                fresh.observe(&context, None).unwrap();
                prop_assert_eq!(&drafted(&mut fresh, max_nodes), &tree);
                prop_assert_eq!(&drafted(&mut session, max_nodes + 3).prefix(max_nodes), &tree);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_best_chain_is_the_likeliest_path_and_of_equal_ones_the_longest(
        nodes in vec((any::<prop::sample::Index>(), 0_u8..3), 0..12),
    ) {
        let parents: Vec<i32> = (0..).zip(&nodes).map(|(node, (parent, _))| {
            i32::try_from(parent.index(node + 1)).unwrap() - 1
        }).collect();
        // Eighths, whose sums no float rounds.
        let probs = nodes.iter().map(|&(_, eighths)| f32::from(eighths) / 8.0).collect();
        let tree = TokenTree::new((0..).take(nodes.len()).collect(), parents, probs).unwrap();
        let worth = |path: &[usize]| {
            let sum: f32 = path.iter().map(|&node| tree.probs()[node]).sum();
            (sum, path.len())
        };
        let chain = tree.best_chain();
        let path: Vec<usize> = chain.token_ids().iter().map(|&node| node as usize).collect();
        let links = std::iter::once(-1).chain(chain.token_ids().iter().map(|node| node.cast_signed()));
        for (&node, parent) in path.iter().zip(links) {
            prop_assert_eq!(tree.parents()[node], parent);
        }
        for other in tree.paths() {
            prop_assert!(worth(&path) >= worth(&other));
        }
    }
}

/// Documents long enough that most matches are sampled, with so few tokens that paths collide.
fn long_documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let token = prop_oneof![8 => Just(0_u32), 4 => Just(1), 2 => Just(2), 1 => Just(3)];
    vec(vec(token, 1..300), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn samples_of_every_shard_equal_the_oracle(
        documents in long_documents(),
        (vocab_size, separator) in prop_oneof![Just((4, 4)), Just((4, 3)), Just((70_000, 70_000))],
        num_shards in 2_u64..6,
        contexts in vec(vec(0_u32..4, 1..4), 1..6),
        continuation in 1_usize..8,
        max_samples in 1_usize..300,
        max_nodes in 0_usize..100,
    ) {
        let shifted = |tokens: &Vec<u32>| shift(tokens, vocab_size);
        let documents: Vec<_> = documents.iter().map(shifted).collect();
        let num_tokens: usize = documents.iter().map(|document| document.len() + 1).sum();
        let longest = documents.iter().map(|document| document.len() as u64 + 1).max().unwrap();
        let oracle = Oracle {
            vocab_size,
            separator,
            max_shard_tokens: (num_tokens as u64 / num_shards).max(longest),
            documents,
        };
        let datastore = Arc::new(built(oracle.options(), &oracle.documents));
        let config = RestConfig { continuation, max_samples, ..RestConfig::default() };
        for context in contexts {
            let context = shifted(&context);
            let (pattern, _) = oracle.lookup(&context, config.max_match, 1);
            let samples = oracle.samples(&pattern, continuation, max_samples);
            let mut session = RestSession::new(Arc::clone(&datastore), config).unwrap();
            session.observe(&context, None).unwrap();
            let tree = drafted(&mut session, max_nodes);
            prop_assert_eq!(parts(&tree), naive_draft(&samples, max_nodes));
        }
    }

    #[test]
    fn a_batch_of_drafts_equals_one_by_one(
        oracle in corpora(),
        contexts in vec(vec(0_u32..4, 1..8), 0..8),
        num_threads in prop_oneof![Just(None), (1_usize..4).prop_map(Some)],
        max_nodes in 0_usize..20,
    ) {
        let datastore = Arc::new(built(oracle.options(), &oracle.documents));
        let drafter = drafter(Some(&datastore), None, FusedConfig::default());
        let start = |context: &Vec<u32>| crate::fused::start(&drafter, &shift(context, oracle.vocab_size));
        let alone = contexts.iter().map(|context| start(context).draft(DraftLimits::nodes(max_nodes)).unwrap());
        let mut sessions: Vec<_> = contexts.iter().map(start).collect();
        let limits = DraftLimits::nodes(max_nodes);
        let mut rows: Vec<_> = sessions.iter_mut().map(|session| (session, limits)).collect();
        let batch = draft_batch(&mut rows, num_threads).unwrap();
        prop_assert_eq!(batch, alone.collect::<Vec<_>>());
    }
}

#[test]
fn unusable_configurations_are_refused_by_name() {
    let datastore = Arc::new(built(options(4, 4), &[vec![1]]));
    let rows: [(_, fn(&mut RestConfig)); 6] = [
        ("min_match", |config| config.min_match = 0),
        ("max_match", |config| config.min_match = 17),
        ("continuation", |config| config.continuation = 0),
        ("continuation", |config| config.continuation = 1025),
        ("max_samples", |config| config.max_samples = 0),
        ("max_samples", |config| config.max_samples = 65_537),
    ];
    for (argument, edit) in rows {
        let mut config = RestConfig::default();
        edit(&mut config);
        let refused = refusal(RestSession::new(Arc::clone(&datastore), config));
        assert!(refused.starts_with(&format!("`{argument}`")), "{refused}");
    }
}

#[test]
fn the_largest_configuration_works() {
    let datastore = built(options(4, 4), &[vec![1; 3000]]);
    let config = RestConfig {
        max_match: usize::MAX,
        min_match: 1,
        continuation: 1024,
        max_samples: 65_536,
    };
    let mut session = RestSession::new(Arc::new(datastore), config).unwrap();
    session.observe(&[1; 10], None).unwrap();
    assert_eq!(drafted(&mut session, usize::MAX).len(), 1024);
    assert_eq!(session.match_length(), 10);
}

/// A file whose checksum nobody asked for may hold anything: a search in it must come to an end.
#[test]
fn a_damaged_datastore_gives_a_worse_draft_and_nothing_worse() {
    let square = |i: u32| (0..800).map(|j| (j * j + i) % 5).collect();
    let documents: Vec<Vec<u32>> = (0..4).map(square).collect();
    let victim = Victim::of_shards(1700, options(6, 5), &documents);
    let mut random = Random(1);
    for (name, content) in victim.sections() {
        let (mut content, end) = (content.clone(), content.len() - 8);
        let most_bits = if name.ends_with("tokens.bin") { 9 } else { 8 };
        for byte in &mut content[..end] {
            *byte = u8::try_from(random.below(1 << most_bits)).unwrap_or(0);
        }
        // Counts of first tokens that do not rise are refused at open.
        if !name.ends_with("firsts.bin") {
            write_in_place(&victim.path().join(name), &content);
        }
    }
    let datastore = ask(victim.open().unwrap(), &[0, 1, 4, 1, 0, 1, 4, 2, 3]);
    for position in 0..datastore.num_tokens() {
        datastore.document_at(position).unwrap();
    }
}

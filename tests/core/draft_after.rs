//! What a session drafts after tokens that it has not observed.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::Error;
use specds::draft::{Session, TokenTree};
use specds::fused::{FusedConfig, FusedDrafter, FusedSession, Weights};
use specds::lookup::Datastore;
use specds::papers::aded::{AdaptiveTrigrams, AdedConfig, AdedSession};
use specds::papers::n_grammys::{NGrammysConfig, NGrammysSession, Strategy as Rows};
use specds::papers::prompt_lookup::{PromptLookupConfig, PromptLookupSession};
use specds::papers::rest::{RestConfig, RestSession};

use crate::fused::{memory, trigrams, with_tables};
use crate::oracle::{corpora, shift};
use crate::{built, drafted, options};

/// A session of each kind that adapts to no request, with nothing observed yet.
fn sessions(datastore: &Arc<Datastore>) -> Vec<Box<dyn Session>> {
    let rest = RestConfig {
        max_match: 4,
        ..RestConfig::default()
    };
    let rows = NGrammysConfig {
        k: 3,
        w: 2,
        q: 1,
        strategy: Rows::Context,
    };
    let adaptive = Arc::new(AdaptiveTrigrams::new(trigrams(datastore)));
    let aded = AdedConfig {
        is_adaptive: false,
        ..AdedConfig::default()
    };
    let lookup = PromptLookupConfig::default();
    let all = FusedConfig {
        learns: false,
        ..FusedConfig::default()
    };
    vec![
        Box::new(RestSession::new(Arc::clone(datastore), rest).unwrap()),
        Box::new(NGrammysSession::new(None, rows).unwrap()),
        Box::new(PromptLookupSession::new(lookup).unwrap()),
        Box::new(AdedSession::new(adaptive, aded).unwrap()),
        Box::new(fused(datastore, all).1),
    ]
}

/// A drafter of a datastore and a memory with a text, and its session.
fn fused(datastore: &Arc<Datastore>, config: FusedConfig) -> (Arc<FusedDrafter>, FusedSession) {
    let vocab_size = datastore.vocab_size();
    let memory = memory(vocab_size);
    let text = shift(&[0, 1, 2, 0, 1, 3, 0, 1, 2], vocab_size);
    memory.insert("", &text).unwrap();
    let (datastore, weights) = (Some(Arc::clone(datastore)), Weights::default());
    let drafter = Arc::new(FusedDrafter::new(datastore, Some(memory), config, weights).unwrap());
    let session = FusedSession::new(Arc::clone(&drafter), "").unwrap();
    (drafter, session)
}

/// Drafts and observes in turn, with any number of trials in between; gives the trees.
fn run(
    session: &mut dyn Session,
    pieces: &[(Vec<u32>, Vec<Vec<u32>>)],
    has_trials: bool,
) -> Vec<(TokenTree, usize)> {
    let mut trees = Vec::new();
    for (piece, trials) in pieces {
        let tree = drafted(session, 12);
        let length = session.match_length();
        if has_trials {
            for trial in trials {
                session.draft_after(trial, 9).unwrap();
                assert_eq!(session.match_length(), length);
            }
        }
        let predictions = vec![0; tree.len() + 1];
        session.observe_predictions(&tree, &predictions, 1).unwrap();
        session.observe(piece, Some(5)).unwrap();
        trees.push((tree, length));
    }
    trees
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_draft_on_trial_is_that_of_a_session_which_observed_the_tokens(
        oracle in corpora(),
        context in vec(0_u32..4, 1..30),
        trials in vec(vec(0_u32..4, 0..8), 1..4),
        max_nodes in 0_usize..20,
    ) {
        let datastore = Arc::new(built(oracle.options(), &oracle.documents));
        let context = shift(&context, oracle.vocab_size);
        let mut tried = sessions(&datastore);
        for session in &mut tried {
            session.observe(&context, None).unwrap();
        }
        for trial in trials {
            let trial = shift(&trial, oracle.vocab_size);
            for (session, mut other) in tried.iter_mut().zip(sessions(&datastore)) {
                other.observe(&context, None).unwrap();
                other.observe(&trial, None).unwrap();
                let expected = drafted(other.as_mut(), max_nodes);
                prop_assert_eq!(session.draft_after(&trial, max_nodes).unwrap(), expected);
            }
        }
    }

    #[test]
    fn a_session_that_drafted_on_trial_is_as_one_that_never_did(
        oracle in corpora(),
        prompt in vec(0_u32..4, 1..30),
        pieces in vec((vec(0_u32..4, 1..5), vec(vec(0_u32..4, 0..7), 0..4)), 1..8),
    ) {
        let datastore = Arc::new(built(oracle.options(), &oracle.documents));
        let shifted = |tokens: &Vec<u32>| shift(tokens, oracle.vocab_size);
        let pieces: Vec<_> = pieces.iter().map(|(piece, trials)| {
            (shifted(piece), trials.iter().map(shifted).collect())
        }).collect();
        let prompt = shifted(&prompt);
        let with_and_without = sessions(&datastore).into_iter().zip(sessions(&datastore));
        for (mut with, mut without) in with_and_without {
            with.observe(&prompt, None).unwrap();
            without.observe(&prompt, None).unwrap();
            prop_assert_eq!(run(&mut *with, &pieces, true), run(&mut *without, &pieces, false));
        }
        // With all that adapts: tables, tri-grams, weights, and what was accepted of which source.
        let learned = |has_trials: bool| {
            let drafter = with_tables(Some(&datastore), &memory(oracle.vocab_size), FusedConfig::default());
            let mut session = FusedSession::new(Arc::clone(&drafter), "").unwrap();
            session.observe(&prompt, None).unwrap();
            let trees = run(&mut session, &pieces, has_trials);
            (trees, drafter.weights("").to_bytes(), drafter.accepted())
        };
        prop_assert_eq!(learned(true), learned(false));
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_refused_and_changes_nothing() {
    let datastore = Arc::new(built(options(4, 4), &[vec![1, 2, 3]]));
    let mut num_refused = 0;
    for mut session in sessions(&datastore) {
        session.observe(&[1, 2], None).unwrap();
        let tree = drafted(session.as_mut(), 4);
        let on_trial = session.draft_after(&[1, 4], 4).map(|_| ());
        // What knows no vocabulary follows any token.
        if let Err(error) = on_trial {
            assert!(matches!(error, Error::TokenOutOfRange { .. }));
            let observed = session.observe(&[1, 4], None);
            assert!(matches!(observed, Err(Error::TokenOutOfRange { .. })));
            num_refused += 1;
        }
        assert_eq!(drafted(session.as_mut(), 4), tree);
    }
    assert_eq!(num_refused, 3);
}

//! Sessions: observe, draft.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{FusedSession, RestConfig, RestSession, Session};
use specds::error::Error;

use crate::oracle::{corpora, draft, shift};
use crate::{build, options, tempdir};

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
        exact in any::<bool>(),
        max_nodes in 0_usize..20,
    ) {
        let folder = tempdir().unwrap();
        let path = folder.path().join("datastore");
        let datastore = Arc::new(build(&path, oracle.options(), &oracle.documents).unwrap());
        let max_match = max_match.max(min_match);
        let config = RestConfig { max_match, min_match, continuation, max_samples, exact };
        let mut session = RestSession::new(Arc::clone(&datastore), config).unwrap();
        let mut context = Vec::new();
        for (piece, is_drafted) in pieces {
            let piece: Vec<_> = shift(&piece, oracle.vocab_size);
            session.observe(&piece).unwrap();
            context.extend(piece);
            if is_drafted {
                let tree = session.draft(max_nodes).unwrap();
                let (pattern, _) = oracle.lookup(&context, max_match, min_match);
                prop_assert_eq!(session.match_length(), pattern.len());
                let max_samples = if exact { usize::MAX } else { max_samples };
                let samples = oracle.samples(&pattern, continuation, max_samples);
                prop_assert_eq!(&tree, &draft(&samples, max_nodes));

                let mut fresh = RestSession::new(Arc::clone(&datastore), config).unwrap();
                fresh.observe(&context).unwrap();
                prop_assert_eq!(&fresh.draft(max_nodes).unwrap(), &tree);
                prop_assert_eq!(&session.draft(max_nodes + 3).unwrap().prefix(max_nodes), &tree);
            }
        }
    }
}

#[test]
fn a_session_without_context_drafts_nothing() {
    let folder = tempdir().unwrap();
    let datastore = build(
        &folder.path().join("datastore"),
        options(4, 4),
        &[vec![1, 2]],
    )
    .unwrap();
    let mut session = RestSession::new(Arc::new(datastore), RestConfig::default()).unwrap();
    assert!(session.draft(64).unwrap().is_empty());
    assert_eq!(session.match_length(), 0);
}

#[test]
fn observing_an_unknown_token_changes_nothing() {
    let folder = tempdir().unwrap();
    let datastore = build(
        &folder.path().join("datastore"),
        options(4, 4),
        &[vec![1, 2, 3]],
    )
    .unwrap();
    let mut session = RestSession::new(Arc::new(datastore), RestConfig::default()).unwrap();
    session.observe(&[1]).unwrap();
    let error = session.observe(&[2, 4]).unwrap_err();
    assert!(matches!(
        error,
        Error::TokenOutOfRange {
            token: 4,
            vocab_size: 4
        }
    ));
    assert_eq!(session.draft(64).unwrap().token_ids(), [2, 3]);
}

#[test]
fn unusable_configurations_are_refused_by_name() {
    let folder = tempdir().unwrap();
    let datastore =
        Arc::new(build(&folder.path().join("datastore"), options(4, 4), &[vec![1]]).unwrap());
    let default = RestConfig::default();
    let rows = [
        (
            "min_match",
            RestConfig {
                min_match: 0,
                ..default
            },
        ),
        (
            "max_match",
            RestConfig {
                min_match: 17,
                ..default
            },
        ),
        (
            "continuation",
            RestConfig {
                continuation: 0,
                ..default
            },
        ),
        (
            "continuation",
            RestConfig {
                continuation: 1025,
                ..default
            },
        ),
        (
            "max_samples",
            RestConfig {
                max_samples: 0,
                ..default
            },
        ),
        (
            "max_samples",
            RestConfig {
                max_samples: 65_537,
                ..default
            },
        ),
    ];
    for (argument, config) in rows {
        let error = RestSession::new(Arc::clone(&datastore), config).unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { name, .. } if name == argument),
            "{config:?}"
        );
    }
}

#[test]
fn the_largest_configuration_works() {
    let folder = tempdir().unwrap();
    let datastore = build(
        &folder.path().join("datastore"),
        options(4, 4),
        &[vec![1; 3000]],
    )
    .unwrap();
    let config = RestConfig {
        max_match: usize::MAX,
        min_match: 1,
        continuation: 1024,
        max_samples: 65_536,
        exact: false,
    };
    let mut session = RestSession::new(Arc::new(datastore), config).unwrap();
    session.observe(&[1; 10]).unwrap();
    assert_eq!(session.draft(usize::MAX).unwrap().len(), 1024);
    assert_eq!(session.match_length(), 10);
}

#[test]
fn a_fused_session_drafts_what_came_before_in_the_request_beside_the_datastore() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("datastore");
    let datastore = Arc::new(build(&path, options(9, 9), &[vec![1, 2, 3, 4]]).unwrap());
    let mut session = FusedSession::new(Arc::clone(&datastore), RestConfig::default()).unwrap();
    session.observe(&[1, 2, 7, 8, 1, 2]).unwrap();
    let tree = session.draft(4).unwrap();
    // Both match two tokens, so both give their first token half of 3/4, their second of 9/16.
    assert_eq!(tree.token_ids(), [3, 7, 4, 8]);
    assert_eq!(tree.parents(), [-1, -1, 0, 1]);
    assert_eq!(tree.probs(), [0.375, 0.375, 0.28125, 0.28125]);

    // What both foretell comes first.
    session.observe(&[3, 4, 1, 2]).unwrap();
    let tree = session.draft(2).unwrap();
    assert_eq!(tree.token_ids(), [3, 4]);
    assert_eq!(tree.probs(), [0.75, 0.5625]);
}

#[test]
fn the_longer_match_ranks_first() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("datastore");
    let datastore = Arc::new(build(&path, options(9, 9), &[vec![2, 3]]).unwrap());
    let mut session = FusedSession::new(Arc::clone(&datastore), RestConfig::default()).unwrap();
    session.observe(&[1, 2, 7, 8, 1, 2]).unwrap();
    assert_eq!(session.draft(2).unwrap().token_ids(), [7, 3]);
    session.observe(&[5, 2]).unwrap();
    assert_eq!(session.draft(2).unwrap().token_ids(), [3, 5]);
}

#[test]
fn no_draft_from_the_request_passes_a_separator() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("datastore");
    let datastore = Arc::new(build(&path, options(5, 4), &[vec![1]]).unwrap());
    let mut session = FusedSession::new(datastore, RestConfig::default()).unwrap();
    session.observe(&[2, 3, 4, 0, 2]).unwrap();
    assert_eq!(session.draft(8).unwrap().token_ids(), [3, 4]);
}

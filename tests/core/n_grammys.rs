//! The drafters that need no data: N-Grammys and prompt lookup.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::Error;
use specds::draft::Session;
use specds::draft::{DraftLimits, Source, TokenTree};
use specds::papers::model_tables::ModelTables;
use specds::papers::n_grammys::{NGrammysConfig, NGrammysSession, Strategy as Rows};
use specds::papers::prompt_lookup::{PromptLookupConfig, PromptLookupSession};

use crate::oracle::paths;

/// After each of four tokens the two next ones, with these probabilities; 3, 1, 0, 2 as unigram.
fn tables() -> Arc<ModelTables> {
    let bigram = vec![1, 2, 2, 3, 3, 0, 0, 1];
    let probs = [0.5, 0.25].repeat(4);
    Arc::new(ModelTables::new(bigram, probs, vec![3, 1, 0, 2]).unwrap())
}

fn draft(context: &[u32], config: NGrammysConfig, max_nodes: usize) -> (TokenTree, usize) {
    let mut session = NGrammysSession::new(Some(tables()), config).unwrap();
    session.observe(context, None).unwrap();
    let tree = session.draft(DraftLimits::nodes(max_nodes)).unwrap();
    (tree, session.match_length())
}

fn config(k: usize, w: usize, strategy: Rows) -> NGrammysConfig {
    let q = 1;
    NGrammysConfig { k, w, q, strategy }
}

#[test]
fn the_defaults_are_those_of_the_papers() {
    let expected = NGrammysConfig {
        k: 10,
        w: 10,
        q: 1,
        strategy: Rows::Mixed,
    };
    assert_eq!(NGrammysConfig::default(), expected);
    let expected = PromptLookupConfig {
        max_match: 3,
        num_tokens: 10,
    };
    assert_eq!(PromptLookupConfig::default(), expected);
}

#[test]
fn the_most_frequent_rows_come_first_and_of_these_the_latest() {
    // After 0 came 1 2 once, 2 2 twice, 3 1 once and later than 1 2.
    let context = [0, 1, 2, 0, 2, 2, 0, 2, 2, 0, 3, 1, 0];
    let (tree, length) = draft(&context, config(3, 2, Rows::Context), 9);
    assert_eq!(tree.token_ids(), [2, 2, 3, 1, 1, 2]);
    assert_eq!(tree.parents(), [-1, 0, -1, 2, -1, 4]);
    assert_eq!(tree.probs(), [0.5, 0.5, 0.25, 0.25, 0.25, 0.25]);
    assert_eq!(tree.sources(), [Source::Context; 6]);
    assert_eq!(length, 1);
    let (tree, _) = draft(&context, config(2, 2, Rows::Context), 9);
    assert_eq!(tree.token_ids(), [2, 2, 3, 1]);
}

#[test]
fn a_row_from_the_context_has_all_its_tokens() {
    let (tree, length) = draft(&[0, 1, 0], config(4, 3, Rows::Context), 9);
    assert_eq!((tree.len(), length), (0, 0));
    let (tree, _) = draft(&[0, 1, 0], config(4, 2, Rows::Context), 9);
    assert_eq!(tree.token_ids(), [1, 0]);
}

#[test]
fn bigrams_fill_the_rows_that_the_context_leaves() {
    let (tree, length) = draft(&[1, 3, 0, 1], config(2, 2, Rows::Mixed), 9);
    assert_eq!(tree.token_ids(), [3, 0, 2, 3]);
    assert_eq!(tree.parents(), [-1, 0, -1, 2]);
    assert_eq!(tree.probs(), [1.0, 1.0, 0.5, 0.25]);
    let names = tree.sources().iter().map(|source| source.name());
    assert!(names.eq(["context", "context", "bigram", "bigram"]));
    assert_eq!(length, 1);
    // Nothing is left, and nothing was there.
    let (tree, _) = draft(&[1, 3, 0, 1], config(1, 2, Rows::Mixed), 9);
    assert_eq!(tree.token_ids(), [3, 0]);
    assert_eq!(
        draft(&[2], config(2, 2, Rows::Mixed), 9),
        draft(&[2], config(2, 2, Rows::ExtendedBigram), 9)
    );
    // A bigram below a node of the context is as likely as that node and the bigram together.
    let (tree, _) = draft(&[0, 1, 1, 0], config(2, 2, Rows::Mixed), 9);
    assert_eq!(tree.token_ids(), [1, 1, 2]);
    assert_eq!(tree.parents(), [-1, 0, 0]);
    assert_eq!(tree.probs(), [1.0, 1.0, 0.5]);
}

#[test]
fn bigrams_and_unigrams_are_one_token_deep() {
    let (tree, length) = draft(&[1], config(2, 5, Rows::Bigram), 9);
    assert_eq!(tree.token_ids(), [2, 3]);
    assert_eq!((tree.probs(), length), (&[0.5, 0.25][..], 1));
    let (tree, length) = draft(&[1], config(3, 5, Rows::Unigram), 9);
    assert_eq!(tree.token_ids(), [3, 1, 0]);
    assert_eq!(tree.parents(), [-1; 3]);
    assert_eq!(tree.sources(), [Source::Unigram; 3]);
    assert_eq!((tree.probs(), length), (&[0.0; 3][..], 0));
}

#[test]
fn nothing_is_drafted_before_there_is_a_context() {
    for strategy in Rows::ALL {
        let (tree, length) = draft(&[], config(2, 2, strategy), 9);
        assert_eq!((tree.len(), length), (0, 0), "{strategy:?}");
    }
}

fn rows_of(context: &[u32], config: NGrammysConfig) -> Vec<Vec<u32>> {
    let (w, q) = (config.w, config.q);
    let query = &context[context.len().saturating_sub(q)..];
    let mut rows: Vec<(Vec<u32>, usize)> = Vec::new();
    if query.len() == q {
        for window in context.windows(q + w).rev() {
            if window.starts_with(query) {
                match rows.iter_mut().find(|(row, _)| row == &window[q..]) {
                    Some((_, count)) => *count += 1,
                    None => rows.push((window[q..].to_vec(), 1)),
                }
            }
        }
    }
    rows.sort_by_key(|&(_, count)| usize::MAX - count);
    rows.into_iter()
        .map(|(row, _)| row)
        .take(config.k)
        .collect()
}

proptest! {
    #[test]
    fn the_tree_is_the_rows_merged_in_their_order(
        pieces in vec(vec(0_u32..4, 0..12), 1..6),
        (k, w, q) in (1_usize..6, 1_usize..5, 1_usize..4),
        max_nodes in 0_usize..30,
    ) {
        let config = NGrammysConfig { k, w, q, strategy: Rows::Context };
        let mut session = NGrammysSession::new(None, config).unwrap();
        let mut context = Vec::new();
        for piece in pieces {
            session.observe(&piece, None).unwrap();
            context.extend(piece);
            let mut expected: Vec<Vec<u32>> = Vec::new();
            for row in rows_of(&context, config) {
                for length in 1..=w {
                    if !expected.iter().any(|path| path == &row[..length]) {
                        expected.push(row[..length].to_vec());
                    }
                }
            }
            let tree = session.draft(DraftLimits::nodes(usize::MAX)).unwrap();
            prop_assert_eq!(paths(&tree), expected);
            prop_assert_eq!(session.match_length(), if tree.is_empty() { 0 } else { q });
            prop_assert_eq!(session.draft(DraftLimits::nodes(max_nodes)).unwrap(), tree.prefix(max_nodes));
        }
    }

    #[test]
    fn a_smaller_budget_gives_the_beginning_of_the_same_tree(
        context in vec(0_u32..4, 0..30),
        (k, w) in (1_usize..3, 1_usize..5),
        max_nodes in 0_usize..12,
    ) {
        for strategy in Rows::ALL {
            let (whole, _) = draft(&context, config(k, w, strategy), usize::MAX);
            let (tree, _) = draft(&context, config(k, w, strategy), max_nodes);
            prop_assert_eq!(&tree, &whole.prefix(max_nodes));
            prop_assert!(whole.len() <= k * w);
            prop_assert!(TokenTree::new(
                whole.token_ids().to_vec(), whole.parents().to_vec(), whole.probs().to_vec()
            ).is_ok());
            for (&parent, prob) in whole.parents().iter().zip(whole.probs()) {
                let of_parent = usize::try_from(parent).map_or(1.0, |node| whole.probs()[node]);
                prop_assert!(*prob <= of_parent);
            }
        }
    }

    #[test]
    fn prompt_lookup_takes_what_followed_the_first_occurrence_of_the_longest_suffix(
        pieces in vec(vec(0_u32..4, 0..12), 1..6),
        (max_match, num_tokens) in (1_usize..5, 1_usize..6),
        max_nodes in 0_usize..8,
    ) {
        let config = PromptLookupConfig { max_match, num_tokens };
        let mut session = PromptLookupSession::new(config).unwrap();
        let mut context = Vec::new();
        for piece in pieces {
            session.observe(&piece, None).unwrap();
            context.extend(piece);
            let length = context.len();
            let (mut expected, mut matched) = (&[][..], 0);
            'found: for n in (1..=max_match.min(length.saturating_sub(1))).rev() {
                for start in 0..length - n {
                    if context[start..start + n] == context[length - n..] {
                        (expected, matched) = (&context[start + n..], n);
                        break 'found;
                    }
                }
            }
            let tree = session.draft(DraftLimits::nodes(max_nodes)).unwrap();
            let expected = &expected[..expected.len().min(num_tokens).min(max_nodes)];
            prop_assert_eq!(tree.token_ids(), expected);
            prop_assert!(tree.parents().iter().copied().eq((-1..).take(tree.len())));
            prop_assert_eq!(tree.probs(), vec![1.0; tree.len()]);
            prop_assert_eq!(session.match_length(), matched);
        }
    }
}

#[test]
fn unusable_configurations_are_refused_by_name() {
    let tables = tables();
    let default = config(2, 2, Rows::Mixed);
    let rows = [
        ("k", NGrammysConfig { k: 0, ..default }),
        ("k", NGrammysConfig { k: 3, ..default }),
        ("k", config(1025, 2, Rows::Context)),
        ("w", NGrammysConfig { w: 0, ..default }),
        ("w", NGrammysConfig { w: 1025, ..default }),
        ("q", NGrammysConfig { q: 0, ..default }),
    ];
    for (argument, config) in rows {
        let error = NGrammysSession::new(Some(Arc::clone(&tables)), config).unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { name, .. } if name == argument),
            "{config:?}"
        );
    }
    for strategy in Rows::ALL {
        let session = NGrammysSession::new(None, config(2, 2, strategy));
        assert_eq!(session.is_ok(), strategy == Rows::Context);
        assert_eq!(Rows::from_name(strategy.name()).unwrap(), strategy);
    }
    let message = Rows::from_name("trigram").unwrap_err().to_string();
    assert!(message.contains("mixed, context, bigram"), "{message}");
    for (max_match, num_tokens) in [(0, 1), (1, 0), (1025, 1), (1, 1025)] {
        let config = PromptLookupConfig {
            max_match,
            num_tokens,
        };
        assert!(PromptLookupSession::new(config).is_err(), "{config:?}");
    }
}

#[test]
fn tokens_outside_the_tables_vocabulary_leave_the_context_as_it_was() {
    let mut session = NGrammysSession::new(Some(tables()), config(2, 1, Rows::Mixed)).unwrap();
    session.observe(&[1], None).unwrap();
    let error = session.observe(&[2, 4], None).unwrap_err();
    assert!(matches!(
        error,
        Error::TokenOutOfRange {
            token: 4,
            vocab_size: 4
        }
    ));
    assert_eq!(
        session.draft(DraftLimits::nodes(9)).unwrap().token_ids(),
        [2, 3]
    );
}

#[test]
fn tables_that_contradict_themselves_are_refused() {
    type Arrays = (Vec<u32>, Vec<f32>, Vec<u32>);
    let new = |(bigram, probs, unigram): Arrays| ModelTables::new(bigram, probs, unigram);
    let good = || (vec![1, 0, 0, 1], vec![0.5; 4], vec![1, 0]);
    assert_eq!(new(good()).unwrap().k(), 2);
    let rows: [(&str, Arrays); 6] = [
        ("`unigram`", (vec![], vec![], vec![])),
        ("`bigram`", (vec![], vec![], vec![1, 0])),
        ("`bigram`", (vec![1, 0, 1], vec![0.5; 3], vec![1, 0])),
        ("`bigram_probs`", (vec![1, 0], vec![0.5; 3], vec![1, 0])),
        ("`bigram_probs`", (vec![1, 0], vec![0.5, 1.5], vec![1, 0])),
        ("token 2", (vec![1, 0], vec![0.5; 2], vec![1, 2])),
    ];
    for (word, arrays) in rows {
        let message = new(arrays).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    let (bigram, _, unigram) = good();
    assert!(ModelTables::new(bigram, vec![f32::NAN; 4], unigram).is_err());
}

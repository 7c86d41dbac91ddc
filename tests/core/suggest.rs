//! Suggestions from outside: drafted for as long as the text follows them, trusted as they deserve.

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{Session, Source, TokenTree};
use specds::fused::FusedConfig;
use specds::papers::prompt_lookup::{PromptLookupConfig, PromptLookupSession};

use crate::fused::{alone, drafter, memory, start};
use crate::random::Random;
use crate::{drafted, refusal};

fn chain(tokens: &[u32]) -> TokenTree {
    let parents = (-1..).take(tokens.len()).collect();
    TokenTree::new(tokens.to_vec(), parents, vec![1.0; tokens.len()]).unwrap()
}

#[test]
fn a_suggestion_is_drafted_while_the_text_follows_it() {
    let mut session = start(&alone(), &[1, 2, 3]);
    assert!(session.suggest(chain(&[7, 8, 9, 4])).unwrap());
    let tree = drafted(&mut session, 8);
    assert_eq!(
        (tree.token_ids(), tree.parents()),
        (&[7, 8, 9, 4][..], &[-1, 0, 1, 2][..])
    );
    assert_eq!(tree.sources(), [Source::Suggested; 4]);
    session.observe(&[7, 8], None).unwrap();
    assert_eq!(drafted(&mut session, 8).token_ids()[..2], [9, 4]);
    session.observe(&[5], None).unwrap();
    assert!(drafted(&mut session, 8).is_empty(), "the text has left it");
}

#[test]
fn suggestions_get_the_trust_that_they_earn() {
    // The text itself foretells one token; the suggestion another one, right in the first half alone.
    let mut session = start(&alone(), &[1, 2, 3]);
    let mut first = Vec::new();
    for step in 0..60 {
        let right = if step < 30 { 5 } else { 2 };
        session.suggest(chain(&[5])).unwrap();
        let tree = drafted(&mut session, 1);
        first.push(tree.token_ids()[0]);
        session.observe(&[right], None).unwrap();
        session.observe(&[3, 1], None).unwrap();
    }
    assert_eq!(first[5..30], [5; 25]);
    assert_eq!(first[45..], [2; 15]);
}

#[test]
fn a_likelier_suggestion_comes_first() {
    let mut session = start(&alone(), &[1, 2, 3]);
    let tree = TokenTree::new(vec![6, 7, 8], vec![-1, -1, 1], vec![0.2, 0.7, 0.9]).unwrap();
    session.suggest(tree).unwrap();
    let tree = drafted(&mut session, 3);
    assert_eq!(
        (tree.token_ids(), tree.parents()),
        (&[7, 8, 6][..], &[-1, 0, -1][..])
    );
}

#[test]
fn what_cannot_be_a_suggestion_is_refused_and_changes_nothing() {
    let known = drafter(None, Some(&memory(10)), FusedConfig::default());
    let mut session = start(&known, &[1, 2, 3]);
    session.suggest(chain(&[7, 8])).unwrap();
    for (tokens, message) in [
        (&[7, 10][..], "token 10 is outside the vocabulary of 10"),
        (&[1; 1025], "has 1025 nodes: give at most 1024"),
    ] {
        assert!(refusal(session.suggest(chain(tokens))).contains(message));
    }
    assert_eq!(drafted(&mut session, 2).token_ids(), [7, 8]);
    session.suggest(chain(&[])).unwrap();
    assert!(drafted(&mut session, 2).is_empty());
}

#[test]
fn other_drafters_say_that_they_use_none() {
    let mut session = PromptLookupSession::new(PromptLookupConfig::default()).unwrap();
    session.observe(&[1, 2, 1], None).unwrap();
    assert!(!session.suggest(chain(&[9])).unwrap());
    assert_eq!(drafted(&mut session, 1).token_ids(), [2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_draft_on_trial_is_that_after_the_tokens_with_suggestions_too(
        prompt in vec(0_u32..5, 1..8),
        text in vec(0_u32..5, 1..12),
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let config = FusedConfig { learns: false, ..FusedConfig::default() };
        let mut session = start(&drafter(None, None, config), &prompt);
        for tokens in text.chunks(3) {
            let length = random.below(6) as usize;
            session.suggest(chain(&random.tokens(length, 0, 5))).unwrap();
            let on_trial = session.draft_after(tokens, 6).unwrap();
            session.observe(tokens, None).unwrap();
            prop_assert_eq!(on_trial, drafted(&mut session, 6));
        }
    }
}

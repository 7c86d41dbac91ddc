//! Suggestions from outside: drafted for as long as the text follows them, trusted as they deserve.

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{Session, Source, TokenTree};
use specds::fused::FusedConfig;

use crate::drafted;
use crate::fused::{alone, drafter, start};
use crate::random::Random;

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

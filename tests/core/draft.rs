//! Sessions: observe, draft.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::{Session, TokenTree};
use specds::papers::rest::{RestConfig, RestSession};

use crate::{built, drafted, options, refusal};

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

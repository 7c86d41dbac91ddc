//! The token tree and its views.

use proptest::collection::vec;
use proptest::prelude::*;
use specds::Error;
use specds::draft::TokenTree;

fn views(tree: &TokenTree) -> (Vec<u32>, Vec<bool>, Vec<Vec<usize>>) {
    (tree.depths(), tree.mask(), tree.paths())
}

#[test]
fn an_empty_tree_has_empty_views() {
    let tree = TokenTree::default();
    assert!(tree.is_empty());
    assert_eq!(views(&tree), (vec![], vec![], vec![]));
    assert_eq!(tree.prefix(3), tree);
}

#[test]
fn views_of_a_small_tree_are_those_drawn_by_hand() {
    let tree = TokenTree::new(
        vec![7, 8, 8, 9],
        vec![-1, -1, 0, 0],
        vec![0.5, 0.25, 0.25, 0.125],
    )
    .unwrap();
    let (depths, mask, paths) = views(&tree);
    assert_eq!(depths, [1, 1, 2, 2]);
    let rows = ["1000", "0100", "1010", "1001"].concat();
    assert_eq!(mask, rows.chars().map(|c| c == '1').collect::<Vec<_>>());
    assert_eq!(paths, [vec![1], vec![0, 2], vec![0, 3]]);
    assert_eq!(tree.prefix(2).token_ids(), [7, 8]);
    assert_eq!(tree.prefix(9), tree);
    assert_eq!(tree.up_to_depth(1).token_ids(), [7, 8]);
    assert_eq!(tree.up_to_depth(2), tree);
    assert_eq!(tree.up_to_depth(0), TokenTree::default());
    assert_eq!(
        tree.clone().into_parts(),
        (
            vec![7, 8, 8, 9],
            vec![-1, -1, 0, 0],
            vec![0.5, 0.25, 0.25, 0.125]
        )
    );
}

#[test]
fn impossible_trees_are_refused_by_name() {
    type Row<'a> = (&'a str, &'a [u32], &'a [i32], &'a [f32]);
    let rows: [Row; 12] = [
        ("parents", &[1, 2], &[-1], &[1.0, 1.0]),
        ("parents", &[1], &[-1, -1], &[1.0]),
        ("probs", &[1, 2], &[-1, -1], &[1.0]),
        // A node that is its own parent or comes before it, and parents that are none.
        ("parents", &[1], &[0], &[1.0]),
        ("parents", &[1, 2], &[1, -1], &[1.0, 1.0]),
        ("parents", &[1], &[-2], &[1.0]),
        ("parents", &[1], &[i32::MIN], &[1.0]),
        // Equal roots and equal siblings.
        ("token_ids", &[1, 2, 1], &[-1, -1, -1], &[1.0; 3]),
        ("token_ids", &[1, 2, 2], &[-1, 0, 0], &[1.0; 3]),
        ("probs", &[1], &[-1], &[1.5]),
        ("probs", &[1], &[-1], &[-0.5]),
        ("probs", &[1], &[-1], &[f32::NAN]),
    ];
    for (argument, token_ids, parents, probs) in rows {
        let tree = TokenTree::new(token_ids.to_vec(), parents.to_vec(), probs.to_vec());
        let error = tree.unwrap_err();
        let is_named = matches!(error, Error::InvalidArgument { name, .. } if name == argument);
        assert!(is_named, "{token_ids:?}, {parents:?}, {probs:?}: {error}");
    }
}

/// The tokens and parents of any tree: no two nodes have the same token.
fn trees() -> impl Strategy<Value = (Vec<u32>, Vec<i32>)> {
    let parents = vec(any::<prop::sample::Index>(), 0..24).prop_map(|indices| {
        let nodes = indices.iter().enumerate();
        nodes
            .map(|(node, index)| i32::try_from(index.index(node + 1)).unwrap() - 1)
            .collect()
    });
    let with_tokens = |parents: Vec<i32>| {
        (
            Just((7..).take(parents.len()).collect()).prop_shuffle(),
            Just(parents),
        )
    };
    parents.prop_flat_map(with_tokens)
}

proptest! {
    #[test]
    fn views_follow_from_walking_up(
        (token_ids, parents) in trees(),
        cut in 0_usize..30,
    ) {
        let n = token_ids.len();
        let tree = TokenTree::new(token_ids, parents.clone(), vec![0.5; n]).unwrap();
        let up = |node: usize| {
            let mut path = vec![node];
            while let Ok(parent) = usize::try_from(parents[path[0]]) {
                path.insert(0, parent);
            }
            path
        };
        let (depths, mask, paths) = views(&tree);
        for (row, depth) in depths.iter().enumerate() {
            prop_assert_eq!(*depth as usize, up(row).len());
            for column in 0..n {
                prop_assert_eq!(mask[row * n + column], up(row).contains(&column));
            }
        }
        let is_leaf = |node: usize| !parents.iter().any(|&parent| usize::try_from(parent) == Ok(node));
        prop_assert_eq!(paths, (0..n).filter(|&node| is_leaf(node)).map(up).collect::<Vec<_>>());
        let shallow = tree.up_to_depth(cut / 4);
        let kept: Vec<_> = (0..n).filter(|&node| up(node).len() <= cut / 4).collect();
        let tokens_to = |tree: &TokenTree, path: &[usize]| {
            path.iter().map(|&node| tree.token_ids()[node]).collect::<Vec<_>>()
        };
        prop_assert_eq!(shallow.token_ids(), tokens_to(&tree, &kept));
        for path in shallow.paths() {
            let original = kept[*path.last().unwrap()];
            prop_assert_eq!(tokens_to(&shallow, &path), tokens_to(&tree, &up(original)));
        }
        let prefix = tree.prefix(cut);
        prop_assert_eq!(prefix.parents(), &parents[..cut.min(n)]);
        let (token_ids, parents, probs) = prefix.clone().into_parts();
        prop_assert_eq!(TokenTree::new(token_ids, parents, probs).unwrap(), prefix);
    }
}

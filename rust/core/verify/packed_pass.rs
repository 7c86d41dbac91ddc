//! Memory layout of a verification pass: its input rows and its report.
//!
//! One block of numbers goes to the device and one comes back, so that each is a single copy.

use crate::draft::token_tree::TokenTree;
use specds_index::{Error, Result};

/// One row of a verification pass.
#[derive(Debug, Clone, Copy)]
pub struct PassRow<'a> {
    /// The last accepted token.
    pub last: i64,
    /// The draft to verify.
    pub tree: Option<&'a TokenTree>,
    /// The number of tokens before the last one.
    pub length: i64,
}

/// Writes rows of `width` positions into `numbers`, in the layout of `specds.transformers.verify.inputs.Inputs`: the
/// tokens of all rows, their depths and parents, the lengths of the rows, and a bit mask of the attended
/// positions of each position. Padding attends to itself only. O(numbers).
///
/// # Errors
/// [`Error::InvalidArgument`] if `numbers` has another length, or a row does not fit into `width`.
pub fn pack_rows(numbers: &mut [i64], width: usize, rows: &[PassRow<'_>]) -> Result<()> {
    let words = width.div_ceil(64);
    let size = width.saturating_mul(3 + words).saturating_add(1);
    let num_rows = numbers.len() / size;
    let fits = |row: &PassRow<'_>| row.tree.map_or(0, TokenTree::len) < width;
    let is_whole = width > 0 && numbers.len() == num_rows * size;
    if !is_whole || rows.len() > num_rows || !rows.iter().all(fits) {
        let reason = format!("must hold {} rows of {width} positions", rows.len());
        return Err(Error::invalid("numbers", reason));
    }
    numbers.fill(0);
    let (of_places, rest) = numbers.split_at_mut(3 * num_rows * width);
    let (lengths, ancestors) = rest.split_at_mut(num_rows);
    let (tokens, of_places) = of_places.split_at_mut(num_rows * width);
    let (depths, parents) = of_places.split_at_mut(num_rows * width);
    for (place, seen) in ancestors.chunks_exact_mut(words).enumerate() {
        see(seen, place % width);
    }
    for (index, row) in rows.iter().enumerate() {
        let places = index * width..(index + 1) * width;
        let (tokens, depths) = (&mut tokens[places.clone()], &mut depths[places.clone()]);
        tokens[0] = row.last;
        lengths[index] = row.length;
        if let Some(tree) = row.tree {
            let seen = &mut ancestors[places.start * words..places.end * words];
            add_nodes(tree, tokens, depths, &mut parents[places], seen);
        }
    }
    Ok(())
}

fn add_nodes(
    tree: &TokenTree,
    tokens: &mut [i64],
    depths: &mut [i64],
    parents: &mut [i64],
    ancestors: &mut [i64],
) {
    let words = ancestors.len() / tokens.len();
    for (place, (&token, &parent)) in (1..).zip(tree.token_ids().iter().zip(tree.parents())) {
        tokens[place] = token.into();
        parents[place] = i64::from(parent) + 1;
        let parent = usize::try_from(parent + 1).unwrap_or(0);
        depths[place] = depths[parent] + 1;
        ancestors.copy_within(parent * words..(parent + 1) * words, place * words);
        see(&mut ancestors[place * words..], place);
    }
}

fn see(seen: &mut [i64], place: usize) {
    seen[place / 64] |= 1 << (place % 64);
}

/// The outcome of one row of a verification pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The accepted nodes, from the root to the leaf.
    pub nodes: Vec<i64>,
    /// The tokens of those nodes, and the token after them.
    pub tokens: &'a [i64],
    /// The top-1 token at every position.
    pub predictions: &'a [i64],
}

/// Parses the report of `specds.transformers.accept.on_device.report` for a row of `width` positions.
///
/// # Errors
/// [`Error::InvalidArgument`] if `reported` is not such a report.
pub fn read_outcome(reported: &[i64], width: usize) -> Result<Outcome<'_>> {
    let split = || {
        let (&count, rest) = reported.split_first()?;
        let (path, rest) = rest.split_at_checked(width)?;
        let (tokens, predictions) = rest.split_at_checked(width)?;
        let count = usize::try_from(count).ok()?;
        Some(Outcome {
            nodes: path.get(1..=count)?.iter().map(|place| place - 1).collect(),
            tokens: &tokens[..=count],
            predictions,
        })
    };
    split().ok_or_else(|| {
        let reason = format!("is not a report of a row of {width} positions");
        Error::invalid("reported", reason)
    })
}

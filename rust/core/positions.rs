//! Where in a text did the end of a path come before?

use std::ops::Range;

use crate::history::History;

/// The longest match that is told from longer ones.
pub(crate) const MAX_LENGTH: usize = 16;

/// A place in a text that what was written just before a node came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    /// Where the text goes on.
    pub(crate) next: u32,
    /// How many tokens before it are those before the node.
    pub(crate) length: u32,
}

/// Those of one node in one text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Positions {
    pub(crate) range: Range<usize>,
    /// Whether there may be more.
    pub(crate) is_cut: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Caps {
    pub pairs: usize,
    pub singles: usize,
}

pub(crate) fn find(
    history: &History,
    tail: &[u32],
    caps: Caps,
    all: &mut Vec<Position>,
) -> Positions {
    let start = all.len();
    let tokens = history.tokens();
    let mut is_cut = false;
    let Some(&last) = tail.last() else {
        return Positions { range: start..start, is_cut };
    };
    let before = tail.len().checked_sub(2).map(|index| tail[index]);
    if let Some(before) = before {
        is_cut = add_pairs(history, before, tail, caps, all);
    }
    is_cut |= add_singles(history, before, last, caps, all);
    Positions { range: start..all.len(), is_cut }
}

fn add_singles(
    history: &History,
    before: Option<u32>,
    last: u32,
    caps: Caps,
    all: &mut Vec<Position>,
) -> bool {
    let tokens = history.tokens();
    for (index, end) in history.of_token(last).enumerate() {
        if index > caps.singles {
            return true;
        }
        let is_pair = end > 0 && Some(tokens[end - 1]) == before;
        if end + 1 < tokens.len() && !is_pair {
            all.push(Position { next: end as u32 + 1, length: 1 });
        }
    }
    false
}

/// Those of a child.
pub(crate) fn follow(
    history: &History,
    parent: &Positions,
    tail: &[u32],
    caps: Caps,
    thin: usize,
    enough: usize,
    all: &mut Vec<Position>,
) -> Positions {
    let start = all.len();
    let tokens = history.tokens();
    let (Some(&last), Some(&before)) = (tail.last(), tail.iter().rev().nth(1)) else {
        return Positions { range: start..start, is_cut: false };
    };
    for index in parent.range.clone() {
        let Position { next, length } = all[index];
        if tokens.get(next as usize) == Some(&last) && (next as usize) + 1 < tokens.len() {
            all.push(Position { next: next + 1, length: (length + 1).min(MAX_LENGTH as u32) });
        }
    }
    let mut is_cut = parent.is_cut;
    if is_cut && all.len() - start < thin {
        all.truncate(start);
        is_cut = add_pairs(history, before, tail, caps, all);
    }
    if all.len() - start < enough {
        is_cut |= add_singles(history, Some(before), last, caps, all);
    } else {
        is_cut = true;
    }
    Positions { range: start..all.len(), is_cut }
}

fn add_pairs(history: &History, before: u32, tail: &[u32], caps: Caps, all: &mut Vec<Position>) -> bool {
    let tokens = history.tokens();
    let last = tail[tail.len() - 1];
    for (index, end) in history.of_pair(before, last).enumerate() {
        if index > caps.pairs {
            return true;
        }
        if end + 1 < tokens.len() {
            let pairs = tokens[..=end].iter().rev().zip(tail.iter().rev());
            let length = pairs.take(MAX_LENGTH).take_while(|(a, b)| a == b).count();
            all.push(Position { next: end as u32 + 1, length: length as u32 });
        }
    }
    false
}

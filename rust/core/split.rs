//! Which beginnings of a match's continuations are the most frequent, told from ranges alone?
//!
//! The occurrences of a path are one range of ranks in each shard, and one interval in the merged
//! order of all shards' occurrences. The interval's bounds say how many samples lie in it, and no
//! sample is read: the answer is the same however the corpus is cut into shards, and exact where
//! every occurrence is a sample.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::datastore::{Datastore, Match};
use crate::stride::Stride;

/// A path that follows a match.
pub(crate) struct Node {
    pub(crate) token: u32,
    /// The number of nodes before its parent, -1 where it has none.
    pub(crate) parent: i32,
    /// The number of samples that begin with the path.
    pub(crate) count: u64,
}

/// Splits the occurrences of a match by the tokens that follow, the most frequent first.
///
/// Its memory is kept between drafts.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    queue: BinaryHeap<Group>,
    /// The ranges of the groups, one a shard.
    ranges: Vec<Range<usize>>,
}

/// Occurrences that stand together in the merged order and share all tokens above a depth.
///
/// The greatest one is next. What comes of a group is less: it has fewer samples, is deeper, or
/// starts later. So a node that is the greatest group comes before all nodes that are still to be
/// found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    /// The number of samples in it.
    count: u64,
    /// The depth of its nodes: 1 for the token after the match.
    depth: Reverse<usize>,
    /// How many occurrences come before it. It orders the paths of one depth.
    start: Reverse<u64>,
    /// Its token at that depth where all of it shares one, which makes it a node. What may be several
    /// comes first.
    token: Reverse<Option<u32>>,
    /// The number of nodes before its parent.
    parent: i32,
    /// Where its ranges begin.
    ranges: usize,
}

impl Splitter {
    /// The paths of up to `length` tokens that follow a match, with their numbers of samples: count
    /// descending, then depth ascending, then in lexicographic order. O(log n) a shard for each
    /// path, and for each token that is met on the way.
    pub(crate) fn nodes<'a>(
        &'a mut self,
        datastore: &'a Datastore,
        found: &'a Match,
        stride: Stride,
        length: usize,
    ) -> Nodes<'a> {
        self.queue.clear();
        self.ranges.clear();
        self.ranges.extend_from_slice(found.ranges());
        if length > 0 && stride.num_samples() > 0 {
            self.queue.push(Group {
                count: stride.num_samples(),
                depth: Reverse(1),
                start: Reverse(0),
                token: Reverse(None),
                parent: -1,
                ranges: 0,
            });
        }
        Nodes {
            splitter: self,
            datastore,
            found,
            stride,
            length,
            num_nodes: 0,
        }
    }
}

/// What [`Splitter::nodes`] gives.
pub(crate) struct Nodes<'a> {
    splitter: &'a mut Splitter,
    datastore: &'a Datastore,
    found: &'a Match,
    stride: Stride,
    length: usize,
    num_nodes: i32,
}

impl Iterator for Nodes<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        while let Some(group) = self.splitter.queue.pop() {
            match group.token {
                Reverse(Some(token)) => return self.open(group, token),
                Reverse(None) => self.split(group),
            }
        }
        None
    }
}

impl Nodes<'_> {
    /// Gives a node and lets its children come.
    fn open(&mut self, group: Group, token: u32) -> Option<Node> {
        let place = self.num_nodes;
        self.num_nodes = place.checked_add(1)?;
        let Reverse(depth) = group.depth;
        if depth < self.length && token != self.datastore.separator() {
            self.splitter.queue.push(Group {
                depth: Reverse(depth + 1),
                token: Reverse(None),
                parent: place,
                ..group
            });
        }
        Some(Node {
            token,
            parent: group.parent,
            count: group.count,
        })
    }

    /// Splits a group into what has a smaller token than its middle sample, the same, a greater one.
    fn split(&mut self, group: Group) {
        let shards = self.datastore.shards();
        let matched = self.found.length.saturating_add(group.depth.0 - 1);
        let num_ranges = self.found.ranges().len();
        let ranges = &mut self.splitter.ranges;
        let (below, same) = (group.ranges, ranges.len());
        let above = same + num_ranges;
        ranges.resize(above + num_ranges, 0..0);

        let guess = self.stride.middle(group.start.0, group.count);
        let total = count(&ranges[below..below + num_ranges]);
        let guess = |ranks: &Range<usize>| {
            let offset = ranks.len() as u128 * u128::from(guess) / u128::from(total.max(1));
            ranks
                .start
                .saturating_add(usize::try_from(offset).unwrap_or(0))
        };
        let token = (0..num_ranges)
            .max_by_key(|shard| ranges[below + shard].len())
            .and_then(|shard| {
                shards
                    .get(shard)?
                    .token_after(guess(&ranges[below + shard]), matched)
            });
        for (index, shard) in shards.iter().enumerate().take(num_ranges) {
            let ranks = ranges[below + index].clone();
            let narrowed = shard.narrow(ranks.clone(), matched, token, guess(&ranks));
            ranges[below + index] = ranks.start..narrowed.start;
            ranges[above + index] = narrowed.end..ranks.end;
            ranges[same + index] = narrowed;
        }

        let is_node = token.is_some_and(|token| token < self.datastore.vocab_size());
        let mut start = group.start.0;
        for (ranges, token) in [(below, None), (same, token), (above, None)] {
            let end = start + count(&self.splitter.ranges[ranges..ranges + num_ranges]);
            let count = self.stride.num_before(end) - self.stride.num_before(start);
            if count > 0 && (ranges != same || is_node) {
                self.splitter.queue.push(Group {
                    count,
                    start: Reverse(start),
                    token: Reverse(token),
                    ranges,
                    ..group
                });
            }
            start = end;
        }
    }
}

fn count(ranges: &[Range<usize>]) -> u64 {
    ranges.iter().map(|ranks| ranks.len() as u64).sum()
}

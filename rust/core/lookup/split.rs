//! Which beginnings of a match's continuations are the most frequent, told from ranges alone?
//!
//! The occurrences of a path are one range of ranks in each shard, and one interval in the merged
//! order of all shards' occurrences. The interval's bounds say how many samples lie in it, and no
//! sample is read: the answer is the same however the corpus is cut into shards, and exact where
//! every occurrence is a sample.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::ops::Range;

use crate::base::even_sample::Stride;
use crate::lookup::continuations::Node;
use crate::lookup::matches::Match;
use crate::lookup::shard::Shard;

/// Splits the occurrences of a match by the tokens that follow, the most frequent first.
///
/// Its memory is kept between drafts.
#[derive(Debug, Default, Clone)]
pub(crate) struct Splitter {
    queue: BinaryHeap<Group>,
    /// The ranges of the groups, one a shard.
    ranges: Vec<Range<usize>>,
    /// The occurrences of a small group: next token, shard, rank.
    occurrences: Vec<(u32, usize, usize)>,
    /// Where a token may begin and where it may end, in one shard after the other.
    bounds: Vec<Range<usize>>,
    positions: Vec<usize>,
}

/// Up to so many occurrences are read one by one: reads that do not wait for each other take a tenth
/// of the time of those of a search.
const SMALL: u64 = 128;

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
    /// descending, then depth ascending, then in lexicographic order. O(k log n) for each path, and
    /// for each token that is met on the way, in k shards.
    pub(crate) fn nodes<'a>(
        &'a mut self,
        shards: &'a [Shard],
        (vocab_size, separator): (u32, u32),
        found: &Match,
        stride: Stride,
        length: usize,
    ) -> Nodes<'a> {
        self.queue.clear();
        self.ranges.clear();
        self.ranges
            .extend(found.ranges().iter().take(shards.len()).cloned());
        self.ranges.resize(shards.len(), 0..0);
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
            shards,
            vocab_size,
            separator,
            matched: found.length,
            stride,
            length,
            num_given: 0,
        }
    }
}

/// What [`Splitter::nodes`] gives.
pub(crate) struct Nodes<'a> {
    splitter: &'a mut Splitter,
    shards: &'a [Shard],
    vocab_size: u32,
    separator: u32,
    matched: usize,
    stride: Stride,
    length: usize,
    num_given: i32,
}

impl Iterator for Nodes<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        while let Some(group) = self.splitter.queue.pop() {
            match group.token {
                Reverse(Some(token)) => return self.give(group, token),
                Reverse(None) => self.split(group),
            }
        }
        None
    }
}

impl Nodes<'_> {
    /// Gives a node, and queues what follows it.
    fn give(&mut self, group: Group, token: u32) -> Option<Node> {
        let place = self.num_given;
        self.num_given = place.checked_add(1)?;
        let Reverse(depth) = group.depth;
        if depth < self.length && token != self.separator {
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

    /// Splits a group by its next tokens.
    fn split(&mut self, group: Group) {
        let (mut smallest, mut greatest) = (u32::MAX, 0);
        let ranges = self.shards.iter().zip(self.ranges(group.ranges));
        for (shard, ranks) in ranges.filter(|(_, ranks)| !ranks.is_empty()) {
            smallest = smallest.min(shard.token_after(ranks.start, self.shared(group)));
            greatest = greatest.max(shard.token_after(ranks.end - 1, self.shared(group)));
        }
        if smallest == greatest {
            let token = Reverse(Some(smallest));
            self.push(Group { token, ..group });
        } else if self.size(group.ranges) <= SMALL {
            self.split_at_all(group);
        } else {
            self.split_at_one(group);
        }
    }

    /// Splits a small group into the nodes of all its tokens.
    fn split_at_all(&mut self, group: Group) {
        let shared = self.shared(group);
        let mut occurrences = mem::take(&mut self.splitter.occurrences);
        occurrences.clear();
        for (index, (shard, ranks)) in self
            .shards
            .iter()
            .zip(self.ranges(group.ranges))
            .enumerate()
        {
            let tokens = ranks.clone().map(|rank| shard.token_after(rank, shared));
            occurrences.extend(
                tokens
                    .zip(ranks.clone())
                    .map(|(token, rank)| (token, index, rank)),
            );
        }
        occurrences.sort_by_key(|&(token, ..)| token);
        let Reverse(mut start) = group.start;
        for same in occurrences.chunk_by(|(a, ..), (b, ..)| a == b) {
            let ranges = self.add_ranges();
            for &(_, index, rank) in same {
                let ranks = &mut self.splitter.ranges[ranges + index];
                let start = if ranks.end == 0 { rank } else { ranks.start };
                *ranks = start..rank + 1;
            }
            self.push(Group {
                start: Reverse(start),
                token: Reverse(Some(same[0].0)),
                ranges,
                ..group
            });
            start += same.len() as u64;
        }
        self.splitter.occurrences = occurrences;
    }

    /// Splits a group into what has a smaller token than its middle sample, or an occurrence near it,
    /// what has the same, and what has a greater one.
    fn split_at_one(&mut self, group: Group) {
        let token = self.token_near_middle(group);
        self.find_bounds(group, token);
        let (below, same, above) = (group.ranges, self.add_ranges(), self.add_ranges());
        let Splitter { ranges, bounds, .. } = &mut *self.splitter;
        for (index, bounds) in bounds.chunks_exact(2).enumerate() {
            let Range { start, end } = ranges[below + index];
            let from = bounds[0].start;
            let to = bounds[1].start.max(from);
            ranges[below + index] = start..from;
            ranges[same + index] = from..to;
            ranges[above + index] = to..end;
        }
        // Damaged files may have no order, but a split of them must come to an end too.
        if self.size(same) == 0 {
            return;
        }
        let Reverse(mut start) = group.start;
        for (ranges, token) in [(below, None), (same, Some(token)), (above, None)] {
            self.push(Group {
                start: Reverse(start),
                token: Reverse(token),
                ranges,
                ..group
            });
            start += self.size(ranges);
        }
    }

    /// The next token of an occurrence that is about where the middle sample of a group is: at the
    /// same part of its largest range.
    fn token_near_middle(&self, group: Group) -> u32 {
        let ranges = self.shards.iter().zip(self.ranges(group.ranges));
        let largest = ranges.max_by_key(|(_, ranks)| ranks.len());
        largest.map_or(u32::MAX, |(shard, ranks)| {
            let middle = u128::from(self.stride.middle(group.start.0, group.count));
            let size = u128::from(self.size(group.ranges).max(1));
            let offset = usize::try_from(ranks.len() as u128 * middle / size);
            shard.token_after(ranks.start + offset.unwrap_or(0), self.shared(group))
        })
    }

    /// Finds where in each range of a group a next token begins and ends.
    ///
    /// All searches advance together: nearly every read misses the processor's caches, and those of
    /// one round are made at the same time.
    fn find_bounds(&mut self, group: Group, token: u32) {
        let shared = self.shared(group);
        let limits = [u64::from(token), u64::from(token) + 1];
        let Splitter {
            ranges,
            bounds,
            positions,
            ..
        } = &mut *self.splitter;
        bounds.clear();
        for (shard, ranks) in self.shards.iter().zip(&ranges[group.ranges..]) {
            bounds.extend(limits.map(|limit| shard.where_rises_to(ranks, shared, limit)));
        }
        while bounds.iter().any(|bound| bound.start < bound.end) {
            positions.clear();
            for (shard, bounds) in self.shards.iter().zip(bounds.chunks_exact(2)) {
                positions.extend(bounds.iter().map(|bound| shard.position(middle(bound))));
            }
            for (index, (bound, position)) in bounds.iter_mut().zip(positions.iter()).enumerate() {
                let next = self.shards[index / 2].token_at(position.saturating_add(shared));
                let middle = middle(bound);
                if u64::from(next) >= limits[index % 2] {
                    bound.end = middle;
                } else if middle < bound.end {
                    bound.start = middle + 1;
                }
            }
        }
    }

    /// How many tokens all occurrences of a group share, those of the match included.
    fn shared(&self, group: Group) -> usize {
        self.matched.saturating_add(group.depth.0 - 1)
    }

    fn ranges(&self, ranges: usize) -> &[Range<usize>] {
        &self.splitter.ranges[ranges..][..self.shards.len()]
    }

    fn size(&self, ranges: usize) -> u64 {
        self.ranges(ranges)
            .iter()
            .map(|ranks| ranks.len() as u64)
            .sum()
    }

    /// Makes room for the ranges of a group.
    fn add_ranges(&mut self) -> usize {
        let start = self.splitter.ranges.len();
        self.splitter.ranges.resize(start + self.shards.len(), 0..0);
        start
    }

    /// Queues a group, unless it has no sample or is where documents end without a token.
    fn push(&mut self, group: Group) {
        let Reverse(start) = group.start;
        let end = start + self.size(group.ranges);
        let count = self.stride.num_before(end) - self.stride.num_before(start);
        let Reverse(token) = group.token;
        if count > 0 && token.is_none_or(|token| token < self.vocab_size) {
            self.splitter.queue.push(Group { count, ..group });
        }
    }
}

fn middle(range: &Range<usize>) -> usize {
    range.start + range.len() / 2
}

//! What would a datastore say without one of its documents?

use std::iter;
use std::ops::Range;

use crate::datastore::{Datastore, Match, Samples};
use crate::stride::Stride;

/// A match that occurs oftener is read with the document: what of an even sample lies in it is little,
/// and to know would take reading all occurrences.
const MAX_CHECKED: u64 = 512;

/// A document of a datastore that is drafted for as if it were not there: else it would foretell
/// itself, as no text does that is yet to be written.
#[derive(Debug, Clone)]
pub(crate) struct Hidden {
    /// Where it lies in the corpus.
    pub(crate) positions: Range<u64>,
}

impl Hidden {
    /// How often the match occurs elsewhere, and the [samples](Datastore::samples) that a datastore
    /// without the document would give of it, as they lie in the order of suffixes; `None` where it
    /// occurs too often to be checked.
    pub(crate) fn samples_elsewhere(
        &self,
        datastore: &Datastore,
        found: &Match,
        length: usize,
        max_samples: usize,
    ) -> Option<(u64, Samples)> {
        if found.count() > MAX_CHECKED {
            return None;
        }
        let (mut tokens, mut rows) = (Vec::new(), Vec::new());
        let mut num_before = 0;
        for (shard, ranks) in datastore.shards().iter().zip(found.ranges()) {
            let positions: Vec<usize> = ranks.clone().map(|rank| shard.position(rank)).collect();
            shard.touch(&positions, found.length);
            for position in positions {
                if !self.positions.contains(&(num_before + position as u64)) {
                    let (start, position) = (tokens.len(), position.saturating_add(found.length));
                    rows.push(start..start + shard.continuation(position, length, &mut tokens));
                }
            }
            num_before += shard.num_tokens() as u64;
        }
        if !found.is_in_one_shard() {
            rows.sort_by(|a, b| suffix(&tokens, a).cmp(suffix(&tokens, b)));
        }
        let num_elsewhere = rows.len() as u64;
        let sampled = Stride::new(num_elsewhere, max_samples as u64).occurrences();
        let sampled = sampled.filter_map(|row| rows.get(usize::try_from(row).ok()?).cloned());
        let sampled = sampled.collect();
        Some((num_elsewhere, Samples::new(tokens, sampled)))
    }
}

/// A row as suffixes are ordered: where it ends before others, it goes on with a separator that is
/// above all tokens.
fn suffix<'a>(tokens: &'a [u32], row: &Range<usize>) -> impl Iterator<Item = u32> + 'a {
    let row = tokens[row.clone()].iter().copied();
    row.chain(iter::once(u32::MAX))
}

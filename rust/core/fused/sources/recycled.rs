//! What did the target model itself predict after these tokens before?

use crate::base::error::{Error, Result};
use crate::draft::token_tree::TokenTree;
use crate::fused::evidence::{Evidence, Kind, Matched, TableSource};

/// How many predictions are kept of each place.
pub(crate) const KEPT: usize = 8;

const NUM_SLOTS: usize = 4096;

/// How much less a prediction counts than the one before it.
const DECAY: f32 = 0.5;

/// The target model's own predictions at nodes that it verified, those of rejected branches
/// included, by the one and by the two tokens before them: the latest ones of each.
///
/// A table of fixed size: what shares a slot replaces each other.
#[derive(Debug, Default)]
pub(crate) struct Recycled {
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// The tokens before, plus one; 0 where there are none.
    key: (u64, u64),
    predictions: [u32; KEPT],
    num_predictions: usize,
}

impl Recycled {
    /// Keeps the `k` likeliest tokens after the context and after each node of a tree.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless there are `k` for each.
    pub(crate) fn add(
        &mut self,
        context: &[u32],
        tree: &TokenTree,
        predictions: &[u32],
        k: usize,
    ) -> Result<()> {
        let expected = (tree.len() + 1).saturating_mul(k);
        if predictions.len() != expected {
            let reason = format!(
                "must hold k = {k} tokens for the context and for each node: {expected}, not {}",
                predictions.len()
            );
            return Err(Error::invalid("predictions", reason));
        }
        if k == 0 {
            return Ok(());
        }
        self.slots.resize(NUM_SLOTS, Slot::default());
        let (last, before) = ends(context);
        for (row, predicted) in predictions.chunks_exact(k).enumerate() {
            let (last, before) = match row.checked_sub(1) {
                None => (last, before),
                Some(node) => {
                    let parent = usize::try_from(tree.parents()[node]);
                    let token = |node: usize| Some(tree.token_ids()[node]);
                    (token(node), parent.map_or(last, token))
                }
            };
            if let Some(last) = last {
                self.keep(key(None, last), predicted);
                if let Some(before) = before {
                    self.keep(key(Some(before), last), predicted);
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, key: (u64, u64), predicted: &[u32]) {
        let num_predictions = predicted.len().min(KEPT);
        let mut predictions = [0; KEPT];
        predictions[..num_predictions].copy_from_slice(&predicted[..num_predictions]);
        self.slots[slot(key)] = Slot {
            key,
            predictions,
            num_predictions,
        };
    }
}

impl TableSource for Recycled {
    /// One for the last two tokens and one for the last.
    fn add_experts(&self, tail: &[u32], evidence: &mut Evidence) {
        let (Some(last), before) = ends(tail) else {
            return;
        };
        let mut rank = 0;
        for (order, key) in [
            (2, before.map(|before| key(Some(before), last))),
            (1, Some(key(None, last))),
        ] {
            let found = key.and_then(|key| Some((key, self.slots.get(slot(key))?)));
            if let Some((key, slot)) = found
                && slot.key == key
            {
                let matched = Matched {
                    kind: Kind::Recycled,
                    order,
                    rank,
                    num_matches: 1.0,
                };
                let mut count = 1.0 / DECAY;
                let counts = slot.predictions[..slot.num_predictions]
                    .iter()
                    .map(|&token| {
                        count *= DECAY;
                        (token, count)
                    });
                rank += usize::from(evidence.add(matched, None, counts));
            }
        }
    }
}

fn ends(tokens: &[u32]) -> (Option<u32>, Option<u32>) {
    let mut tokens = tokens.iter().rev().copied();
    (tokens.next(), tokens.next())
}

fn key(before: Option<u32>, last: u32) -> (u64, u64) {
    (
        before.map_or(0, |before| u64::from(before) + 1),
        u64::from(last) + 1,
    )
}

fn slot((before, last): (u64, u64)) -> usize {
    let mixed = (before.wrapping_mul(0x9E37_79B9) ^ last).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(mixed >> 52).unwrap_or(0)
}

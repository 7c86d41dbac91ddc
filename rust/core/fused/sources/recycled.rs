//! Source of recycled predictions of the target model (Token Recycling, Luo et al., 2024).

use crate::draft::token_tree::{Source, TokenTree};
use crate::fused::arena::{DraftArena, Matched};
use crate::fused::source::{DraftSource, NodeView, SourceInputs};
use crate::weights::kind::{ExpertKind, MatchForm};

const KIND: ExpertKind = ExpertKind::of(Source::Recycled, MatchForm::Exact);

/// The number of predictions that are stored for each node.
pub(crate) const NUM_KEPT: usize = 8;

const NUM_SLOTS: usize = 4096;

/// The count of a prediction relative to the likelier one before it.
const DECAY: f32 = 0.5;

/// The target model's latest predictions at verified nodes, after each token and each pair of tokens,
/// including rejected branches. Keys that share a slot replace each other.
#[derive(Debug, Default, Clone)]
pub(crate) struct RecycledSource {
    slots: Vec<Slot>,
}

/// The last token and, for a pair, the one before it, each plus one; 0 stands for none.
type Key = (u64, u64);

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: Key,
    predictions: [u32; NUM_KEPT],
    num_predictions: usize,
}

impl DraftSource for RecycledSource {
    fn add_experts(
        &mut self,
        _inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    ) {
        let (Some(last), before) = ends(node.tail) else {
            return;
        };
        let mut rank = 0;
        for (order, key) in
            [(2, before.map(|before| key(Some(before), last))), (1, Some(key(None, last)))]
        {
            let found = key.and_then(|key| Some((key, self.slots.get(slot(key))?)));
            if let Some((key, slot)) = found
                && slot.key == key
            {
                let matched = Matched { kind: KIND, order, rank, num_matches: 1.0 };
                let counts = std::iter::successors(Some(1.0), |count| Some(count * DECAY));
                let tokens = slot.predictions[..slot.num_predictions].iter().copied();
                rank += usize::from(arena.add(matched, None, tokens.zip(counts)));
            }
        }
    }

    fn num_predictions(&self) -> usize {
        NUM_KEPT
    }

    fn observe_predictions(
        &mut self,
        context: &[u32],
        tree: &TokenTree,
        predictions: &[u32],
        k: usize,
    ) {
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
    }
}

impl RecycledSource {
    fn keep(&mut self, key: Key, predicted: &[u32]) {
        let num_predictions = predicted.len().min(NUM_KEPT);
        let mut predictions = [0; NUM_KEPT];
        predictions[..num_predictions].copy_from_slice(&predicted[..num_predictions]);
        self.slots[slot(key)] = Slot { key, predictions, num_predictions };
    }
}

/// Returns the last token and the one before it.
fn ends(tokens: &[u32]) -> (Option<u32>, Option<u32>) {
    let mut tokens = tokens.iter().rev().copied();
    (tokens.next(), tokens.next())
}

fn key(before: Option<u32>, last: u32) -> Key {
    (before.map_or(0, |before| u64::from(before) + 1), u64::from(last) + 1)
}

fn slot((before, last): Key) -> usize {
    let mixed = (before.wrapping_mul(0x9E37_79B9) ^ last).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(mixed >> 52).unwrap_or(0)
}

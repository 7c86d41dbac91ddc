//! Source of external proposals: a draft model, a grammar, known arguments of a tool.

use crate::draft::token_tree::Source;
use crate::fused::arena::{DraftArena, Matched};
use crate::fused::source::{DraftSource, NodeView, SourceInputs};
use crate::weights::kind::{ExpertKind, MatchForm};

const KIND: ExpertKind = ExpertKind::of(Source::Suggested, MatchForm::Exact);

/// The number of occurrences that a proposal counts as. Other experts know few occurrences, which would
/// outweigh a probability.
const NUM_OCCURRENCES: f32 = 64.0;

/// The source of external proposals. It is one expert, weighted like any other.
#[derive(Debug, Clone, Default)]
pub(crate) struct SuggestedSource {
    /// The proposal node that corresponds to each expanded node.
    nodes: Vec<Option<i32>>,
}

impl DraftSource for SuggestedSource {
    fn add_experts(
        &mut self,
        inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    ) {
        let Some(suggestion) = inputs.suggestion else {
            return;
        };
        let here = match (node.parent, node.path.last()) {
            (Some(parent), Some(&token)) => {
                self.nodes[parent].and_then(|parent| suggestion.child(parent, token))
            }
            _ => Some(suggestion.reached),
        };
        self.nodes.push(here);
        let Some(here) = here else { return };
        let probs = suggestion.tree.probs();
        let counts = suggestion
            .children(here)
            .map(|child| (suggestion.tree.token_ids()[child], NUM_OCCURRENCES * probs[child]));
        let top = suggestion.children(here).map(|child| probs[child]);
        let top = top.fold(0.0, f32::max);
        let matched = Matched {
            kind: KIND,
            order: 1,
            rank: 0,
            // Distinguishes certain proposals from others.
            num_matches: 1.0 / (1.0 - top).max(1e-4),
        };
        arena.add(matched, None, counts);
    }

    fn clear(&mut self) {
        self.nodes.clear();
    }
}

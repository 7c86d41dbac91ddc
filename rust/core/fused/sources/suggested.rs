//! What somebody else suggests: a draft model, a grammar, the known arguments of a tool.

use crate::draft::token_tree::Source;
use crate::fused::arena::{DraftArena, Matched};
use crate::fused::source::{DraftSource, NodeView, SourceInputs};
use crate::weights::kind::{ExpertKind, MatchForm};

const KIND: ExpertKind = ExpertKind::of(Source::Suggested, MatchForm::Exact);

/// A probability counts as what is known of so many occurrences: other experts know of a few, and a
/// few would say less of a token than its probability does.
const NUM_OCCURRENCES: f32 = 64.0;

/// The source of suggestions. It is one expert, and learns what it is worth as any other.
#[derive(Debug, Clone, Default)]
pub(crate) struct SuggestedSource {
    /// The node of the suggestion that each asked node is.
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
            // Tells certain suggestions from others.
            num_matches: 1.0 / (1.0 - top).max(1e-4),
        };
        arena.add(matched, None, counts);
    }

    fn clear(&mut self) {
        self.nodes.clear();
    }
}

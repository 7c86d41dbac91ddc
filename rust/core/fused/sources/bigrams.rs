//! Source of the target model's own predictions after a single token.

use crate::draft::token_tree::Source;
use crate::fused::arena::{DraftArena, Matched};
use crate::fused::source::{DraftSource, NodeView, SourceInputs};
use crate::weights::kind::{ExpertKind, MatchForm};

const KIND: ExpertKind = ExpertKind::of(Source::Bigram, MatchForm::Exact);

/// The number of tokens used of a row; less likely ones are rarely accepted.
const MAX_TOKENS: usize = 8;

#[derive(Debug, Clone, Copy)]
pub(crate) struct BigramSource;

impl DraftSource for BigramSource {
    fn add_experts(
        &mut self,
        inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    ) {
        let (Some(tables), Some(&last)) = (inputs.model_tables, node.tail.last()) else {
            return;
        };
        let matched = Matched { kind: KIND, order: 1, rank: 0, num_matches: 1.0 };
        let row = tables.after(last);
        let known = row.filter(|&(token, _)| token < inputs.vocab_size);
        arena.add(matched, Some(1.0), known.take(MAX_TOKENS));
    }
}

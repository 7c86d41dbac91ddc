//! The target model's own predictions after a single token.

use crate::draft::token_tree::Source;
use crate::fused::evidence::{Evidence, Matched};
use crate::fused::source::{DraftSource, Inputs, NodeView};
use crate::weights::kind::{ExpertKind, Form};

const KIND: ExpertKind = ExpertKind::of(Source::Bigram, Form::Plain);

/// How many tokens of a row are used: less likely ones hardly ever come.
const MAX_TOKENS: usize = 8;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bigrams;

impl DraftSource for Bigrams {
    fn add_experts(&mut self, inputs: &Inputs<'_>, node: &NodeView<'_>, evidence: &mut Evidence) {
        let (Some(tables), Some(&last)) = (inputs.model_tables, node.tail.last()) else {
            return;
        };
        let matched = Matched { kind: KIND, order: 1, rank: 0, num_matches: 1.0 };
        let row = tables.after(last);
        let known = row.filter(|&(token, _)| token < inputs.vocab_size);
        evidence.add(matched, Some(1.0), known.take(MAX_TOKENS));
    }
}

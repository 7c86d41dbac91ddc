//! Source of continuations after earlier occurrences of the end of a path in a token sequence.

use crate::draft::token_tree::Source;
use crate::fused::arena::DraftArena;
use crate::fused::effort::SearchLimits;
use crate::fused::source::{DraftSource, NodeView, SkipGrams, SourceInputs};
use crate::fused::sources::occurrences::{DECAY, NodeOccurrences, OccurrenceLimits, Occurrences};
use crate::memory::group_text::GroupText;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::weights::kind::{ExpertKind, MatchForm};

/// The context, earlier sequences of the tenant or group, or a predicted output.
#[derive(Debug, Clone)]
pub(crate) struct HistorySource {
    label: Source,
    kind: ExpertKind,
    skip_kind: ExpertKind,
    gapped_kind: ExpertKind,
    occurrences: Occurrences,
    /// The occurrences of each expanded node.
    nodes: Vec<NodeOccurrences>,
}

impl HistorySource {
    pub(crate) fn new(label: Source) -> Self {
        Self {
            label,
            kind: ExpertKind::of(label, MatchForm::Exact),
            skip_kind: ExpertKind::of(label, MatchForm::SkipGram),
            gapped_kind: ExpertKind::of(label, MatchForm::Gapped),
            occurrences: Occurrences::default(),
            nodes: Vec::new(),
        }
    }

    fn of<'a>(&self, inputs: &SourceInputs<'a>) -> Option<&'a IndexedTokens> {
        match self.label {
            Source::Memory => inputs.memory,
            Source::Group => inputs.group.map(GroupText::text),
            Source::PredictedOutput => inputs.predicted_output,
            _ => Some(inputs.context),
        }
    }
}

impl DraftSource for HistorySource {
    fn add_experts(
        &mut self,
        inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    ) {
        let Some(text) = self.of(inputs) else {
            self.nodes.push(NodeOccurrences::default());
            return;
        };
        let search = inputs.search;
        let parent = node.parent.map(|parent| &self.nodes[parent]);
        let limits = OccurrenceLimits::of(parent.map(|_| node.prob), text, search);
        let found = self.occurrences.find(text, parent, node.tail, limits);
        self.occurrences.add_experts(&found, self.kind, arena);
        if search.match_gapped {
            self.occurrences.add_gapped(&found, self.gapped_kind, arena);
        }
        self.nodes.push(found);
    }

    fn skip_gram_kind(&self, inputs: &SourceInputs<'_>) -> Option<(ExpertKind, f32)> {
        self.of(inputs).map(|_| (self.skip_kind, DECAY))
    }

    fn collect_skip_grams(
        &self,
        node: usize,
        token: u32,
        search: SearchLimits,
        skip_grams: &mut SkipGrams,
    ) {
        let (found, most) = (&self.nodes[node], search.max_skip_grams);
        self.occurrences.collect_skip_grams(found, token, most, skip_grams);
    }

    fn clear(&mut self) {
        self.occurrences.clear();
        self.nodes.clear();
    }

    fn match_length(&self) -> usize {
        self.nodes.first().map_or(0, |found| self.occurrences.longest(found))
    }
}

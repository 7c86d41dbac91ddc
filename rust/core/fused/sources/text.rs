//! What came next where a text has the end of a path.

use crate::draft::token_tree::Source;
use crate::fused::effort::Reading;
use crate::fused::evidence::Evidence;
use crate::fused::source::{DraftSource, Inputs, NodeView, Skipped};
use crate::fused::sources::places::{DECAY, Found, Places, Reach};
use crate::memory::group_text::GroupText;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::weights::kind::{ExpertKind, Form};

/// The request's own text, earlier ones of its tenant or group, or an expected output.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    label: Source,
    kind: ExpertKind,
    skip_kind: ExpertKind,
    edited_kind: ExpertKind,
    places: Places,
    /// The places of each node that was asked for.
    nodes: Vec<Found>,
}

impl Text {
    pub(crate) fn new(label: Source) -> Self {
        Self {
            label,
            kind: ExpertKind::of(label, Form::Plain),
            skip_kind: ExpertKind::of(label, Form::Skip),
            edited_kind: ExpertKind::of(label, Form::Edited),
            places: Places::default(),
            nodes: Vec::new(),
        }
    }

    fn of<'a>(&self, inputs: &Inputs<'a>) -> Option<&'a IndexedTokens> {
        match self.label {
            Source::Memory => inputs.memory,
            Source::Group => inputs.group.map(GroupText::text),
            Source::Predicted => inputs.expected,
            _ => Some(inputs.context),
        }
    }
}

impl DraftSource for Text {
    fn add_experts(&mut self, inputs: &Inputs<'_>, node: &NodeView<'_>, evidence: &mut Evidence) {
        let Some(text) = self.of(inputs) else {
            self.nodes.push(Found::default());
            return;
        };
        let reading = inputs.reading;
        let parent = node.parent.map(|parent| &self.nodes[parent]);
        let reach = Reach::of(parent.map(|_| node.prob), text, reading);
        let found = self.places.find(text, parent, node.tail, reach);
        self.places.add_experts(&found, self.kind, evidence);
        if reading.finds_edits {
            self.places.add_edited(&found, self.edited_kind, evidence);
        }
        self.nodes.push(found);
    }

    fn skip_grams(&self, inputs: &Inputs<'_>) -> Option<(ExpertKind, f32)> {
        self.of(inputs).map(|_| (self.skip_kind, DECAY))
    }

    fn skip(&self, node: usize, token: u32, reading: Reading, skipped: &mut Skipped) {
        let (found, most) = (&self.nodes[node], reading.skipped_places);
        self.places.skip(found, token, most, skipped);
    }

    fn clear(&mut self) {
        self.places.clear();
        self.nodes.clear();
    }

    fn match_length(&self) -> usize {
        self.nodes.first().map_or(0, |found| self.places.longest(found))
    }
}

//! What does the request repeat after the anchors of the last token?
//!
//! [`Anchors`](crate::fused::anchors) says how they are learned.

use crate::fused::evidence::Evidence;
use crate::fused::learned::Learned;
use crate::fused::source::{DraftSource, Inputs, NodeView};
use crate::memory::history::History;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo;

impl DraftSource for Echo {
    fn add_experts(&mut self, inputs: &Inputs<'_>, node: &NodeView<'_>, evidence: &mut Evidence) {
        let anchors = &inputs.weights.learned.anchors;
        anchors.add_experts(inputs.context, node.path, evidence);
    }

    fn learn(&self, learned: &mut Learned, context: &History, token: u32) {
        learned.anchors.learn(context, token);
    }
}

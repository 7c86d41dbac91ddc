//! What followed where all but the last token of a path came before, and another one in its place?
//!
//! A name or a number that changes ends every match, and what came after it elsewhere often follows
//! all the same. A node knows from its parent, for no search of its own: what its parent's matches
//! go on with after any other token than the node's.

use crate::fused::evidence::DECAY;
use crate::fused::evidence::{END, Evidence, Kind, Matched};

/// What followed in one source.
#[derive(Debug, Default, Clone)]
pub(crate) struct Skipped {
    /// The length of the longest match before the token that is skipped.
    pub(crate) order: usize,
    /// The tokens after that one, those that say most first.
    pub(crate) tokens: Vec<u32>,
}

/// What followed in each source, at one node.
#[derive(Debug, Default, Clone)]
pub(crate) struct Skips {
    pub(crate) datastore: Skipped,
    /// Of the request's own text, earlier texts, and the one that is expected.
    pub(crate) texts: [Skipped; 3],
}

impl Skips {
    pub(crate) fn clear(&mut self) {
        for skipped in self.texts.iter_mut().chain([&mut self.datastore]) {
            skipped.order = 0;
            skipped.tokens.clear();
        }
    }

    /// Adds an expert for each source that has anything to say.
    pub(crate) fn add_experts(&self, evidence: &mut Evidence) {
        const TEXTS: [Kind; 3] = [Kind::ContextSkip, Kind::MemorySkip, Kind::PredictedSkip];
        self.datastore
            .add_experts(Kind::DatastoreSkip, 1.0, evidence);
        for (skipped, kind) in self.texts.iter().zip(TEXTS) {
            skipped.add_experts(kind, DECAY, evidence);
        }
    }
}

impl Skipped {
    /// Adds what a match of `order` tokens goes on with, after the token that is skipped.
    pub(crate) fn add(&mut self, order: usize, token: u32) {
        if token != END {
            self.order = self.order.max(order);
            self.tokens.push(token);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of places is small")]
    fn add_experts(&self, kind: Kind, decay: f32, evidence: &mut Evidence) {
        if self.tokens.is_empty() {
            return;
        }
        let matched = Matched {
            kind,
            order: self.order,
            rank: 0,
            num_matches: self.tokens.len() as f32,
        };
        let counts = std::iter::successors(Some(1.0), |count| Some(count * decay));
        evidence.add(matched, None, self.tokens.iter().copied().zip(counts));
    }
}

//! Tokens of a request that are stored in the memory.

use std::ops::Range;
use std::sync::Arc;

use crate::fused::group::num_known;
use crate::memory::groups::GroupKey;
use crate::memory::store::Memory;
use crate::memory::tenant::Tenant;

/// A copy of new tokens, because the request may continue while they are stored.
pub(crate) struct FinishedSequence {
    pub(crate) memory: Arc<Memory>,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) tokens: Vec<u32>,
    /// The number of prompt tokens at the beginning of `tokens`; 0 if they continue earlier ones.
    pub(crate) prompt_length: usize,
    pub(crate) group: GroupKey,
    /// The ranges of tokens that drafts from earlier texts predicted.
    pub(crate) accepted: Vec<Range<usize>>,
}

impl FinishedSequence {
    /// The maximum number of already stored tokens that are repeated, so that matches lead into the new
    /// ones.
    pub(crate) const MAX_LEAD: usize = 16;

    pub(crate) fn store(self) {
        self.memory.note_accepted(&self.tenant, &self.tokens, &self.accepted);
        let prompt = &self.tokens[..self.prompt_length];
        let known = num_known(self.tenant.read().texts(), prompt);
        // The end of a known prompt leads to this answer too.
        let lead = if known == prompt.len() { Self::MAX_LEAD } else { 0 };
        let text = &self.tokens[known.saturating_sub(lead)..];
        self.memory.add(&self.tenant, text, self.group);
    }
}

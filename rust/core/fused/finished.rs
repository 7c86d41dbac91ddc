//! What of a request goes into the memory.

use std::sync::Arc;

use crate::fused::group::num_known;
use crate::memory::groups::GroupKey;
use crate::memory::store::Memory;
use crate::memory::tenant::Tenant;

/// A copy: it is filed while the request may go on.
pub(crate) struct FinishedSequence {
    pub(crate) memory: Arc<Memory>,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) tokens: Vec<u32>,
    /// Of these tokens; 0 where they go on from earlier ones.
    pub(crate) prompt_length: usize,
    pub(crate) group: GroupKey,
}

impl FinishedSequence {
    /// Of what the memory has already, at most this many of the last tokens are kept again.
    pub(crate) const MAX_LEAD: usize = 16;

    pub(crate) fn store(self) {
        let prompt = &self.tokens[..self.prompt_length];
        let known = num_known(self.tenant.read().texts(), prompt);
        // The end of a known prompt leads to this answer too.
        let lead = if known == prompt.len() { Self::MAX_LEAD } else { 0 };
        let text = &self.tokens[known.saturating_sub(lead)..];
        self.memory.add(&self.tenant, text, self.group);
    }
}

//! Counts of what came of the drafts.

use serde::Serialize;

use crate::draft::session::Session;
use crate::engine::requests::Request;

/// Counts of what came of all drafts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct EngineCounts {
    /// The drafts that the engine went on from.
    pub num_drafts: u64,
    pub num_draft_tokens: u64,
    pub num_accepted_tokens: u64,
    /// The tokens that were written after the first sync of each request.
    pub num_emitted_tokens: u64,
    /// How often a row went on from a session.
    pub num_row_steps: u64,
    /// How many sessions were begun.
    pub num_opened: u64,
    /// How often a session was found in another row than before, or came back.
    pub num_moved: u64,
    /// How often a row could not be served.
    pub num_refused: u64,
    /// Times that the memory could not be shared, or a new datastore could not be used.
    pub num_memory_failures: u64,
}

impl EngineCounts {
    /// Lets a request observe what is new, and says whether it could.
    pub(crate) fn observe(&mut self, request: &mut Request, news: &[u32]) -> bool {
        let draft = std::mem::take(&mut request.draft);
        let num_accepted = request.session.num_accepted(news).min(draft.len());
        request.previous_len = request.session.context().len();
        if !news.is_empty() && request.session.observe(news, Some(draft.len())).is_err() {
            return false;
        }
        self.num_row_steps += 1;
        self.num_emitted_tokens += news.len() as u64;
        self.num_drafts += u64::from(!draft.is_empty());
        self.num_draft_tokens += draft.len() as u64;
        self.num_accepted_tokens += num_accepted as u64;
        true
    }
}

//! Counters of an engine's drafter.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::draft::session::Session;
use crate::draft::token_tree::Source;
use crate::engine::requests::EngineRequest;

/// Counters of all steps so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct EngineCounts {
    /// Drafts that the engine verified.
    pub num_drafts: u64,
    pub num_draft_tokens: u64,
    pub num_accepted_tokens: u64,
    /// Tokens that were emitted after the first sync of each request.
    pub num_emitted_tokens: u64,
    /// Decode steps of all rows: syncs of a row that continued a request.
    pub num_row_steps: u64,
    /// Requests that began.
    pub num_opened: u64,
    /// Drafted tokens that the engine did not verify. The other counters do not include them.
    pub num_cut_tokens: u64,
    /// Requests that moved to another row or returned to the batch.
    pub num_moved: u64,
    /// Rows that could not be served, summed over all steps.
    pub num_refused: u64,
    /// Per-request options that could not be used.
    pub num_refused_options: u64,
    /// Failures to share the memory or to use a new datastore.
    pub num_memory_failures: u64,
    pub num_memory_bytes: u64,
    /// Time at which the memory was last shared, in seconds since 1970; 0 for never.
    pub memory_shared_at: f64,
    /// Seconds spent in syncs and drafts.
    pub draft_s: f64,
    /// Accepted tokens by the name of their source.
    pub num_accepted_by_source: BTreeMap<&'static str, u64>,
    /// Number of drafts by their length, then by their number of accepted tokens.
    pub acceptance_histogram: Vec<Vec<u64>>,
}

impl EngineCounts {
    /// Counts the outcome of a request's draft and lets its session observe the new tokens. Returns false if the
    /// session rejects them.
    pub(crate) fn observe(&mut self, request: &mut EngineRequest, news: &[u32]) -> bool {
        let draft = std::mem::take(&mut request.draft);
        let accepted = draft.follow(news);
        request.previous_len = request.session.context().len();
        let num_verified = (!request.is_chosen).then_some(draft.len());
        if !news.is_empty() && request.session.observe(news, num_verified).is_err() {
            return false;
        }
        self.num_row_steps += 1;
        self.num_emitted_tokens += news.len() as u64;
        self.num_drafts += u64::from(!draft.is_empty());
        self.num_draft_tokens += draft.len() as u64;
        self.num_accepted_tokens += accepted.len() as u64;
        for &node in &accepted {
            let source = Source::NAMES[draft.sources()[node] as usize];
            *self.num_accepted_by_source.entry(source).or_default() += 1;
        }
        if !draft.is_empty() {
            let rows = &mut self.acceptance_histogram;
            rows.resize(rows.len().max(draft.len() + 1), Vec::new());
            let row = &mut rows[draft.len()];
            row.resize(draft.len() + 1, 0);
            row[accepted.len()] += 1;
        }
        true
    }
}

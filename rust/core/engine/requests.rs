//! The requests of an engine, and the row of the batch that each is in.
//!
//! The engine's name identifies a request. Its tokens are those of its session: there is no second copy.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::budget::rule::RowBudget;
use crate::draft::token_tree::TokenTree;
use crate::fused::drafter::FusedSession;
use crate::fused::finished::FinishedSequence;

/// A row's context, or its last tokens, and the options of its request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    pub tokens: &'a [u32],
    /// Number of tokens of the row that come before these.
    pub start: usize,
    /// The engine's name of the request, which no other row has.
    pub name: &'a str,
    /// The request's tenant; empty where it is not known.
    pub tenant: &'a str,
    /// The name of its request group, such as samples of one prompt or turns of one task.
    pub group: Option<&'a str>,
    /// The predicted output; empty for none.
    pub predicted_output: &'a [u32],
    /// True if the engine changes the scores of tokens by what the request has written, or forbids some.
    pub is_penalized: bool,
    /// A message for each option of the request that could not be read.
    pub unreadable_options: &'a [String],
    /// Number of tokens of the last draft that the engine verified; `None` for all.
    pub num_verified: Option<usize>,
}

/// Number of last tokens that identify the text of a request that grew by one step: comparing whole
/// contexts in each step would cost O(tokens).
const TAIL: usize = 32;

#[derive(Debug)]
pub(crate) struct EngineRequest {
    pub(crate) session: FusedSession,
    name: Box<str>,
    tenant: Box<str>,
    /// Number of tokens of the row that come before the session's text.
    offset: usize,
    /// Length of the text before the last sync; 0 for a new request.
    pub(crate) previous_len: usize,
    /// Number of syncs since it was in the batch.
    num_absent_steps: usize,
    /// The part of its draft that the engine gets.
    pub(crate) draft: TokenTree,
    /// The draft that a caller chose of its candidates, until it becomes `draft`.
    pub(crate) chosen: Option<TokenTree>,
    /// True if `draft` was such a choice; its nodes are then not the first ones of the session's draft.
    pub(crate) is_chosen: bool,
    pub(crate) budget: RowBudget,
}

impl EngineRequest {
    pub(crate) fn new(session: FusedSession, context: &Context<'_>) -> Self {
        Self {
            session,
            name: context.name.into(),
            tenant: context.tenant.into(),
            offset: context.start,
            previous_len: 0,
            num_absent_steps: 0,
            draft: TokenTree::default(),
            chosen: None,
            is_chosen: false,
            budget: RowBudget::of(context.is_penalized),
        }
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        *self.name == *name
    }

    /// Drops the tokens of the draft that the engine did not verify, such as those that a grammar forbids. Returns
    /// their number.
    pub(crate) fn cut_draft(&mut self, num_verified: usize) -> usize {
        let num_cut = self.draft.len().saturating_sub(num_verified);
        if num_cut > 0 {
            self.draft.truncate(num_verified);
            self.budget.cut(num_verified);
        }
        num_cut
    }

    /// The context's tokens after the session's text; `None` where the text cannot be a prefix.
    pub(crate) fn new_tokens<'a>(&self, context: &Context<'a>) -> Option<&'a [u32]> {
        let (_, new) = self.split(context, self.session.context().len())?;
        Some(new)
    }

    /// The tokens of its final text that the session lacks; `None` where they do not continue it.
    pub(crate) fn last_new_tokens<'a>(&self, tokens: &'a [u32]) -> Option<&'a [u32]> {
        let context = Context { tokens, ..Context::default() };
        let num_new = self.new_tokens(&context)?.len();
        let is_prefix = self.has_prefix(&context, self.session.context(), usize::MAX);
        is_prefix.then(|| &tokens[tokens.len() - num_new..])
    }

    /// Returns whether the context continues the session's text.
    fn continues(&self, context: &Context<'_>) -> bool {
        let is_step = |new: &[u32]| (1..=self.draft.len() + 1).contains(&new.len());
        let most = if self.new_tokens(context).is_some_and(is_step) { TAIL } else { usize::MAX };
        *self.tenant == *context.tenant && self.has_prefix(context, self.session.context(), most)
    }

    /// Returns whether the context begins with a text, by the text's last `most` tokens.
    fn has_prefix(&self, context: &Context<'_>, text: &[u32], most: usize) -> bool {
        self.split(context, text.len()).is_some_and(|(known, _)| {
            let known = &known[known.len().saturating_sub(most)..];
            let text = &text[text.len() - known.len()..];
            // Requests of one template differ at their ends, so the last tokens are compared first.
            let tail = known.len().saturating_sub(TAIL);
            known[tail..] == text[tail..] && known[..tail] == text[..tail]
        })
    }

    /// The tokens of a context at the positions of the session's first `length`, and those after them.
    fn split<'a>(&self, context: &Context<'a>, length: usize) -> Option<(&'a [u32], &'a [u32])> {
        let end = self.offset.checked_add(length)?.checked_sub(context.start)?;
        let (known, new) = context.tokens.split_at_checked(end)?;
        Some((&known[self.offset.saturating_sub(context.start)..], new))
    }

    /// Returns whether the engine has rolled back tokens of the last sync.
    fn is_rolled_back(&self, context: &Context<'_>) -> bool {
        let before = &self.session.context()[..self.previous_len];
        *self.tenant == *context.tenant
            && self.previous_len > 0
            && self.has_prefix(context, before, usize::MAX)
    }
}

/// The requests in the batch by their rows, and the absent ones that may return.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) rows: Vec<Option<EngineRequest>>,
    /// The requests outside the batch, the one that has been absent longest first.
    absent: VecDeque<EngineRequest>,
    last_sync: Option<Instant>,
    /// Time between the last two syncs.
    step_time: Duration,
    /// True if the thread that shares the memory knows that the engine has been idle since the last sync.
    is_known_idle: bool,
}

impl Requests {
    /// A request that was absent for this number of syncs has ended. It is large because a preempted request
    /// may be absent for long.
    const MAX_ABSENT_STEPS: usize = 64;
    /// Without a sync for this many steps, within these limits, no request is in the batch any more.
    const IDLE_STEPS: u32 = 4;
    const MIN_IDLE: Duration = Duration::from_millis(50);
    const MAX_IDLE: Duration = Duration::from_secs(1);
    /// Maximum number of absent requests; the number of rows if that is larger.
    const MAX_ABSENT: usize = 64;

    /// Moves every request to the row with its name, where that continues its text. Otherwise the row
    /// has a new request, and the earlier one has ended; it is dropped if it was rolled back. Returns the
    /// requests that have ended, and how many moved or returned to the batch. O(rows), and O(tokens) for
    /// each row that did not grow by one step.
    pub(crate) fn assign_rows(
        &mut self,
        contexts: &[Option<Context<'_>>],
    ) -> (Vec<EngineRequest>, usize) {
        let now = Instant::now();
        self.step_time = self.last_sync.map_or(Self::MAX_IDLE, |last| now - last);
        (self.last_sync, self.is_known_idle) = (Some(now), false);
        let mut before = std::mem::take(&mut self.rows);
        before.resize_with(before.len().max(contexts.len()), || None);
        let stays = |(request, context): (&mut Option<EngineRequest>, &Option<Context<'_>>)| {
            let context = context.as_ref()?;
            request.take_if(|request| request.is_named(context.name) && request.continues(context))
        };
        let mut rows: Vec<_> = before.iter_mut().zip(contexts).map(stays).collect();
        let unassigned = rows.iter().zip(contexts).enumerate().rev();
        let unassigned = unassigned.filter(|(_, (request, _))| request.is_none());
        let wanted: HashMap<_, _> = unassigned
            .filter_map(|(row, (_, context))| Some((context.as_ref()?.name, row)))
            .collect();
        let (mut ended, mut num_moved) = (Vec::new(), 0);
        let mut assign = |request: EngineRequest| {
            let row = wanted.get(&*request.name).copied();
            let Some((row, context)) = row.and_then(|row| Some((row, contexts[row].as_ref()?)))
            else {
                return Some(request);
            };
            if rows[row].is_none() && request.continues(context) {
                rows[row] = Some(request);
                num_moved += 1;
            } else if !request.is_rolled_back(context) {
                ended.push(request);
            }
            None
        };
        let newly_absent: Vec<_> = before.into_iter().flatten().filter_map(&mut assign).collect();
        if !wanted.is_empty() {
            self.absent = std::mem::take(&mut self.absent).into_iter().filter_map(assign).collect();
        }
        self.rows = rows;
        ended.extend(self.retire_absent(newly_absent));
        (ended, num_moved)
    }

    /// Stores requests that left the batch and returns those that have been absent for too long.
    fn retire_absent(&mut self, newly_absent: Vec<EngineRequest>) -> Vec<EngineRequest> {
        for request in &mut self.absent {
            request.num_absent_steps += 1;
        }
        let newly_absent = newly_absent.into_iter();
        self.absent
            .extend(newly_absent.map(|request| EngineRequest { num_absent_steps: 0, ..request }));
        let most = Self::MAX_ABSENT.max(self.rows.len());
        let is_over = |(index, request): &(usize, &EngineRequest)| {
            index + most < self.absent.len() || request.num_absent_steps >= Self::MAX_ABSENT_STEPS
        };
        let num_over = self.absent.iter().enumerate().take_while(is_over).count();
        self.absent.drain(..num_over).collect()
    }

    fn is_idle(&self) -> bool {
        let longest = self.step_time.saturating_mul(Self::IDLE_STEPS);
        let longest = longest.clamp(Self::MIN_IDLE, Self::MAX_IDLE);
        self.last_sync.is_some_and(|last| last.elapsed() >= longest)
    }

    /// Returns whether the engine has become idle since the last call.
    pub(crate) fn becomes_idle(&mut self) -> bool {
        let is_new = !self.is_known_idle && self.is_idle();
        self.is_known_idle |= is_new;
        is_new
    }

    /// Returns the tokens that the memory lacks of a request outside the batch. If the request returns,
    /// the rest follows.
    pub(crate) fn take_finished(&mut self) -> Option<FinishedSequence> {
        let is_idle = self.is_idle();
        let idle = self.rows.iter_mut().flatten().filter(|_| is_idle);
        let mut requests = self.absent.iter_mut().chain(idle);
        requests.find_map(|request| request.session.take_finished())
    }

    /// Takes out the chosen requests, in the order of their rows.
    pub(crate) fn take(
        &mut self,
        is_chosen: impl Fn(&EngineRequest) -> bool,
    ) -> Vec<EngineRequest> {
        let rows = self.rows.iter_mut();
        let mut taken: Vec<_> =
            rows.filter_map(|request| request.take_if(|request| is_chosen(request))).collect();
        let absent = std::mem::take(&mut self.absent).into_iter();
        let (chosen, absent): (VecDeque<_>, _) = absent.partition(is_chosen);
        taken.extend(chosen);
        self.absent = absent;
        taken
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut EngineRequest> {
        self.rows.iter_mut().flatten().chain(&mut self.absent)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.iter().flatten().count() + self.absent.len()
    }
}

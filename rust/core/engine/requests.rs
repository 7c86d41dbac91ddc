//! The requests of an engine, and which row of the batch each is in.
//!
//! Rows are told apart by their texts, or by a name where the engine gives one. The texts are those of the
//! sessions: there is no second copy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::budget::rule::RowBudget;
use crate::draft::token_tree::TokenTree;
use crate::fused::drafter::FusedSession;
use crate::fused::finished::FinishedSequence;

/// A row's context, or its last tokens, and what its request wishes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    pub tokens: &'a [u32],
    /// How many tokens of the row come before these.
    pub start: usize,
    /// The request's name; `None` where its text tells which one it is.
    pub name: Option<&'a str>,
    /// The request's tenant; empty where it is not known.
    pub tenant: &'a str,
    /// The name of its group, where it has one: samples of one prompt, turns of one task.
    pub group: Option<&'a str>,
    /// The output that is expected, empty for none.
    pub predicted_output: &'a [u32],
}

/// So many last tokens of a text tell it from others.
const TAIL: usize = 32;

#[derive(Debug)]
pub(crate) struct EngineRequest {
    pub(crate) session: FusedSession,
    name: Option<Box<str>>,
    tenant: Box<str>,
    /// How many tokens of the row come before the session's text.
    offset: usize,
    /// How many tokens the text had before the last sync; 0 for a new request.
    pub(crate) previous_len: usize,
    /// How many syncs have passed since it was in the batch.
    num_absent_steps: usize,
    /// The part of its draft that goes to the engine.
    pub(crate) draft: TokenTree,
    pub(crate) budget: RowBudget,
}

impl EngineRequest {
    pub(crate) fn new(session: FusedSession, context: &Context<'_>) -> Self {
        Self {
            session,
            name: context.name.map(Box::from),
            tenant: context.tenant.into(),
            offset: context.start,
            previous_len: 0,
            num_absent_steps: 0,
            draft: TokenTree::default(),
            budget: RowBudget::default(),
        }
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }

    fn same_request(&self, context: &Context<'_>) -> bool {
        self.name.as_deref() == context.name && *self.tenant == *context.tenant
    }

    /// The tokens after the text; `None` where there is no place for the text before them.
    pub(crate) fn new_tokens<'a>(&self, context: &Context<'a>) -> Option<&'a [u32]> {
        let (_, news) = self.split(context, self.session.context())?;
        Some(news)
    }

    /// The tokens of its whole text after what it has.
    pub(crate) fn last_new_tokens<'a>(&self, tokens: &'a [u32]) -> Option<&'a [u32]> {
        let context = Context {
            tokens,
            name: self.name.as_deref(),
            tenant: &self.tenant,
            ..Context::default()
        };
        let num_new = self.is_prefix(&context).then(|| self.new_tokens(&context))??.len();
        tokens.get(tokens.len() - num_new..)
    }

    /// Whether the context goes on from the text. O(tokens).
    fn is_prefix(&self, context: &Context<'_>) -> bool {
        self.has_prefix(context, self.session.context(), usize::MAX)
    }

    /// Whether it is still the request of its row. Where it grew as one step lets it, its last tokens tell:
    /// another request that came into the row would have to be as much longer, and have them there.
    fn continues(&self, context: &Context<'_>) -> bool {
        let is_a_step = |news: &[u32]| (1..=self.draft.len() + 1).contains(&news.len());
        let most = if self.new_tokens(context).is_some_and(is_a_step) { TAIL } else { usize::MAX };
        self.has_prefix(context, self.session.context(), most)
    }

    /// Whether a context has_prefix with a text, by the text's last `most` tokens.
    fn has_prefix(&self, context: &Context<'_>, text: &[u32], most: usize) -> bool {
        let is_same = |(known, _): (&[u32], _)| {
            let known = &known[known.len().saturating_sub(most)..];
            let text = &text[text.len() - known.len()..];
            // Requests of one template differ at their ends.
            let tail = known.len().saturating_sub(TAIL);
            known[tail..] == text[tail..] && known[..tail] == text[..tail]
        };
        self.same_request(context) && self.split(context, text).is_some_and(is_same)
    }

    /// The tokens of a context that stand where a text does, and the tokens after them.
    fn split<'a>(&self, context: &Context<'a>, text: &[u32]) -> Option<(&'a [u32], &'a [u32])> {
        let length = self.offset.checked_add(text.len())?;
        let end = length.checked_sub(context.start)?;
        let (known, news) = context.tokens.split_at_checked(end)?;
        Some((&known[self.offset.saturating_sub(context.start)..], news))
    }

    /// Whether the engine has taken back some of what it gave in the last sync.
    fn is_taken_back(&self, context: &Context<'_>) -> bool {
        let is_renamed = context.name.is_some() && self.same_request(context);
        let before = &self.session.context()[..self.previous_len];
        is_renamed || self.previous_len > 0 && self.has_prefix(context, before, usize::MAX)
    }
}

/// The requests in the batch by their rows, and the requests that were in it lately.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) rows: Vec<Option<EngineRequest>>,
    /// The requests that are away, the one that has been away longest first.
    absent: VecDeque<EngineRequest>,
    last_sync: Option<Instant>,
}

impl Requests {
    /// A request has ended if it was absent for this number of syncs: a preempted one may be absent for
    /// long.
    const MAX_ABSENT_STEPS: usize = 64;
    /// Without a sync for this long, no request is in the batch any more.
    const IDLE: Duration = Duration::from_secs(1);
    /// At most this many absent requests are kept, or one for each row if that is more.
    const MAX_ABSENT: usize = 64;

    /// Moves every request to the row whose context goes on from its text, preferably its own row, and
    /// forgets those that were taken back. Gives the requests that have ended, and how many moved or came
    /// back.
    pub(crate) fn assign_rows(
        &mut self,
        contexts: &[Option<Context<'_>>],
    ) -> (Vec<EngineRequest>, usize) {
        self.last_sync = Some(Instant::now());
        let mut before = std::mem::take(&mut self.rows);
        self.rows.resize_with(contexts.len(), || None);
        for (row, (request, context)) in before.iter_mut().zip(contexts).enumerate() {
            let continues = |request: &mut EngineRequest| {
                context.is_some_and(|context| request.continues(&context))
            };
            self.rows[row] = request.take_if(continues);
        }
        let mut num_moved = 0;
        for (row, context) in contexts.iter().enumerate() {
            if let (None, Some(context)) = (&self.rows[row], context) {
                self.rows[row] = self.find(&mut before, context);
                num_moved += usize::from(self.rows[row].is_some());
            }
        }
        for (row, context) in contexts.iter().enumerate() {
            if let (None, Some(context)) = (&self.rows[row], context) {
                let is_taken_back = |request: &&mut Option<EngineRequest>| {
                    request.as_ref().is_some_and(|request| request.is_taken_back(context))
                };
                if let Some(request) = before.iter_mut().find(is_taken_back) {
                    *request = None;
                }
            }
        }
        (self.retire_absent(before), num_moved)
    }

    /// The request with the longest text that the context goes on from; of equals the first.
    fn find(
        &mut self,
        before: &mut [Option<EngineRequest>],
        context: &Context<'_>,
    ) -> Option<EngineRequest> {
        let is_prefix = |request: &EngineRequest| {
            let news = request.new_tokens(context).filter(|_| request.is_prefix(context))?;
            Some(news.len())
        };
        let present = before.iter().enumerate();
        let present =
            present.filter_map(|(index, request)| Some((is_prefix(request.as_ref()?)?, index)));
        let absent = self.absent.iter().zip(before.len()..);
        let absent = absent.filter_map(|(request, index)| Some((is_prefix(request)?, index)));
        let (_, index) = present.chain(absent).min()?;
        match before.get_mut(index) {
            Some(request) => request.take(),
            None => self.absent.remove(index - before.len()),
        }
    }

    /// Keeps requests that left the batch, and gives those that have been absent for too long.
    fn retire_absent(&mut self, before: Vec<Option<EngineRequest>>) -> Vec<EngineRequest> {
        for request in &mut self.absent {
            request.num_absent_steps += 1;
        }
        let newly_absent = before.into_iter().flatten();
        self.absent
            .extend(newly_absent.map(|request| EngineRequest { num_absent_steps: 0, ..request }));
        let most = Self::MAX_ABSENT.max(self.rows.len());
        let is_over = |(index, request): &(usize, &EngineRequest)| {
            index + most < self.absent.len() || request.num_absent_steps >= Self::MAX_ABSENT_STEPS
        };
        let num_over = self.absent.iter().enumerate().take_while(is_over).count();
        self.absent.drain(..num_over).collect()
    }

    /// What the memory lacks of one that is not in the batch. It may come back: then the rest follows.
    pub(crate) fn take_finished(&mut self) -> Option<FinishedSequence> {
        let is_idle = self.last_sync.is_some_and(|last| last.elapsed() >= Self::IDLE);
        let idle = self.rows.iter_mut().flatten().filter(|_| is_idle);
        let mut requests = self.absent.iter_mut().chain(idle);
        requests.find_map(|request| request.session.take_finished())
    }

    /// Takes out the chosen requests, in the order of their rows.
    pub(crate) fn take(
        &mut self,
        is_chosen: impl Fn(&EngineRequest) -> bool,
    ) -> Vec<EngineRequest> {
        let mut taken = Vec::new();
        for request in &mut self.rows {
            taken.extend(request.take_if(|request| is_chosen(request)));
        }
        for request in std::mem::take(&mut self.absent) {
            if is_chosen(&request) {
                taken.push(request);
            } else {
                self.absent.push_back(request);
            }
        }
        taken
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.iter().flatten().count() + self.absent.len()
    }
}

//! The drafter of an engine: drafts for its batches, step by step.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::budget::rule::{Costs, DraftStats};
use crate::budget::selection::{DraftSizes, Passes};
use crate::budget::step_times::StepTimes;
use crate::draft::session::{DraftLimits, Session, draft_batch};
use crate::draft::token_tree::TokenTree;
use crate::engine::config::{EngineConfig, EngineInfo, LoadCost, MemoryScope};
use crate::engine::counts::EngineCounts;
use crate::engine::opening::{make_drafters, open_memory};
use crate::engine::requests::{Context, EngineRequest, Requests};
use crate::fused::drafter::{FusedDrafter, FusedSession};
use crate::fused::finished::FinishedSequence;
use crate::fused::sources::recycled::NUM_KEPT;
use crate::memory::object_store::without_credentials;
use crate::memory::sharing::{Sharing, Unstored};
use crate::memory::store::Memory;
use specds_index::base::forks::NoFork;
use specds_index::{Datastore, Error, Result};

/// Drafts for the batches of a serving engine: [`sync`](Self::sync), then [`draft`](Self::draft).
#[derive(Debug)]
pub struct EngineDrafter {
    config: EngineConfig,
    vocab_size: u32,
    /// The drafter of requests that draft from earlier ones, if there is a memory.
    with_memory: Option<Arc<FusedDrafter>>,
    /// The drafter of isolated requests.
    without_memory: Arc<FusedDrafter>,
    engine: EngineInfo,
    memory: Option<Arc<Memory>>,
    sharing: Option<Sharing>,
    /// Shared with the thread of `sharing`, which takes finished texts from it.
    requests: Arc<Mutex<Requests>>,
    draft_stats: DraftStats,
    times: StepTimes,
    /// The numbers of drafted tokens of which a step has one for all rows; `None` if rows may differ.
    draft_sizes: Option<DraftSizes>,
    /// Number of tokens of the step that verifies the last drafts.
    num_step_tokens: usize,
    counts: EngineCounts,
    warnings: Vec<String>,
}

impl EngineDrafter {
    /// Opens the datastore and the memory. A snapshot that cannot be read is a [warning](Self::warnings): the
    /// memory is then empty at first.
    ///
    /// # Errors
    /// An invalid option, or a datastore that cannot be opened or has another tokenizer.
    pub fn open(config: EngineConfig, engine: &EngineInfo) -> Result<Self> {
        config.check()?;
        let mut config = config.resolved(engine);
        let datastore = config.datastore.as_deref().map(open_datastore).transpose()?.map(Arc::new);
        let size = datastore.as_ref().map(|store| store.vocab_size());
        let mut warnings = Vec::new();
        let memory = open_memory(&config, engine, datastore.as_deref(), &mut warnings)?;
        let drafters = make_drafters(&config, engine, datastore.as_ref(), memory.clone())?;
        let interval = config.sync_interval.map(Duration::from_secs_f64);
        let requests = Arc::<Mutex<Requests>>::default();
        let sharing = match (&memory, &config.snapshot, interval) {
            (Some(memory), Some(path), Some(interval)) => {
                let memory = Arc::clone(memory);
                let unstored = Some(OfEngine(Arc::clone(&requests)));
                Some(Sharing::start(memory, path, interval, datastore, unstored)?)
            }
            _ => None,
        };
        // The configuration is shown.
        config.snapshot = config.snapshot.as_deref().map(without_credentials);
        Ok(Self {
            vocab_size: engine.vocab_size.or(size).unwrap_or(u32::MAX),
            with_memory: drafters.0,
            without_memory: drafters.1,
            engine: engine.clone(),
            memory,
            sharing,
            config,
            requests,
            draft_stats: DraftStats::default(),
            times: engine.token_cost.map_or_else(StepTimes::default, StepTimes::with_token_cost),
            draft_sizes: None,
            num_step_tokens: 0,
            counts: EngineCounts::default(),
            warnings,
        })
    }

    /// Checks what [`open`](Self::open) would, without the snapshot, which only the process that drafts may use.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn check(config: EngineConfig, engine: &EngineInfo) -> Result<()> {
        config.check()?;
        let config = EngineConfig { snapshot: None, sync_interval: None, ..config };
        Self::open(config, engine).map(drop)
    }

    /// The configuration, with the defaults that depend on the engine.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Minimum probability of a path of a chain, unless the engine specifies one.
    pub fn min_prob(&self) -> f32 {
        self.config.min_prob.unwrap_or(0.0)
    }

    /// The most tokens of a predicted output that are used, the first ones: the whole batch waits while they are
    /// indexed.
    pub fn max_predicted_output(&self) -> usize {
        self.config.max_context.min(1 << 18)
    }

    /// Sets the numbers of tokens for which the engine has captured a graph, and the numbers of drafted tokens to
    /// one of which it pads all rows of a step, if it does. Measured costs follow these sizes.
    pub fn set_graph_sizes(&mut self, sizes: Vec<usize>, draft_sizes: Option<&[usize]>) {
        self.times.set_graph_sizes(sizes);
        self.draft_sizes = draft_sizes.map(DraftSizes::new);
    }

    /// Sets the seconds of passes of the model by their number of tokens, from which measured costs start.
    pub fn set_passes(&mut self, passes: &[(usize, f64)]) {
        self.times.set_passes(passes);
    }

    fn ignores_cost(&self) -> bool {
        matches!(self.config.step_cost, None | Some(LoadCost::Ignored))
    }

    pub fn datastore(&self) -> Option<&Datastore> {
        self.without_memory.datastore()
    }

    /// Messages about unusable parts of the configuration, the first per-request option that was refused,
    /// and the last failure to share the memory.
    pub fn warnings(&self) -> Vec<String> {
        let failure = self.sharing.as_ref().and_then(Sharing::failure);
        let failure = failure.map(|reason| format!("the memory was not shared: {reason}"));
        self.warnings.iter().cloned().chain(failure).collect()
    }

    pub fn counts(&self) -> EngineCounts {
        let mut counts = self.counts.clone();
        if let Some(sharing) = &self.sharing {
            counts.num_memory_failures += sharing.num_failures();
            counts.memory_shared_at = sharing.shared_at();
        }
        counts.num_memory_bytes = self.memory.as_ref().map_or(0, |it| it.num_bytes()) as u64;
        counts
    }

    pub fn num_rows(&self) -> usize {
        lock(&self.requests).rows.len()
    }

    /// The number of requests that are in the batch or may return to it.
    pub fn num_requests(&self) -> usize {
        lock(&self.requests).len()
    }

    /// Finds the session of each row or begins one, and observes its new tokens. `None` stands for a row
    /// that gets no draft in this step.
    ///
    /// A row continues the request of its name, if that was in the batch in one of the last 64 syncs and
    /// its text is a prefix of the row's context. Otherwise the name is that of a new request and the
    /// earlier one has ended. Where the context lacks only tokens of the last sync, or has other tokens for
    /// them, the earlier one was rolled back and is not stored. The text of a request that left the batch
    /// is stored in the memory, if there is one, when another begins or the memory is shared, at the latest
    /// when it ends. O(rows), and O(tokens) for each row that did not grow by one step.
    pub fn sync(&mut self, contexts: &[Option<Context<'_>>]) {
        let start = Instant::now();
        if let Some(datastore) = self.sharing.as_ref().and_then(Sharing::take_replaced) {
            self.swap_datastore(&datastore);
        }
        let is_usable =
            |context: &Context<'_>| (1..=self.config.max_context).contains(&context.tokens.len());
        let usable: Vec<_> = contexts.iter().map(|context| context.filter(is_usable)).collect();
        let requests = Arc::clone(&self.requests);
        let mut requests = lock(&requests);
        let (ended, num_moved) = requests.assign_rows(&usable);
        self.counts.num_moved += num_moved as u64;
        finish(ended);
        let mut rows = requests.rows.iter().zip(&usable);
        if rows.any(|(row, context)| row.is_none() && context.is_some()) {
            // A new request may repeat one that ended in the step before.
            store_finished(|| requests.take_finished());
        }
        for (row, context) in usable.iter().enumerate() {
            let is_served = match (context, &mut requests.rows[row]) {
                (None, _) => contexts[row].is_none(),
                (Some(context), Some(request)) => {
                    let num_cut = request.cut_draft(context.num_verified.unwrap_or(usize::MAX));
                    self.counts.num_cut_tokens += num_cut as u64;
                    self.num_step_tokens = self.num_step_tokens.saturating_sub(num_cut);
                    let news = request.new_tokens(context).unwrap_or_default();
                    self.counts.observe(request, news)
                }
                (Some(context), none) => {
                    *none = self.new_request(context);
                    self.counts.num_opened += u64::from(none.is_some());
                    none.is_some()
                }
            };
            self.counts.num_refused += u64::from(!is_served);
        }
        let rows = requests.rows.iter_mut().flatten();
        let outcomes = rows.map(|request| {
            let emitted = &request.session.context()[request.previous_len..];
            (&mut request.budget, emitted)
        });
        if self.ignores_cost() {
            outcomes.for_each(|(budget, emitted)| budget.learn(emitted));
        } else {
            self.draft_stats.learn(outcomes);
        }
        self.counts.draft_s += start.elapsed().as_secs_f64();
    }

    /// Uses this datastore for requests that begin from now on.
    fn swap_datastore(&mut self, datastore: &Arc<Datastore>) {
        let memory = self.memory.clone();
        match make_drafters(&self.config, &self.engine, Some(datastore), memory) {
            Ok(drafters) => (self.with_memory, self.without_memory) = drafters,
            Err(error) => {
                self.counts.num_memory_failures += 1;
                let warning = format!("the new datastore is not used: {error}");
                self.warnings.push(warning);
            }
        }
    }

    /// Begins a session for a request, and ignores unusable options one by one. `None` if its context is unusable.
    fn new_request(&mut self, context: &Context<'_>) -> Option<EngineRequest> {
        let mut refused = context.unreadable_options.to_vec();
        let mut refuse = |error: Error| refused.push(error.to_string());
        let shared = (self.config.memory_scope == MemoryScope::Shared).then_some("");
        let tenant = (!context.tenant.is_empty()).then_some(context.tenant).or(shared);
        let session = self.with_memory.as_ref().zip(tenant).and_then(|(drafter, tenant)| {
            FusedSession::new(Arc::clone(drafter), tenant).map_err(&mut refuse).ok()
        });
        let isolated = || FusedSession::isolated(Arc::clone(&self.without_memory));
        let mut session = session.unwrap_or_else(isolated);
        if let Some(group) = context.group {
            session.set_group(group).unwrap_or_else(&mut refuse);
        }
        if !context.predicted_output.is_empty() {
            let length = context.predicted_output.len().min(self.max_predicted_output());
            let predicted = &context.predicted_output[..length];
            session.set_predicted_output(predicted).unwrap_or_else(&mut refuse);
        }
        if let (0, Some(first)) = (self.counts.num_refused_options, refused.first()) {
            self.warnings.push(format!(
                "a per-request option was ignored, and later ones are only counted: {first}"
            ));
        }
        self.counts.num_refused_options += refused.len() as u64;
        session.observe(context.tokens, None).ok()?;
        Some(EngineRequest::new(session, context))
    }

    /// Passes an external proposal for each row of the last sync, as [`Session::suggest`] does: the next draft is
    /// one tree of it and all other sources. Nodes outside the vocabulary and rows without a session are skipped.
    pub fn suggest(&mut self, suggestions: impl IntoIterator<Item = TokenTree>) {
        let mut requests = lock(&self.requests);
        for (request, suggestion) in requests.rows.iter_mut().zip(suggestions) {
            if let Some(request) = request {
                let _ = request.session.suggest(suggestion.known(self.vocab_size));
            }
        }
    }

    /// Drafts a tree for a row of the last sync, whatever a step costs, of which the caller chooses a part with
    /// [`choose`](Self::choose). It is empty for a row that has no session or backs off.
    pub fn candidates(
        &mut self,
        row: usize,
        max_nodes: usize,
        suggestion: Option<TokenTree>,
    ) -> TokenTree {
        let start = Instant::now();
        let mut requests = lock(&self.requests);
        let request = requests.rows.get_mut(row).and_then(Option::as_mut);
        let Some(request) = request.filter(|request| request.budget.drafts()) else {
            return TokenTree::default();
        };
        if let Some(suggestion) = suggestion {
            let _ = request.session.suggest(suggestion.known(self.vocab_size));
        }
        request.session.set_step_time(self.times.usual());
        let tree = request.session.draft(DraftLimits::nodes(max_nodes)).unwrap_or_default();
        self.counts.draft_s += start.elapsed().as_secs_f64();
        tree.known(self.vocab_size)
    }

    /// Sets the draft of a row, a part of its [`candidates`](Self::candidates), which the next draft of the batch
    /// cuts to its limits and size.
    pub fn choose(&mut self, row: usize, tree: TokenTree) {
        if let Some(Some(request)) = lock(&self.requests).rows.get_mut(row) {
            request.chosen = Some(tree);
        }
    }

    /// Drafts for each row of the last sync within its limits. If the cost of a step is known, drafts are cut to
    /// the size with the best expected throughput, and rows whose drafts do not improve it back off. A row without a
    /// session has an empty draft.
    pub fn draft(&mut self, limits: &[DraftLimits]) -> Drafts<'_> {
        let start = Instant::now();
        let mut requests = lock(&self.requests);
        let num_rows = requests.rows.len();
        let least_prob = self.least_prob(&requests);
        let step_time = self.times.usual();
        let mut batch = Vec::with_capacity(num_rows);
        let mut budgets = Vec::with_capacity(num_rows);
        for (request, &limits) in requests.rows.iter_mut().zip(limits) {
            let Some(request) = request else { continue };
            request.draft = TokenTree::default();
            let chosen = request.chosen.take();
            request.is_chosen = chosen.is_some();
            if !request.budget.drafts() {
                request.budget.pause();
                continue;
            }
            request.session.set_step_time(step_time);
            let min_prob = limits.min_prob.max(least_prob);
            let limits = DraftLimits { min_prob, ..limits };
            let chosen = chosen.map(|tree| limits.cut(tree));
            if chosen.is_none() {
                batch.push((&mut request.session, limits));
            }
            budgets.push((&mut request.budget, (&mut request.draft, chosen)));
        }
        let trees = draft_batch(&mut batch, Some(self.config.num_threads)).unwrap_or_default();
        let mut trees = trees.into_iter().map(|tree| tree.known(self.vocab_size));
        let (mut rows, drafts): (Vec<_>, Vec<_>) = budgets.into_iter().unzip();
        let (drafts, chosen): (Vec<_>, Vec<_>) = drafts.into_iter().unzip();
        let chosen = chosen.into_iter();
        let mut trees: Vec<_> =
            chosen.map(|tree| tree.or_else(|| trees.next()).unwrap_or_default()).collect();
        let costs = match &self.config.step_cost {
            None | Some(LoadCost::Ignored) => None,
            Some(LoadCost::Measured) => Some(Costs::Measured(&mut self.times)),
            Some(LoadCost::Given(cost)) => Some(Costs::Known(cost)),
        };
        let drafted: Vec<_> = trees.iter().collect();
        let sizes = costs.map(|costs| {
            let draft_s = start.elapsed().as_secs_f64();
            let passes = self.draft_sizes.map_or(Passes::Packed, Passes::Uniform);
            self.draft_stats.choose(&mut rows, &drafted, num_rows, costs, passes, draft_s)
        });
        if sizes.is_none() {
            for (row, tree) in rows.iter_mut().zip(&mut trees) {
                let expected = row.expected(tree);
                tree.set_probs(&expected);
            }
        }
        for (row, (draft, mut tree)) in drafts.into_iter().zip(trees).enumerate() {
            tree.truncate(sizes.as_ref().map_or(usize::MAX, |sizes| sizes[row]));
            *draft = tree;
        }
        let drafts = Drafts(requests);
        let sizes = || drafts.trees().into_iter().map(TokenTree::len);
        self.num_step_tokens = num_rows
            + match self.draft_sizes {
                Some(possible) => num_rows * possible.padded(sizes().max().unwrap_or(0)),
                None => sizes().sum::<usize>(),
            };
        self.counts.draft_s += start.elapsed().as_secs_f64();
        drafts
    }

    /// Minimum probability at which a node could improve throughput; 0 if costs are ignored or not known.
    fn least_prob(&self, requests: &Requests) -> f32 {
        let num_rows = requests.rows.len();
        let least_gain = match &self.config.step_cost {
            None | Some(LoadCost::Ignored) => return 0.0,
            Some(LoadCost::Measured) => self.times.least_gain(num_rows),
            Some(LoadCost::Given(cost)) => cost.least_gain(num_rows),
        };
        let rows = requests.rows.iter().flatten().map(|row| &row.budget);
        #[expect(clippy::cast_possible_truncation, reason = "a probability")]
        let min_prob = self.draft_stats.min_prob(rows, least_gain) as f32;
        min_prob
    }

    /// Returns the last token of each row; 0 for a row without a session.
    pub fn last_tokens(&self) -> Vec<u32> {
        let last = |request: &EngineRequest| request.session.context().last().copied();
        let requests = lock(&self.requests);
        let rows = requests.rows.iter();
        rows.map(|request| request.as_ref().and_then(last).unwrap_or(0)).collect()
    }

    /// Takes the seconds of the step that verified the last drafts.
    pub fn observe_step_time(&mut self, seconds: f64) {
        self.times.add(self.num_step_tokens, seconds);
    }

    /// Returns to the initial weights and reliabilities, because another model accepts other tokens. Texts in the
    /// memory and measured costs stay.
    pub fn reset_acceptance(&mut self) {
        for drafter in self.with_memory.iter().chain([&self.without_memory]) {
            drafter.reset_weights();
        }
        self.draft_stats.reset_reliability();
        for request in lock(&self.requests).all_mut() {
            request.session.reset_isolated_weights();
            request.budget.reset();
        }
    }

    /// Number of the target model's likeliest tokens at each node that are used; 0 for none.
    pub fn num_predictions(&self) -> usize {
        if self.config.recycle_predictions { NUM_KEPT } else { 0 }
    }

    /// Takes the target model's `k` likeliest tokens at each of `num_nodes` nodes of each row, the root
    /// first. Rows with fewer nodes than their draft are ignored.
    pub fn observe_predictions(&mut self, predictions: &[u32], num_nodes: usize, k: usize) {
        let rows = predictions.chunks_exact((num_nodes * k).max(1));
        let mut requests = lock(&self.requests);
        for (request, predictions) in requests.rows.iter_mut().zip(rows) {
            if let Some(request) = request
                && let Some(predictions) = predictions.get(..(request.draft.len() + 1) * k)
            {
                let draft = &request.draft;
                let _ = request.session.observe_predictions(draft, predictions, k);
            }
        }
    }

    /// Ends the requests of these names; their texts go into the memory.
    pub fn end(&mut self, names: &[&str]) {
        let is_named = |request: &EngineRequest| names.iter().any(|name| request.is_named(name));
        finish(lock(&self.requests).take(is_named));
    }

    /// Ends the request of this name with its whole text, which is ignored unless it continues the known context.
    pub fn end_with(&mut self, name: &str, tokens: &[u32]) {
        let mut ended = lock(&self.requests).take(|request| request.is_named(name));
        for request in &mut ended {
            if let Some(news @ [_, ..]) = request.last_new_tokens(tokens) {
                self.counts.observe(request, news);
            }
        }
        finish(ended);
    }

    /// Ends all requests; their texts go into the memory.
    pub fn end_all(&mut self) {
        finish(lock(&self.requests).take(|_| true));
    }

    /// Ends all requests and shares the memory a last time, as dropping does. If that fails,
    /// [`warnings`](Self::warnings) has the error. The drafter can still be used, but no longer shares its memory.
    pub fn close(&mut self) {
        self.end_all();
        if let Some(sharing) = &mut self.sharing {
            sharing.end();
        }
    }
}

impl Drop for EngineDrafter {
    fn drop(&mut self) {
        // After a panic, requests may be inconsistent.
        if !std::thread::panicking() {
            self.close();
        }
    }
}

/// The drafts of all rows, which stay locked while this exists.
pub struct Drafts<'a>(MutexGuard<'a, Requests>);

impl Drafts<'_> {
    /// Returns the draft of each row.
    pub fn trees(&self) -> Vec<&TokenTree> {
        static NOTHING: LazyLock<TokenTree> = LazyLock::new(TokenTree::default);
        let rows = self.0.rows.iter();
        rows.map(|row| row.as_ref().map_or(&*NOTHING, |request| &request.draft)).collect()
    }
}

/// The requests of an engine, for the thread that shares its memory.
struct OfEngine(Arc<Mutex<Requests>>);

impl Unstored for OfEngine {
    fn store(&mut self) {
        store_finished(|| lock(&self.0).take_finished());
    }

    fn is_due(&mut self) -> bool {
        let _held = NoFork::begin();
        lock(&self.0).becomes_idle()
    }
}

fn lock(requests: &Mutex<Requests>) -> MutexGuard<'_, Requests> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores finished texts one by one. The requests are locked only while the next one is taken, because storing
/// may wait for other writers.
fn store_finished(mut next: impl FnMut() -> Option<FinishedSequence>) {
    while let Some(text) = next() {
        text.store();
    }
}

/// Opens a datastore; if there is nothing at this path, the error names the remedy.
fn open_datastore(path: &Path) -> Result<Datastore> {
    Datastore::open(path).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == ErrorKind::NotFound && !path.exists() => {
            let reason = "no datastore: build one there, or correct `datastore`";
            Error::io(path)(io::Error::new(ErrorKind::NotFound, reason))
        }
        error => error,
    })
}

fn finish(ended: Vec<EngineRequest>) {
    for mut request in ended {
        request.session.finish();
    }
}

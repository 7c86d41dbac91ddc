//! The fused drafter and its sessions.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::draft::model_tables::ModelTables;
use crate::draft::session::{DraftLimits, Session};
use crate::draft::token_tree::{Source, TokenTree};
use crate::fused::effort::{Effort, SearchLimits};
use crate::fused::finished::FinishedSequence;
use crate::fused::group::RequestGroup;
use crate::fused::grow::{Accepted, TreeBuilder};
use crate::fused::source::SourceInputs;
use crate::fused::suggestion::Suggestion;
use crate::memory::groups::GroupKey;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::memory::store::{Memory, MemoryOptions};
use crate::memory::tenant::Tenant;
use crate::memory::token_counts::TokenCounts;
use crate::weights::adaptation::{TenantAdaptation, TenantWeights};
use crate::weights::initial::Weights;
use specds_index::base::checks::check_tokens;
use specds_index::{Datastore, Error, MAX_VOCAB_SIZE, Result};

/// Options of [`FusedDrafter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FusedConfig {
    /// Use the tokens of the request itself as a source.
    pub context: bool,
    /// Use the target model's predictions at verified nodes as a source. Reporting them costs the caller
    /// time.
    pub recycled: bool,
    /// Adapt the tenant's weights to accepted and rejected tokens.
    pub learns: bool,
    /// The search effort of a draft.
    pub effort: Effort,
}

impl Default for FusedConfig {
    fn default() -> Self {
        Self { context: true, recycled: true, learns: true, effort: Effort::default() }
    }
}

/// Sources and initial weights shared by the sessions of all tenants.
///
/// The adaptation of a tenant is stored in the memory: drafts read it and [`observe`](Session::observe)
/// updates it. Drafts of a tenant therefore depend on the order of its calls, but not on threads or on
/// other tenants.
#[derive(Debug)]
pub struct FusedDrafter {
    datastore: Option<Arc<Datastore>>,
    /// The memory of the caller, or one that stores only tenant adaptations.
    memory: Arc<Memory>,
    /// Set if the caller passed a memory, so that it is a source.
    has_texts: bool,
    model_tables: Option<Arc<ModelTables>>,
    config: FusedConfig,
    weights: Weights,
    accepted: [AtomicU64; Source::NAMES.len()],
}

impl FusedDrafter {
    /// Creates a drafter; without `memory`, it has one of its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the memory has another vocabulary than the datastore.
    pub fn new(
        datastore: Option<Arc<Datastore>>,
        memory: Option<Arc<Memory>>,
        config: FusedConfig,
    ) -> Result<Self> {
        if let (Some(datastore), Some(memory)) = (&datastore, &memory) {
            let (expected, found) = (datastore.vocab_size(), memory.options().vocab_size);
            if expected != found {
                return Err(other_vocabulary("memory", expected, found));
            }
        }
        let has_texts = memory.is_some();
        let memory = match memory {
            Some(memory) => memory,
            None => Arc::new(Memory::new(MemoryOptions::new(MAX_VOCAB_SIZE))?),
        };
        Ok(Self {
            datastore,
            memory,
            has_texts,
            model_tables: None,
            config,
            weights: Weights::default(),
            accepted: Default::default(),
        })
    }

    /// Adds the target model's predictions after a single token as a source. A model may lack about 1 %
    /// of its tokenizer's vocabulary: Gemma 3 1B has no image token.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tables lack more of the vocabulary.
    pub fn with_model_tables(mut self, tables: Arc<ModelTables>) -> Result<Self> {
        let found = tables.vocab_size();
        let is_other = |expected: &u32| found < expected - expected / 100;
        if let Some(expected) = self.vocab_size().filter(is_other) {
            return Err(other_vocabulary("model_tables", expected, found));
        }
        self.model_tables = Some(tables);
        Ok(self)
    }

    /// Replaces the initial weights of the crate.
    #[must_use]
    pub fn with_weights(self, weights: Weights) -> Self {
        Self { weights, ..self }
    }

    /// Returns all tenants to the initial weights; their texts stay.
    pub(crate) fn reset_weights(&self) {
        self.memory.reset_weights();
    }

    /// Returns the serialized adaptation of a tenant, or no bytes if it has none.
    pub fn adaptation(&self, tenant: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(tenant) = self.memory.find(tenant)
            && let Some(adaptation) = tenant.read().adaptation()
        {
            adaptation.put(&mut bytes);
        }
        bytes
    }

    /// Returns the number of accepted tokens of each source.
    pub fn accepted(&self) -> [u64; Source::NAMES.len()] {
        std::array::from_fn(|source| self.accepted[source].load(Ordering::Relaxed))
    }

    pub(crate) fn datastore(&self) -> Option<&Datastore> {
        self.datastore.as_deref()
    }

    /// Returns the vocabulary size of the datastore or the memory, or `None` without either.
    pub fn vocab_size(&self) -> Option<u32> {
        let datastore = self.datastore.as_ref().map(|datastore| datastore.vocab_size());
        let memory = self.has_texts.then(|| self.memory.options().vocab_size);
        datastore.or(memory)
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, self.vocab_size().unwrap_or(IndexedTokens::BOUNDARY))
    }

    fn uses(&self, source: Source) -> bool {
        match source {
            Source::Datastore => self.datastore.is_some(),
            Source::Context => self.config.context,
            Source::Memory | Source::Group => self.has_texts,
            Source::Recycled => self.config.recycled,
            Source::Bigram => self.model_tables.is_some(),
            _ => true,
        }
    }
}

fn other_vocabulary(name: &'static str, expected: u32, found: u32) -> Error {
    let reason = format!("must have the vocabulary of the other sources: {expected}, not {found}");
    Error::invalid(name, reason)
}

/// A request that drafts from all sources.
#[derive(Debug, Clone)]
pub struct FusedSession {
    drafter: Arc<FusedDrafter>,
    tenant: Arc<Tenant>,
    /// True if no memory has its tenant.
    is_isolated: bool,
    context: IndexedTokens,
    prompt_length: Option<usize>,
    /// The number of context tokens that the memory has received.
    num_given: usize,
    /// The ranges of later context tokens that drafts from the memory predicted.
    accepted: Vec<Range<usize>>,
    group: RequestGroup,
    predicted_output: Option<IndexedTokens>,
    /// The external proposal for the next tokens.
    suggestion: Option<Suggestion>,
    /// The number of uses of each recent token.
    counts: TokenCounts,
    search: SearchLimits,
    builder: TreeBuilder,
}

impl FusedSession {
    /// The number of last prompt tokens that are counted as used. The model reuses earlier ones less.
    const MAX_COUNTED: usize = 400;

    /// Creates the session of a request of `tenant`.
    ///
    /// # Errors
    /// The error of [`Memory::tenant`].
    pub fn new(drafter: Arc<FusedDrafter>, tenant: &str) -> Result<Self> {
        let tenant = drafter.memory.tenant(tenant)?;
        Ok(Self::of_tenant(drafter, tenant))
    }

    /// Creates a session that depends on no other request, and on which no other request depends: its adaptation
    /// starts from the initial weights and ends with it.
    pub fn isolated(drafter: Arc<FusedDrafter>) -> Self {
        let session = Self::of_tenant(drafter, Arc::new(Tenant::new("")));
        Self { is_isolated: true, ..session }
    }

    fn of_tenant(drafter: Arc<FusedDrafter>, tenant: Arc<Tenant>) -> Self {
        Self {
            builder: TreeBuilder::new(|source| drafter.uses(source)),
            search: drafter.config.effort.search_limits(),
            tenant,
            is_isolated: false,
            drafter,
            context: IndexedTokens::default(),
            prompt_length: None,
            num_given: 0,
            accepted: Vec::new(),
            group: RequestGroup::default(),
            predicted_output: None,
            suggestion: None,
            counts: TokenCounts::default(),
        }
    }

    /// Assigns the request to a group before its prompt is observed: samples of one prompt, turns of one
    /// task, edits of one file. The default is the group of the shortest earlier prompt of at least 16
    /// tokens that is a prefix of this prompt.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is empty or longer than [`Memory::MAX_NAME`].
    pub fn set_group(&mut self, group: &str) -> Result<()> {
        let (most, length) = (Memory::MAX_NAME, group.len());
        if !(1..=most).contains(&length) {
            let reason = format!("must have 1 to {most} bytes, not {length}");
            return Err(Error::invalid("group", reason));
        }
        self.group.key = Some(GroupKey::named(group));
        Ok(())
    }

    /// Sets a predicted output, such as a text to edit. The path is matched in it as in the context.
    /// O(tokens).
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`] if a token is not in the vocabulary.
    pub fn set_predicted_output(&mut self, tokens: &[u32]) -> Result<()> {
        self.drafter.check_tokens(tokens)?;
        self.predicted_output.get_or_insert_default().extend(tokens);
        self.builder.clear();
        Ok(())
    }

    /// Returns an isolated session to the initial weights.
    pub(crate) fn reset_isolated_weights(&self) {
        if self.is_isolated {
            self.tenant.reset_weights();
        }
    }

    /// Returns the observed tokens, at most [`IndexedTokens::MAX_LENGTH`].
    pub fn context(&self) -> &[u32] {
        self.context.tokens()
    }

    /// Returns the tokens that the memory has not received yet.
    pub(crate) fn take_finished(&mut self) -> Option<FinishedSequence> {
        let tokens = self.context.tokens();
        let before = std::mem::replace(&mut self.num_given, tokens.len());
        let is_new = self.drafter.has_texts && !self.is_isolated && before < tokens.len();
        let accepted = std::mem::take(&mut self.accepted);
        // The preceding tokens let matches cross the boundary.
        let start = before.saturating_sub(FinishedSequence::MAX_LEAD);
        is_new.then(|| FinishedSequence {
            memory: Arc::clone(&self.drafter.memory),
            tenant: Arc::clone(&self.tenant),
            tokens: tokens[start..].to_vec(),
            accepted: accepted
                .iter()
                .map(|it| it.start - start..it.end.min(tokens.len()) - start)
                .collect(),
            prompt_length: match before {
                0 => self.prompt_length.unwrap_or(0),
                _ => 0,
            },
            group: self.group.key.unwrap_or_default(),
        })
    }

    /// Updates the weights by emitted tokens, of which `accepted` are on a path of the last draft.
    fn learn(&mut self, accepted: &Accepted, num_verified: usize, tokens: &[u32]) {
        let FusedDrafter { memory, weights, .. } = &*self.drafter;
        let learn = |adaptation: &mut TenantAdaptation| {
            self.builder.learn(weights, adaptation, accepted, num_verified, tokens);
            for &token in tokens {
                for source in &self.builder.sources {
                    source.learn(adaptation, &self.context, token);
                }
                self.context.extend(&[token]);
            }
        };
        if self.is_isolated {
            self.tenant.learn(learn);
        } else if memory.learn(&self.tenant, learn).is_none() {
            self.context.extend(tokens);
        }
    }

    fn advance(&mut self, accepted: &Accepted, tokens: &[u32]) {
        self.builder.advance(self.search, accepted, tokens);
        let suggestion = self.suggestion.take();
        self.suggestion = suggestion.and_then(|suggestion| suggestion.after(tokens));
        let is_prompt = self.prompt_length.is_none();
        let times = if is_prompt { 1 } else { 2 };
        for &token in &tokens[tokens.len().saturating_sub(Self::MAX_COUNTED)..] {
            self.counts.add(token, times);
        }
        self.prompt_length.get_or_insert(tokens.len());
    }
}

impl Session for FusedSession {
    /// The first call passes the prompt. All later calls pass tokens of the target model, which update
    /// the weights.
    fn observe(&mut self, tokens: &[u32], num_verified: Option<usize>) -> Result<()> {
        self.drafter.check_tokens(tokens)?;
        let num_verified = num_verified.unwrap_or(usize::MAX);
        let accepted = self.builder.accepted(tokens);
        if self.prompt_length.is_none() && self.drafter.has_texts {
            self.group.begin(&self.tenant, tokens);
        }
        let verified = accepted.nodes.iter().take_while(|&&node| node < num_verified);
        for (at, &node) in (self.context.tokens().len()..).zip(verified) {
            let source = self.builder.tree.sources()[node];
            self.drafter.accepted[source as usize].fetch_add(1, Ordering::Relaxed);
            if matches!(source, Source::Memory | Source::Group) {
                match self.accepted.last_mut().filter(|run| run.end == at) {
                    Some(run) => run.end += 1,
                    None => self.accepted.push(at..at + 1),
                }
            }
        }
        if self.drafter.config.learns && self.prompt_length.is_some() {
            self.learn(&accepted, num_verified, tokens);
        } else {
            self.context.extend(tokens);
        }
        self.advance(&accepted, tokens);
        Ok(())
    }

    /// The probability of a node is its calibrated chance of acceptance: 1 plus the sum over the first k
    /// nodes is their expected acceptance length.
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree> {
        static NOTHING: LazyLock<TenantAdaptation> = LazyLock::new(TenantAdaptation::default);
        let drafter = &*self.drafter;
        let kept = self.tenant.read();
        let group = self.group.current(&kept);
        let inputs = SourceInputs {
            search: self.search.for_nodes(limits.max_nodes),
            weights: TenantWeights {
                start: &drafter.weights,
                adaptation: kept.adaptation().unwrap_or(&NOTHING),
            },
            datastore: drafter.datastore.as_deref(),
            context: &self.context,
            memory: Some(kept.texts()).filter(|texts| !texts.tokens().is_empty()),
            group: group.as_deref(),
            predicted_output: self.predicted_output.as_ref(),
            suggestion: self.suggestion.as_ref(),
            model_tables: drafter.model_tables.as_deref(),
            vocab_size: drafter.vocab_size().unwrap_or(IndexedTokens::BOUNDARY),
        };
        Ok(self.builder.grow(&inputs, &self.counts, limits).clone())
    }

    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        self.drafter.check_tokens(tokens)?;
        let mut trial = self.clone();
        let accepted = trial.builder.accepted(tokens);
        trial.context.extend(tokens);
        trial.advance(&accepted, tokens);
        trial.draft(DraftLimits::nodes(max_nodes))
    }

    fn set_step_time(&mut self, step_seconds: f64) {
        if self.drafter.config.effort == Effort::Auto {
            self.search = Effort::for_steps_of(step_seconds).search_limits();
        }
    }

    fn num_predictions(&self) -> usize {
        let sources = self.builder.sources.iter();
        let most = sources.map(|source| source.num_predictions()).max();
        most.unwrap_or(0)
    }

    fn observe_predictions(
        &mut self,
        tree: &TokenTree,
        predictions: &[u32],
        k: usize,
    ) -> Result<()> {
        self.drafter.check_tokens(predictions)?;
        let expected = (tree.len() + 1).saturating_mul(k);
        if predictions.len() != expected {
            let reason = format!(
                "must hold k = {k} tokens for the context and for each node: {expected}, not {}",
                predictions.len()
            );
            return Err(Error::invalid("predictions", reason));
        }
        if k > 0 {
            for source in &mut self.builder.sources {
                source.observe_predictions(self.context.tokens(), tree, predictions, k);
            }
        }
        Ok(())
    }

    fn suggest(&mut self, tree: TokenTree) -> Result<bool> {
        self.drafter.check_tokens(tree.token_ids())?;
        self.suggestion = Some(Suggestion::new(tree)?);
        self.builder.clear();
        Ok(true)
    }

    fn match_length(&self) -> usize {
        self.builder.match_length()
    }

    /// Stores the request in the memory, or its new tokens if it was stored before.
    fn finish(&mut self) {
        if let Some(text) = self.take_finished() {
            text.store();
        }
    }
}

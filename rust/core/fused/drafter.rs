//! What do all sources together make of the next tokens?

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::base::checks::check_tokens;
use crate::base::error::{Error, Result};
use crate::draft::session::Session;
use crate::draft::token_tree::{Source, TokenTree};
use crate::fused::effort::Effort;
use crate::fused::evidence::TableSource;
use crate::fused::grow::{Limits, Sources, TreeBuilder};
use crate::fused::mixer::TokenCounts;
use crate::fused::sources::recycled::{KEPT, Recycled};
use crate::fused::sources::tables::{self, Model};
use crate::fused::weights::Weights;
use crate::lookup::datastore::Datastore;
use crate::lookup::holdout::Holdout;
use crate::memory::history::History;
use crate::memory::store::{Memory, Reader, check_name};
use crate::papers::aded::adaptive::AdaptiveTrigrams;
use crate::papers::aded::trigrams::Trigrams;
use crate::papers::model_tables::ModelTables;

/// Which sources a [`FusedDrafter`] drafts from, of those that it has, and whether it learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch by itself")]
pub struct FusedConfig {
    /// The request's own text.
    pub context: bool,
    /// The target model's own predictions at verified nodes, which cost the target some time to tell.
    pub recycled: bool,
    /// The unigram of the model's tables, besides their bigrams.
    pub unigram: bool,
    /// Whether what is accepted changes the weights.
    pub learns: bool,
    /// How much of the sources a draft reads.
    pub effort: Effort,
}

impl Default for FusedConfig {
    fn default() -> Self {
        Self {
            context: true,
            recycled: true,
            unigram: false,
            learns: true,
            effort: Effort::default(),
        }
    }
}

/// What sessions that draft from all sources share: the sources, and what each of them has proved to
/// be worth.
///
/// Drafts read the weights and [`observe`](Session::observe) changes them: so results depend on the
/// order of these calls alone, not on threads.
#[derive(Debug)]
pub struct FusedDrafter {
    datastore: Option<Arc<Datastore>>,
    memory: Option<Arc<Memory>>,
    model_tables: Option<Arc<ModelTables>>,
    trigrams: Option<Arc<Trigrams>>,
    config: FusedConfig,
    weights: RwLock<Weights>,
    accepted: [AtomicU64; Source::ALL.len()],
}

impl FusedDrafter {
    /// A drafter of these sources, which starts from these weights.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the memory is for another vocabulary than the datastore.
    pub fn new(
        datastore: Option<Arc<Datastore>>,
        memory: Option<Arc<Memory>>,
        config: FusedConfig,
        weights: Weights,
    ) -> Result<Self> {
        if let (Some(datastore), Some(memory)) = (&datastore, &memory) {
            let (expected, found) = (datastore.vocab_size(), memory.options().vocab_size);
            if expected != found {
                return Err(other_vocabulary("memory", expected, found));
            }
        }
        Ok(Self {
            datastore,
            memory,
            model_tables: None,
            trigrams: None,
            config,
            weights: RwLock::new(weights),
            accepted: Default::default(),
        })
    }

    /// The same with what the target model predicts after a single token.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where a token of the other sources is not in the tables.
    pub fn with_model_tables(mut self, tables: Arc<ModelTables>) -> Result<Self> {
        let found = tables.vocab_size();
        if let Some(expected) = self.vocab_size().filter(|&expected| found < expected) {
            return Err(other_vocabulary("model_tables", expected, found));
        }
        self.model_tables = Some(tables);
        Ok(self)
    }

    /// The same with tri-grams, which adapt to each request by itself.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where they are for another vocabulary than the other sources.
    pub fn with_trigrams(mut self, trigrams: Arc<Trigrams>) -> Result<Self> {
        let found = trigrams.facts().vocab_size;
        if let Some(expected) = self.vocab_size().filter(|&expected| found != expected) {
            return Err(other_vocabulary("trigrams", expected, found));
        }
        self.trigrams = Some(trigrams);
        Ok(self)
    }

    /// What it has learned so far.
    pub fn weights(&self) -> Weights {
        self.weights
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What of it holds for other texts too: what drafters of these may start from.
    pub fn prior(&self) -> Weights {
        self.weights().without_anchors()
    }

    /// How many tokens of each of [`Source::ALL`] were accepted.
    pub fn accepted(&self) -> [u64; Source::ALL.len()] {
        std::array::from_fn(|source| self.accepted[source].load(Ordering::Relaxed))
    }

    /// One more than the largest token of its sources; `None` where it has no datastore, no memory and
    /// no tri-grams.
    pub fn vocab_size(&self) -> Option<u32> {
        let datastore = self
            .datastore
            .iter()
            .map(|datastore| datastore.vocab_size());
        let memory = self.memory.iter().map(|memory| memory.options().vocab_size);
        let trigrams = self
            .trigrams
            .iter()
            .map(|trigrams| trigrams.facts().vocab_size);
        datastore.chain(memory).chain(trigrams).next()
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, self.vocab_size().unwrap_or(History::BOUNDARY))
    }
}

fn other_vocabulary(name: &'static str, expected: u32, found: u32) -> Error {
    let reason = format!("must have the vocabulary of the other sources: {expected}, not {found}");
    Error::invalid(name, reason)
}

/// One request that is drafted for from all sources: a datastore, its own text, the texts of earlier
/// requests, what the target model predicted at other nodes, and an output that the caller expects.
#[derive(Debug)]
pub struct FusedSession {
    drafter: Arc<FusedDrafter>,
    tenant: String,
    context: History,
    prompt_length: Option<usize>,
    predicted: Option<History>,
    recycled: Recycled,
    trigrams: Option<AdaptiveTrigrams>,
    uses: TokenCounts,
    effort: Effort,
    growth: TreeBuilder,
    /// Grows drafts after tokens on trial, so that the last draft can still be learned from.
    on_trial: TreeBuilder,
}

impl FusedSession {
    /// A prompt's last tokens are used again more than those before.
    const USED: usize = 400;

    /// Starts a request with an empty context, whose memory is that of `tenant`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the tenant's name is longer than
    /// [`MAX_NAME`](Memory::MAX_NAME).
    pub fn new(drafter: Arc<FusedDrafter>, tenant: &str) -> Result<Self> {
        check_name(tenant)?;
        Ok(Self {
            trigrams: drafter.trigrams.clone().map(AdaptiveTrigrams::new),
            effort: drafter.config.effort,
            drafter,
            tenant: tenant.to_owned(),
            context: History::default(),
            prompt_length: None,
            predicted: None,
            recycled: Recycled::default(),
            uses: TokenCounts::default(),
            growth: TreeBuilder::default(),
            on_trial: TreeBuilder::default(),
        })
    }

    /// Tells the session what the caller expects the target model to write, the text that is to be
    /// edited for example: it is matched as the context is. O(tokens).
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`] where a token is not in the vocabulary.
    pub fn expect_output(&mut self, tokens: &[u32]) -> Result<()> {
        self.drafter.check_tokens(tokens)?;
        self.predicted.get_or_insert_default().extend(tokens);
        Ok(())
    }

    /// Drafts as if a document were not in the datastore.
    pub(crate) fn without(mut self, hidden: Holdout) -> Self {
        self.on_trial.hide(hidden.clone());
        self.growth.hide(hidden);
        self
    }

    fn grow(&mut self, limits: Limits) -> TokenTree {
        let drafter = &*self.drafter;
        let texts = drafter
            .memory
            .as_ref()
            .and_then(|memory| memory.read(&self.tenant));
        let weights = drafter
            .weights
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let datastore = drafter.datastore.as_deref();
        let model = drafter.model_tables.as_deref().map(|tables| Model {
            tables,
            vocab_size: drafter.vocab_size().unwrap_or(History::BOUNDARY),
            unigram: drafter.config.unigram,
        });
        let trigrams = self.trigrams.as_ref().map(AdaptiveTrigrams::reader);
        let recycled = drafter.config.recycled.then_some(&self.recycled);
        let sources = Sources {
            reading: self.effort.reading(),
            weights: &weights,
            datastore,
            texts: [
                drafter.config.context.then_some(&self.context),
                texts.as_deref(),
                self.predicted.as_ref(),
            ],
            tables: [
                recycled.map(|recycled| recycled as &dyn TableSource),
                model.as_ref().map(|model| model as &dyn TableSource),
                trigrams
                    .as_ref()
                    .map(|trigrams| trigrams as &dyn TableSource),
            ],
            tokens: self.context.tokens(),
            uses: &self.uses,
        };
        self.growth.grow(&sources, limits).clone()
    }

    /// Learns from what the target model wrote after the context, and appends it.
    fn learn(&mut self, tokens: &[u32]) {
        let weights = self.drafter.weights.write();
        let weights = &mut weights.unwrap_or_else(PoisonError::into_inner);
        self.growth.learn(weights, tokens);
        for &token in tokens {
            if self.drafter.config.context {
                weights.anchors.learn(&self.context, token);
            }
            self.context.extend(&[token]);
        }
    }

    fn use_tokens(&mut self, tokens: &[u32]) {
        let is_prompt = self.prompt_length.is_none();
        let times = if is_prompt { 1 } else { 2 };
        for &token in &tokens[tokens.len().saturating_sub(Self::USED)..] {
            self.uses.add(token, times);
        }
    }

    fn note_accepted(&self, tokens: &[u32]) {
        let mut sources = self.growth.accepted(tokens).peekable();
        if let (Some(Source::Memory), Some(memory), Some(place)) = (
            sources.peek(),
            &self.drafter.memory,
            self.growth.place_in_memory(),
        ) {
            memory.touch(&self.tenant, place);
        }
        for source in sources {
            self.drafter.accepted[source as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Session for FusedSession {
    /// What is observed first is the prompt, and what comes after it is what the target model wrote:
    /// the weights learn from that.
    fn observe(&mut self, tokens: &[u32]) -> Result<()> {
        self.drafter.check_tokens(tokens)?;
        self.note_accepted(tokens);
        let mut skips = std::mem::take(&mut self.growth.skips_of_root);
        self.growth
            .skip_after(tokens, self.effort.reading(), &mut skips);
        self.growth.skips_of_root = skips;
        if let Some(trigrams) = &self.trigrams {
            tables::learn(trigrams, self.context.tokens(), tokens);
        }
        if self.drafter.config.learns && self.prompt_length.is_some() {
            self.learn(tokens);
        } else {
            self.context.extend(tokens);
        }
        self.growth.clear();
        self.use_tokens(tokens);
        self.prompt_length.get_or_insert(tokens.len());
        Ok(())
    }

    /// A node's probability is how likely the target model is to accept it, calibrated by what became
    /// of earlier drafts: the expected acceptance length of the first k nodes is 1 + the sum of
    /// their probabilities.
    fn draft(&mut self, max_nodes: usize) -> Result<TokenTree> {
        Ok(self.grow(Limits {
            max_nodes,
            min_gain: 0.0,
        }))
    }

    fn draft_until(&mut self, min_gain: f32, max_nodes: usize) -> Result<TokenTree> {
        Ok(self.grow(Limits {
            max_nodes,
            min_gain,
        }))
    }

    fn draft_after(&mut self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        self.drafter.check_tokens(tokens)?;
        let skips = &mut self.on_trial.skips_of_root;
        skips.clone_from(&self.growth.skips_of_root);
        self.growth.skip_after(tokens, self.effort.reading(), skips);
        let (length, uses) = (self.context.tokens().len(), self.uses.clone());
        self.context.try_on(tokens);
        self.use_tokens(tokens);
        std::mem::swap(&mut self.growth, &mut self.on_trial);
        let tree = self.draft(max_nodes);
        std::mem::swap(&mut self.growth, &mut self.on_trial);
        self.uses = uses;
        self.context.take_back(length);
        tree
    }

    fn cut(&mut self, num_nodes: usize) {
        self.growth.cut(num_nodes);
    }

    fn pace(&mut self, step_seconds: f64) {
        if self.drafter.config.effort == Effort::Auto {
            self.effort = Effort::for_steps_of(step_seconds);
        }
    }

    fn num_predictions(&self) -> usize {
        if self.drafter.config.recycled {
            KEPT
        } else {
            0
        }
    }

    fn recycle(&mut self, tree: &TokenTree, predictions: &[u32], k: usize) -> Result<()> {
        self.drafter.check_tokens(predictions)?;
        self.recycled
            .add(self.context.tokens(), tree, predictions, k)
    }

    fn match_length(&self) -> usize {
        self.growth.match_length()
    }

    /// Puts the request into the memory.
    fn finish(&mut self) {
        if let Some(memory) = &self.drafter.memory {
            let tokens = self.context.tokens();
            let prompt = &tokens[..self.prompt_length.unwrap_or(0)];
            let texts = memory.read(&self.tenant);
            let known = texts.as_ref().map_or(0, |texts| num_known(texts, prompt));
            drop(texts);
            // Tokens and tenant are checked before they come here.
            let _ = memory.insert(&self.tenant, &tokens[known..]);
        }
    }
}

/// How many tokens at the beginning of a prompt the memory has already: a template, or the turns of
/// a conversation before this one. They would be found twice.
fn num_known(texts: &Reader<'_>, prompt: &[u32]) -> usize {
    const MIN_LENGTH: usize = 16;
    const MAX_PLACES: usize = 64;
    let mut known = 0;
    while let [first, second, ..] = prompt[known..] {
        let length = |end: usize| {
            let pairs = texts.tokens()[end - 1..].iter().zip(&prompt[known..]);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let places = texts.of_pair(first, second).take(MAX_PLACES);
        let longest = places.map(length).max().unwrap_or(0);
        if longest < MIN_LENGTH {
            break;
        }
        known += longest;
    }
    known
}

/// A drafter that learns a prior: with little effort, which is soon done, and drafters that take more
/// accept as much from it as from one of their own effort.
///
/// # Errors
///
/// As [`FusedDrafter::new`].
pub(crate) fn learner(datastore: Option<Arc<Datastore>>, weights: Weights) -> Result<FusedDrafter> {
    let config = FusedConfig {
        effort: Effort::Low,
        ..FusedConfig::default()
    };
    FusedDrafter::new(datastore, None, config, weights)
}

/// Learns weights from documents, as if a model had written them: the prior of drafters with this
/// datastore. The documents should not be in it. Some 20 µs a token.
///
/// # Errors
///
/// [`Error::TokenOutOfRange`] where a token is not in the vocabulary.
pub fn fit<D: AsRef<[u32]>>(
    datastore: Option<Arc<Datastore>>,
    documents: &[D],
    weights: Weights,
) -> Result<Weights> {
    let drafter = Arc::new(learner(datastore, weights)?);
    for document in documents {
        let session = FusedSession::new(Arc::clone(&drafter), "")?;
        learn_from(session, document.as_ref())?;
    }
    Ok(drafter.prior())
}

/// Drafts for a document as if a model had written it, but for its first tokens.
pub(crate) fn learn_from(mut session: FusedSession, document: &[u32]) -> Result<()> {
    const MAX_NODES: usize = 32;
    const PROMPT: usize = 16;
    let (prompt, mut rest) = document.split_at(document.len().min(PROMPT));
    session.observe(prompt)?;
    while !rest.is_empty() {
        session.draft(MAX_NODES)?;
        let num_accepted = session.growth.accepted(rest).count();
        let (emitted, after) = rest.split_at(rest.len().min(num_accepted + 1));
        session.observe(emitted)?;
        rest = after;
    }
    Ok(())
}

//! What an operator may configure.

use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::budget::step_cost::StepCost;
use crate::fused::effort::Effort;
use crate::memory::indexed_tokens::IndexedTokens;
use specds_index::base::checks::check_within;
use specds_index::{Error, Result};

/// Whose earlier requests are drafted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryScope {
    /// No earlier requests: most engines do not pass on the tenant of a request.
    #[default]
    None,
    /// The tenant's own requests, where the engine tells the tenant.
    Tenant,
    /// The requests of everybody: the operator says that all are of one tenant.
    Shared,
}

/// The cost of a step, by which drafts become smaller as the batch grows.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum LoadCost {
    /// Drafts are as large as the engine allows.
    #[default]
    Ignored,
    /// The cost is measured from the engine's own steps; only where there is one rank.
    Measured,
    /// The cost is what the operator says.
    Given(StepCost),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// The folder of a datastore.
    pub datastore: Option<PathBuf>,
    /// A file with the memory and the weights to start from, written only by
    /// [`sync_interval`](Self::sync_interval).
    pub snapshot: Option<PathBuf>,
    /// At intervals of so many seconds, the memory is merged with the snapshot; a datastore that was replaced
    /// is then opened anew.
    pub sync_interval: Option<f64>,
    pub memory_scope: MemoryScope,
    pub memory_bytes: usize,
    /// `auto` is low until the engine tells what a step takes.
    pub effort: Effort,
    /// Whether the target model's predictions are used, where the engine gives them.
    pub recycle_predictions: bool,
    /// The least probability of a node of a chain, where the engine does not say one.
    pub min_prob: f32,
    /// Rows with more tokens are not drafted for.
    pub max_context: usize,
    pub num_threads: usize,
    #[serde(deserialize_with = "step_cost", skip_serializing)]
    pub step_cost: LoadCost,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            datastore: None,
            snapshot: None,
            sync_interval: None,
            memory_scope: MemoryScope::None,
            memory_bytes: 1 << 28,
            effort: Effort::Auto,
            recycle_predictions: true,
            min_prob: 0.0,
            max_context: IndexedTokens::MAX_LENGTH,
            num_threads: 1,
            step_cost: LoadCost::Ignored,
        }
    }
}

impl EngineConfig {
    pub(crate) fn check(&self) -> Result<()> {
        check_within("min_prob", self.min_prob, 0.0..=1.0)?;
        if let Some(seconds) = self.sync_interval {
            check_within("sync_interval", seconds, 0.001..=MAX_INTERVAL)?;
            if self.snapshot.is_none() || self.memory_scope == MemoryScope::None {
                let reason = "shares a memory: pass its file as `snapshot`, and a \
                              `memory_scope` of `tenant` or `shared`";
                return Err(Error::invalid("sync_interval", reason));
            }
        }
        check_within("max_context", self.max_context, 1..=IndexedTokens::MAX_LENGTH)?;
        check_within("num_threads", self.num_threads, 1..=usize::MAX)
    }
}

/// The longest interval: a day, in seconds.
const MAX_INTERVAL: f64 = 86_400.0;

fn step_cost<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<LoadCost, D::Error> {
    match Value::deserialize(value)? {
        Value::Null => Ok(LoadCost::Ignored),
        Value::String(name) if name == "measured" => Ok(LoadCost::Measured),
        points => {
            let points = serde_json::from_value(points).map_err(D::Error::custom)?;
            let cost = StepCost::new(points).map(LoadCost::Given);
            cost.map_err(D::Error::custom)
        }
    }
}

/// What an engine says of itself when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// Tokens from this on are never drafted; `None` where it is not known.
    pub vocab_size: Option<u32>,
    /// The fingerprint of the tokenizer; empty where it is not known.
    pub tokenizer: String,
}
